"""Calls move in C, beside a program that keeps the interpreter to itself."""

import gc
import sys
import time

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll import engine
from mpicoll.progress import PROGRESS
from mpicoll.progress import engine as progress_engine
from mpicoll.shared_memory import TASKS
from tests.support.cases import RANK, SIZE, WORLD, same
from tests.support.forked import status_of_child
from tests.support.launching import PATIENCE

EXTENSION = engine.status().extension
pytestmark = [
    pytest.mark.mpi(min_size=2),
    pytest.mark.interpreters("c"),
    pytest.mark.skipif(EXTENSION is None, reason=f"no extension: {engine.status().reason}"),
    pytest.mark.skipif(not PROGRESS.threaded, reason="MPI does not grant THREAD_MULTIPLE"),
]
ALGORITHMS = ("ring", "circulant", "recursive_doubling", "tree")


@pytest.fixture(autouse=True, params=["through MPI", "through shared memory"])
def way(request, monkeypatch):
    """How the messages of these tests go."""
    monkeypatch.setenv("MPICOLL_SHARED_MEMORY", "off" if request.param == "through MPI" else "on")


def attends():
    """Whether the background thread is in the extension, where it stays: it returns once as the call begins."""
    for _ in range(20):
        frame = sys._current_frames().get(PROGRESS._thread.ident)
        if frame is None or frame.f_code is not engine.Attendance.attend.__code__:
            return False
        time.sleep(1e-3)
    return True


def test_a_call_ends_while_the_interpreter_is_kept(comm, monkeypatch):
    """No other thread runs Python meanwhile: nothing else can have advanced the call."""
    x, y = np.full(1000, RANK + 1.0), np.empty(1000)
    monkeypatch.setattr(progress_engine, "ATTENTION", PATIENCE)
    interval = sys.getswitchinterval()
    # ranks compare the first one, and on each track they find each other's memory
    for _ in range(1 + len(TASKS)):
        comm.Iallreduce(x, y, algorithm="ring").Wait()
    if RANK:
        WORLD.recv(source=0)
    request = comm.Iallreduce(x, y, algorithm="ring")
    if RANK == 0:
        (task,) = PROGRESS._tasks
        compiled = task.record.plan.compiled
        until = time.monotonic() + PATIENCE
        while not attends() and time.monotonic() < until:
            time.sleep(1e-3)
        try:
            sys.setswitchinterval(10 * PATIENCE)
            for rank in range(1, SIZE):
                WORLD.send(None, rank)
            while EXTENSION.reached(compiled.attended[0])[1] < compiled._end:
                assert time.monotonic() < until, "the call does not move"
        finally:
            sys.setswitchinterval(interval)
    request.Wait()
    same(y, np.full(1000, SIZE * (SIZE + 1) / 2))


def test_any_order_of_calls_that_are_tested_and_awaited(comm):
    """Threads meet at programs: that which attends, and those that test and wait."""
    program, own = np.random.default_rng(1), np.random.default_rng([2, RANK])
    plans = {}
    for step in range(60):
        begun = []
        for number in range(program.integers(1, 5)):
            count = int(program.choice([1, 100, 5000, 60_000]))
            word = ALGORITHMS[program.integers(len(ALGORITHMS))]
            x, y = np.full(count, RANK + step + number), np.empty(count, int)
            request = None
            if program.integers(3) == 0:
                if (count, word) not in plans:
                    buffers = np.empty(count, int), np.empty(count, int)
                    plans[count, word] = comm.Allreduce_init(*buffers, algorithm=word), *buffers
                request, source, y = plans[count, word]
                if any(request is other for other, *_ in begun):
                    continue
                source[:] = x
                request.Start()
            else:
                request = comm.Iallreduce(x, y, algorithm=word)
            begun.append((request, y, SIZE * (step + number) + sum(range(SIZE))))
        meanwhile = own.integers(3)
        if meanwhile == 0:
            time.sleep(1e-3 * own.random())
        elif meanwhile == 1:
            while not all([request.Test() for request, *_ in begun]):
                pass
        for number in own.permutation(len(begun)):
            begun[number][0].Wait()
        for _, y, wanted in begun:
            same(y, np.full(y.size, wanted))
    for plan, *_ in plans.values():
        plan.Free()


def test_a_rank_that_gives_up_while_others_attend(comm):
    """All hear of it, and the arrays are the program's again."""
    request = comm.Iallreduce(np.ones(60_000), np.empty(60_000), algorithm="ring") if RANK else None
    time.sleep(0.01)
    with pytest.raises(mpicoll.MpicollError):
        if RANK:
            request.Wait()
        else:
            comm.Allreduce(np.ones(60_000), np.empty(60_000), MPI.MAX, algorithm="ring")
    with pytest.raises(mpicoll.MpicollError, match="cannot be used any more"):
        comm.Allreduce(np.ones(1), np.empty(1), algorithm="ring")


def test_a_child_that_is_forked_meanwhile_forgets_the_call(comm):
    """It frees what it inherits, with garbage collection; the call goes on in its parent."""
    x, y = np.full(1000, RANK + 1.0), np.empty(1000)
    comm.Iallreduce(x, y, algorithm="ring").Wait()  # ranks compare it the first time
    y[:] = 0
    if RANK:
        WORLD.recv(source=0)
    requests = [comm.Iallreduce(x, y, algorithm="ring")]
    if RANK == 0:
        until = time.monotonic() + PATIENCE
        while not attends() and time.monotonic() < until:
            time.sleep(1e-3)

        def forget():
            requests.clear()
            gc.collect()
            return not y.any()

        assert status_of_child(forget) == 0
        for rank in range(1, SIZE):
            WORLD.send(None, rank)
    requests[0].Wait()
    same(y, np.full(1000, SIZE * (SIZE + 1) / 2))
