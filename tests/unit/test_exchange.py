"""Messages that leave the link to other calls while these are under way."""

from types import SimpleNamespace

import numpy
import pytest
from mpi4py import MPI

from mpicoll import Communicator
from mpicoll.communicator import Exchange
from mpicoll.execute import PROGRESS


@pytest.fixture
def comm():
    made = Communicator(MPI.COMM_SELF.Dup())
    yield made
    made.Free()


@pytest.mark.parametrize("size", [0, 1, 100_000])
def test_pieces_come_whole_and_only_while_no_other_call_is_under_way(comm, size):
    other = SimpleNamespace(_context=SimpleNamespace(queue=SimpleNamespace(running=["a call"])))
    sent, received = numpy.arange(size, dtype="f8"), numpy.full(size, -1.0)
    exchange = Exchange(comm, sent, 0, {0: received}, behind=other)
    for _ in range(100):
        PROGRESS.poll()
    assert (received == -1).all()
    other._context.queue.running.clear()
    PROGRESS.wait_until(lambda: size == 0 or received[-1] == size - 1)
    assert exchange.wait() >= 0 and exchange.nbytes == sent.nbytes
    assert (received == sent).all()


def test_whoever_waits_does_not_wait_for_the_other_call(comm):
    other = SimpleNamespace(_context=SimpleNamespace(queue=SimpleNamespace(running=["a call"])))
    received = numpy.zeros(10)
    Exchange(comm, numpy.ones(10), 0, {0: received}, behind=other).wait()
    assert (received == 1).all()
