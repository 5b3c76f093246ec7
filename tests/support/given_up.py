"""Jobs of two ranks of which one gives a communicator up: python given_up.py SCENARIO ARRAYS.

ARRAYS: shared (`comm.empty`), or ordinary. Each rank prints "done" where nothing of its memory was changed afterwards, and
nobody got wrong data without an error.
"""

import os
import signal
import sys
import time

import numpy as np
from mpi4py import MPI

import mpicoll

WORLD = MPI.COMM_WORLD
RANK = WORLD.Get_rank()
COUNT = 300_000
SCENARIO, ARRAYS = sys.argv[1:]
#: the round in which this rank is interrupted; a signal may be seen to when that is over
ALARMED = []


class Interrupted(Exception):
    """What the handler raises."""


def interrupt(number, frame):
    raise Interrupted


def interrupt_a_call(number, frame):
    """Raise within a collective, wherever that is; again and again, as Python ignores what is raised in a finalizer."""
    if not ALARMED:
        return
    signal.setitimer(signal.ITIMER_REAL, 0.005)
    while frame is not None and frame.f_code.co_name not in (*CALLS, "Wait"):
        frame = frame.f_back
    if frame is not None:
        raise Interrupted


def made(comm, value):
    x = comm.empty(COUNT) if ARRAYS == "shared" else np.empty(COUNT)
    x[:] = value
    return x


def is_late(root=False):
    """Rank 1 comes when rank 0 has given up and uses its array again; neither's changes later.

    root: a broadcast of rank 0. Rank 1 then has what was sent, or an error.
    """
    for algorithm in ["binomial", "direct"] if root else ["ring", "direct", "recursive_doubling"]:
        comm = mpicoll.Communicator(WORLD.Dup())
        comm.Allreduce(MPI.IN_PLACE, made(comm, 1), algorithm="ring")  # memory is mapped, calls are compared
        for x in (made(comm, 0), made(comm, RANK + 1)):
            if root:
                comm.Bcast(x, 0, algorithm=algorithm)
            else:
                comm.Allreduce(MPI.IN_PLACE, x, algorithm=algorithm)
        x[:] = RANK + 1
        if RANK == 0:
            signal.signal(signal.SIGALRM, interrupt)
            signal.setitimer(signal.ITIMER_REAL, 0.3)
        error = None
        if RANK == 1:
            WORLD.recv(source=0)
        try:
            if root:
                comm.Bcast(x, 0, algorithm=algorithm)
                while RANK == 0:  # which may not have to wait for the others
                    comm.Bcast(made(comm, 5), 0, algorithm=algorithm)
            else:
                comm.Allreduce(MPI.IN_PLACE, x, algorithm=algorithm)
        except (Interrupted, mpicoll.MpicollError) as raised:
            error = raised
        if RANK == 0:
            assert isinstance(error, Interrupted), error
            x[:] = 77
            WORLD.send(None, 1)
        WORLD.Barrier()
        time.sleep(0.01)
        if RANK == 0:
            assert (x == 77).all(), (algorithm, x)
        elif root and error is None:
            assert (x == 1).all(), (algorithm, x)
        elif not root:
            assert isinstance(error, mpicoll.MpicollError) and "rank 0" in str(error), (algorithm, error)
        x[:] = RANK + 1
        comm.Free()
        other = mpicoll.Communicator(WORLD.Dup())
        other.Allreduce(MPI.IN_PLACE, x, algorithm="direct")
        assert (x == 3).all(), (algorithm, x)
        other.Free()


def scale():
    """A handler raises while ranks agree on the scale of a reproducible sum."""
    for delay in (0.1, 0.15, 0.2):
        comm = mpicoll.Communicator(WORLD.Dup(), reproducible=True)
        for _ in range(2):
            comm.Allreduce(MPI.IN_PLACE, made(comm, 1), algorithm="ring")
        if RANK == 0:
            signal.signal(signal.SIGALRM, interrupt)
            signal.setitimer(signal.ITIMER_REAL, delay)
            try:
                comm.Allreduce(MPI.IN_PLACE, made(comm, 1), algorithm="ring")
                raise AssertionError("it was not interrupted")
            except Interrupted:
                later = [np.full(2, 5, np.int64) for _ in range(1000)]
            WORLD.send(None, 1)
        else:
            WORLD.recv(source=0)
            try:
                comm.Allreduce(MPI.IN_PLACE, made(comm, 1), algorithm="ring")
                raise AssertionError("rank 0 made no such call")
            except mpicoll.MpicollError as error:
                assert "rank 0" in str(error), error
        WORLD.Barrier()
        WORLD.Allreduce(MPI.IN_PLACE, np.ones(10))
        assert RANK or all((one == 5).all() for one in later)
        comm.Free()


def free():
    """One rank is interrupted in a call that the other has ended, and which now frees the communicator."""
    comm = mpicoll.Communicator(WORLD.Dup())
    x = made(comm, RANK)
    comm.Bcast(x, 1, algorithm="binomial")
    if RANK == 0:
        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            comm.Bcast(x, 0, algorithm="binomial")
            comm.Allreduce(MPI.IN_PLACE, x, algorithm="ring")
            raise AssertionError("it was not interrupted")
        except Interrupted:
            pass
    comm.Free()


#: what a handler interrupts, as methods: how it is called on two arrays
CALLS = {
    "Allreduce": lambda comm, x, y: comm.Allreduce(x, y, algorithm="ring"),
    "Bcast": lambda comm, x, y: comm.Bcast(x, 1, algorithm="binomial"),
    "Reduce": lambda comm, x, y: comm.Reduce(x, y, algorithm="binomial"),
    "Allgather": lambda comm, x, y: comm.Allgather(x[: COUNT // 2], y, algorithm="ring"),
    "Alltoall": lambda comm, x, y: comm.Alltoall(x, y, algorithm="pairwise"),
    "Iallreduce": lambda comm, x, y: comm.Iallreduce(x, y, algorithm="ring").Wait(),
}


def alarms(names=("Allreduce",)):
    """Both ranks come to an error, again and again, wherever the handler raises.

    Where it ends no call, as it raises after them, a call that the other rank does not make does. names: of calls, in random
    order.
    """
    rng = np.random.default_rng(1)
    told = 0
    for number in range(int(os.environ.get("ALARMS", "40"))):
        comm = mpicoll.Communicator(WORLD.Dup())
        x, y = made(comm, 1), made(comm, 1)
        calls = np.random.default_rng(number)
        if RANK == number % 2:
            ALARMED.append(number)
            signal.signal(signal.SIGALRM, interrupt_a_call)
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.001, 0.02))
        is_over = False
        interruptions = 0
        while not is_over:
            try:
                if interruptions < 5:
                    CALLS[names[calls.integers(len(names))]](comm, x, y)
                else:
                    comm.Bcast(x[:7], 1 - RANK, algorithm="binomial")  # a root would wait for nobody
            except Interrupted:
                interruptions += 1  # the call had not begun, or has ended: then the next one is good
            except mpicoll.MpicollError as error:
                is_over = True
                told += RANK != number % 2
                assert RANK == number % 2 or f"rank {number % 2}" in str(error), error
        ALARMED.clear()
        signal.setitimer(signal.ITIMER_REAL, 0)
        comm.Free()
    assert told == (number + 1 + RANK) // 2, told


SCENARIOS = {"late": is_late, "root": lambda: is_late(root=True), "scale": scale, "free": free}
SCENARIOS |= {"alarms": alarms, "random": lambda: alarms(list(CALLS)), "waits": lambda: alarms(["Iallreduce"])}
SCENARIOS[SCENARIO]()
print("done", flush=True)
