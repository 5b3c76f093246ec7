"""Jobs of two ranks in which one waits where nobody looks: python waits.py SCENARIO.

Each rank prints "done" at its end.

Waitall, Waitany, Waitsome, Testall, Wait: for a collective that rank 1 never makes.
stopped: rank 0 is, for longer than its limit.
exit: for a collective that rank 1 makes in a function of `atexit` that was registered first.
small, watched: in a call of MPI's own on a communicator that rank 0 has given up; the job ends.
descriptors N: rank 1 has N descriptors left.
"""

import atexit
import os
import resource
import signal
import subprocess
import sys
import time

import numpy as np
from mpi4py import MPI

WORLD = MPI.COMM_WORLD
RANK = WORLD.Get_rank()
SCENARIO, *MORE = sys.argv[1:]
REQUESTS = []
x = np.ones(1000)


def at_exit():
    """What is registered before anything of mpicoll's."""
    if SCENARIO == "exit":
        if RANK == 1:
            WORLD.recv(source=0)
            REQUESTS.append(comm.Iallreduce(MPI.IN_PLACE, x, algorithm="ring"))
        else:
            WORLD.send(None, 1)
        MPI.Request.Waitall(REQUESTS)
        assert (x == 2).all()
        comm.Iallreduce(MPI.IN_PLACE, x).Wait()
        comm.Free()
        print("done", flush=True)


atexit.register(at_exit)

import mpicoll  # noqa: E402
from mpicoll import Communicator  # noqa: E402


def by_testall(requests):
    while not MPI.Request.Testall(requests):
        pass


WAYS = {name: getattr(MPI.Request, name) for name in ("Waitall", "Waitany", "Waitsome")}
WAYS |= {"Testall": by_testall, "Wait": lambda requests: requests[0].Wait()}


def nobody_comes():
    """The limit ends the request, whoever waits for it."""
    comm = Communicator(WORLD.Dup(), timeout=1000)
    for _ in range(2):
        comm.Iallreduce(MPI.IN_PLACE, x, algorithm="ring").Wait()
    Communicator(comm, timeout=0.5)  # from here on: a busy machine is slow to start all ranks
    if RANK == 1:
        WORLD.recv(source=0)
    else:
        vectors = np.ones((4, 1000))
        requests = [comm.Iallreduce(MPI.IN_PLACE, one, algorithm="ring") for one in vectors]
        error = None
        try:
            WAYS[SCENARIO](requests)
        except (MPI.Exception, mpicoll.CollectiveTimeout) as raised:
            error = raised
        kind = mpicoll.CollectiveTimeout if SCENARIO == "Wait" else MPI.Exception
        assert isinstance(error, kind), error
        try:
            comm.Allreduce(MPI.IN_PLACE, x)
            raise AssertionError("the communicator was given up")
        except mpicoll.MpicollError as later:
            assert "no progress for" in str(later), later
        WORLD.send(None, 1)


def stopped():
    """Rank 1 comes when rank 0 goes on: both in the request's Wait, and in a blocking call."""
    limit = 5
    comm = Communicator(WORLD.Dup(), timeout=1000)
    comm.Allreduce(MPI.IN_PLACE, x, algorithm="ring")
    pid = WORLD.bcast(os.getpid())
    Communicator(comm, timeout=limit)
    for blocking in (False, True):
        WORLD.Barrier()
        if RANK == 0:
            script = f"sleep 0.5; kill -STOP {pid}; sleep {limit + 1}; kill -CONT {pid}"
            stopper = subprocess.Popen(["sh", "-c", script])
        else:
            wait_for_state(pid, "T", True)
            wait_for_state(pid, "T", False)
        if blocking:
            comm.Allreduce(MPI.IN_PLACE, x, algorithm="ring")
        else:
            comm.Iallreduce(MPI.IN_PLACE, x, algorithm="ring").Wait()
        if RANK == 0:
            stopper.wait()
    assert (x == 8).all()


def wait_for_state(pid, state, expected):
    """Until a process is stopped, or no longer."""
    while (open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] == state) != expected:
        time.sleep(0.01)


class Interrupted(Exception):
    """What the handler raises."""


def interrupt(number, frame):
    raise Interrupted


def given_up():
    """Rank 0 is interrupted in a schedule, rank 1 waits in a call of MPI's own."""
    comm = Communicator(WORLD.Dup(), timeout=1000 if "timeout" in MORE else None)
    few, many = np.ones(1), np.ones(100_000)
    for _ in range(3):  # met before, the next one passes a door
        comm.Allreduce(MPI.IN_PLACE, few, algorithm="native")
        comm.Allreduce(MPI.IN_PLACE, many, algorithm="ring")
        comm.Barrier(algorithm="native")
    if RANK == 0:
        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            comm.Allreduce(MPI.IN_PLACE, many, algorithm="ring")
            raise AssertionError("it was not interrupted")
        except Interrupted:
            print("interrupted", flush=True)
        Communicator(WORLD.Dup())
    elif SCENARIO == "small":
        comm.Allreduce(MPI.IN_PLACE, few, algorithm="native")
    else:
        comm.Barrier(algorithm="native")


def without_descriptors():
    """Either both ranks raise the same error, or all calls work."""
    left = int(MORE[0])
    WORLD.Barrier()
    if RANK == 1:
        top = max(map(int, os.listdir("/proc/self/fd"))) + 1
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (top + left + 1, hard))
        taken = []
        try:
            while True:
                taken.append(os.dup(2))
        except OSError:
            pass
        for one in taken[len(taken) - left :]:
            os.close(one)
    try:
        comm = Communicator(WORLD)
    except mpicoll.MpicollError as error:
        assert left == 0 and "rank 1 cannot make a communicator" in str(error), error
        print("refused", flush=True)
        return
    for many in (np.ones(1), np.ones(1000), np.ones(300_000)):
        for one in (comm, comm.Dup(), comm.Split(0)):
            comm.Allreduce(MPI.IN_PLACE, many)
            one.Allreduce(MPI.IN_PLACE, many, algorithm="ring")
            one.Iallreduce(MPI.IN_PLACE, many, algorithm="ring").Wait()
            assert (many == many[0]).all()
            many[:] = 1


if SCENARIO == "exit":
    comm = Communicator(WORLD.Dup())
    if RANK == 0:
        REQUESTS.append(comm.Iallreduce(MPI.IN_PLACE, x, algorithm="ring"))
else:
    scenarios = {"stopped": stopped, "small": given_up, "watched": given_up}
    scenarios["descriptors"] = without_descriptors
    scenarios.get(SCENARIO, nobody_comes)()
    print("done", flush=True)
