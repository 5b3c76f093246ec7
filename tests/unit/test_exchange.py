"""Messages that leave the link to other calls while these are under way."""

import numpy
import pytest
from mpi4py import MPI

from mpicoll import Communicator
from mpicoll.communicator import BackgroundExchange
from mpicoll.execute import Context
from mpicoll.progress import PROGRESS


@pytest.fixture
def comm():
    made = Communicator(MPI.COMM_SELF.Dup())
    yield made
    made.Free()


class Busy:
    """A communicator with a call under way, until it is told to end."""

    def __init__(self):
        self.comm = Communicator(MPI.COMM_SELF.Dup())
        self.is_over = False
        self.call = Context.of(self.comm).submit(self.steps())

    def steps(self):
        while not self.is_over:
            yield None

    def end(self):
        self.is_over = True
        PROGRESS.wait(self.call)


@pytest.fixture
def busy():
    made = Busy()
    yield made
    made.end()
    made.comm.Free()


@pytest.mark.parametrize("size", [0, 1, 100_000])
def test_pieces_come_whole_and_only_while_no_other_call_is_under_way(comm, busy, size):
    sent, received = numpy.arange(size, dtype="f8"), numpy.full(size, -1.0)
    exchange = BackgroundExchange(comm, sent, 0, {0: received}, behind=busy.comm)
    for _ in range(100):
        PROGRESS.poll()
    assert (received == -1).all()
    busy.end()
    PROGRESS.wait_until(lambda: size == 0 or received[-1] == size - 1)
    assert exchange.wait() >= 0 and exchange.nbytes == sent.nbytes
    assert (received == sent).all()


def test_whoever_waits_does_not_wait_for_the_other_call(comm, busy):
    received = numpy.zeros(10)
    BackgroundExchange(comm, numpy.ones(10), 0, {0: received}, behind=busy.comm).wait()
    assert (received == 1).all()
