"""When one call of a communicator raises, all others have ended: no thread of the rank uses their arrays any more."""

import threading
import time

import numpy as np
import pytest

import mpicoll
from mpicoll.calls import serving
from mpicoll.execute import Context
from mpicoll.shared_memory import HEAP
from tests.support.cases import RANK, SIZE, WORLD

pytestmark = [pytest.mark.mpi, pytest.mark.skipif(SIZE < 2, reason="waits for another rank")]


@pytest.fixture
def slow_heap(monkeypatch):
    """What gives arrays new pages takes long in other threads; whether one is at it."""
    detach, main, busy = HEAP.detach, threading.get_ident(), []

    def slow(address, nbytes):
        if threading.get_ident() != main:
            busy.append(address)
            time.sleep(0.3)
        detach(address, nbytes)
        if threading.get_ident() != main:
            busy.remove(address)

    monkeypatch.setattr(HEAP, "detach", slow)
    return busy


def blocking(comm, x, begun):
    comm.Allreduce(x, np.empty_like(x), algorithm="ring")


def other_request(comm, x, begun):
    begun[-1].Wait()


def by_testing(comm, x, begun):
    while not begun[-1].Test():
        pass


def refused_after(comm, x, begun):
    """Another thread has met the error; this one begins a call."""
    while not comm._context.broken:
        time.sleep(1e-3)
    comm.Allreduce(x, np.empty_like(x), algorithm="ring")


@pytest.mark.parametrize("raises", [blocking, other_request, by_testing, refused_after])
def test_other_calls_have_ended(slow_heap, raises):
    comm = mpicoll.Communicator(WORLD.Dup(), timeout=0.5)
    arrays = [comm.zeros(50_000) for _ in range(6)]
    if RANK == 0:
        begun = [comm.Iallreduce(x, y, algorithm="direct") for x, y in zip(arrays[::2], arrays[1::2])]
        with pytest.raises(mpicoll.MpicollError):
            raises(comm, arrays[0], begun)
        assert not slow_heap
        for array in arrays:
            array[:] = 7.0
        time.sleep(0.1)
        assert all((array == 7.0).all() for array in arrays)
        for request in begun:
            with pytest.raises(mpicoll.MpicollError):
                request.Wait()
    WORLD.Barrier()
    comm.Free()


@pytest.mark.parametrize("form", ["Bcast", "Ibcast", "Bcast_init"])
def test_nothing_is_begun_on_a_communicator_that_was_given_up(form):
    """Nor by what needs to wait for no other rank, and was known well before."""
    comm = mpicoll.Communicator(WORLD.Dup())
    x = np.zeros(1)
    call = getattr(comm, form)
    for _ in range(4):
        request = call(x, algorithm="binomial")
        if form == "Bcast_init":
            request.Start()
        request is None or request.Wait()
    WORLD.Barrier()
    context = Context.of(comm)
    context.in_disorder(mpicoll.MpicollError("for a test"), tell=False)
    before = comm.sent
    with pytest.raises(mpicoll.MpicollError, match="for a test"):
        if form == "Bcast_init":
            request.Start()
            request.Wait()
        else:
            call(x, algorithm="binomial")
    assert comm.sent == before
    WORLD.Barrier()
    comm.Free()


class Interrupted(Exception):
    """What a signal handler raises."""


def interrupted(*arguments):
    raise Interrupted


@pytest.mark.parametrize("form", ["Allreduce", "Iallreduce", "Allreduce_init"])
def test_what_raises_again_before_the_others_are_told_does_not_keep_them_from_it(monkeypatch, form):
    """A call is counted and then ended by a handler, which raises once more before that has any effect."""
    comm = mpicoll.Communicator(WORLD.Dup())
    x = np.ones(1000)
    if RANK == 0:
        with monkeypatch.context() as patched:
            patched.setattr(serving, "comparing", interrupted)
            patched.setattr(Context, "lose_step", interrupted)
            with pytest.raises(Interrupted):
                getattr(comm, form)(x, np.empty_like(x), algorithm="ring")
    with pytest.raises(mpicoll.MpicollError, match="cannot be used any more: I?[Aa]llreduce" if RANK == 0 else "rank 0"):
        comm.Allreduce(x, np.empty_like(x), algorithm="ring")
    comm.Free()
