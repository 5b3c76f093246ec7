"""Calls leave nothing behind: no object, no request, no file, no thread; `python -m benchmarks.run.soak` makes many more."""

import gc
import weakref

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll.buffers import layout
from mpicoll.communicator.communicator import free_released
from mpicoll.execute import Context
from mpicoll.transport import WATCH
from tests.support import leaks
from tests.support.cases import SIZE, WORLD
from tests.support.left_by_training import train

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("name", leaks.ALL)
def test_nothing_is_left(name):
    """After a first round, which fills what is kept for all later calls, a second one leaves nothing more."""

    def once():
        comm = mpicoll.Communicator(WORLD.Dup())
        call = leaks.ALL[name](comm)
        for number in range(60):
            call(number)
        comm.Free()

    once()
    before = leaks.counted()
    once()
    assert leaks.left_over(before) == {}


@pytest.mark.parametrize("algorithm", ["ring", "native"])
def test_forgotten_plans_give_back_what_they_hold(comm, monkeypatch, algorithm):
    """Scratch goes to the pool, their own datatypes are freed; one that is under way ends before."""
    freed = []
    monkeypatch.setattr(layout._Owned, "Free", lambda datatype: freed.append(MPI.Datatype.Free(datatype)))
    every_second = MPI.DOUBLE.Create_vector(500, 1, 2).Commit()
    result = np.zeros(500 * SIZE)
    plan = comm.Allgather_init([np.ones(1000), 1, every_second], result, algorithm=algorithm)
    every_second.Free()
    plan.Start()
    forgotten = weakref.ref(plan)
    if algorithm == "native":  # an active request is MPI's
        plan.Wait()
        plan.Free()
    del plan
    Context.of(comm).drain()

    def forgot():
        gc.collect()
        return forgotten() is None and len(freed) == 1

    assert leaks.eventually(forgot) and (result == 1).all()
    assert Context.of(comm).pool._in_use == 0


def test_refused_calls_free_their_datatypes(comm, monkeypatch):
    freed = []
    monkeypatch.setattr(layout._Owned, "Free", lambda datatype: freed.append(MPI.Datatype.Free(datatype)))
    every_second = MPI.DOUBLE.Create_vector(5, 1, 2).Commit()
    for send in ([np.ones(10), 1, every_second], [np.ones(100), 7, every_second]):
        with pytest.raises((mpicoll.ArgumentError, mpicoll.BufferError)):
            comm.Allgather(send, np.zeros(5 * SIZE), algorithm="no such algorithm")
    every_second.Free()
    gc.collect()
    assert len(freed) == 2


def test_a_communicator_takes_its_plans_and_its_wire_along():
    """Also those of repeated calls."""
    comm = mpicoll.Communicator(WORLD.Dup())
    context, x = Context.of(comm), np.ones(5000)
    comm.Allreduce(MPI.IN_PLACE, x, algorithm="ring")
    assert context.cache
    comm.Free()
    assert not context.cache and context.channel.wire.comm == MPI.COMM_NULL


@pytest.mark.parametrize("strategy", ["allreduce", "zero1"])
def test_a_training_frees_the_communicators_that_it_makes(strategy):
    options = {"strategy": strategy, "compression": "int8", "error_feedback": True, "algorithm": "pairwise"}
    train(options)
    before = list(Context.living())
    train(options)

    def freed():
        gc.collect()
        free_released()  # else when the next communicator is made
        return all(any(context is one for one in before) for context in Context.living())

    assert leaks.eventually(freed)


def test_the_watcher_leaves_a_communicator_alone_that_is_freed():
    comm = mpicoll.Communicator(WORLD.Dup())
    channel, status = Context.of(comm).channel, MPI.Status()
    assert not channel.probe(channel.tag(WATCH, 1), status)
    comm.Free()
    assert not channel.open and not channel.probe(channel.tag(WATCH, 1), status)
