"""Ranks of which one has signals that raise while it waits: python handlers.py SCENARIO ARRAYS.

ARRAYS: shared (`comm.empty`), or ordinary. Each rank prints "done" where results are right.
"""

import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.engine import compiled_program
from mpicoll.progress import rhythm

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()
SCENARIO, ARRAYS = sys.argv[1:]
LAST = SIZE - 1
#: what ranks tell each other without MPI, by the names of files
FOLDER = Path(WORLD.bcast(tempfile.mkdtemp() if RANK == 0 else None))


class Interrupted(Exception):
    """What the handler raises."""

    def __init__(self):
        super().__init__()
        self.at = time.perf_counter()


def interrupt(number, frame):
    """Raise while the call waits; elsewhere in it, where a busy machine may have this, try again a little later."""
    waits = frame.f_code.co_name in ("_execute", "_watch") or frame.f_code.co_filename == rhythm.__file__
    if not waits:
        signal.setitimer(signal.ITIMER_REAL, 0.003)
        return
    error = Interrupted()  # its time is noted before the last rank may hear of it
    (FOLDER / "interrupted").touch()
    raise error


def wait_for(name):
    """Wait until rank 0 has told that."""
    while not (FOLDER / name).exists():
        time.sleep(0.01)
    (FOLDER / name).unlink()


def summed(comm, x, algorithm):
    x[:] = RANK + 1
    comm.Allreduce(MPI.IN_PLACE, x, algorithm=algorithm)
    assert (x == SIZE * (SIZE + 1) // 2).all(), x


def ends_first(count, calls_before, late=0.2, alarm=0.1):
    """The last rank is late; a handler raises on rank 0 before: after the call, whose result is right; so are later ones."""
    comm = mpicoll.Communicator(WORLD.Dup())
    x = comm.empty(count) if ARRAYS == "shared" else np.empty(count)
    for algorithm in ("ring", "recursive_doubling", "reduce_bcast"):
        for _ in range(calls_before):
            summed(comm, x, algorithm)
        x[:] = RANK + 1
        error = None
        WORLD.Barrier()
        if RANK == 0:
            signal.setitimer(signal.ITIMER_REAL, alarm)
        if RANK == LAST:
            wait_for("interrupted")
            time.sleep(late)
        try:
            comm.Allreduce(MPI.IN_PLACE, x, algorithm=algorithm)
        except Interrupted as raised:
            error = raised
        assert (error is not None) == (RANK == 0), error
        assert RANK or time.perf_counter() - error.at >= late
        assert (x == SIZE * (SIZE + 1) // 2).all(), (algorithm, x)
        for _ in range(3):
            summed(comm, x, algorithm)
    comm.Free()


def first():
    """Calls that ranks have never made are compared first; the second time they are bound already."""
    for count in (1, 300_000):
        for calls_before in (0, 1):
            ends_first(count, calls_before)


def repeated():
    """They go through doors, where there are some."""
    for count in (1, 1000, 300_000):
        ends_first(count, calls_before=5)


def stuck():
    """The last rank never comes: after a second the call ends, and all others are told."""
    for calls_before in (1, 5):
        comm = mpicoll.Communicator(WORLD.Dup())
        x = comm.empty(1000) if ARRAYS == "shared" else np.empty(1000)
        for _ in range(calls_before):
            summed(comm, x, "ring")
        WORLD.Barrier()
        begun = time.perf_counter()
        if RANK == 0:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
        if RANK == LAST:
            wait_for("over")
        try:
            comm.Allreduce(MPI.IN_PLACE, x, algorithm="ring")
            raise AssertionError("it ended")
        except Interrupted:
            assert RANK == 0 and time.perf_counter() - begun > 0.9
            (FOLDER / "over").touch()
        except mpicoll.MpicollError as error:
            assert RANK and "rank 0" in str(error), error
        comm.Free()


signal.signal(signal.SIGALRM, interrupt)
if SCENARIO != "stuck":  # however late a busy machine makes the last rank, the call waits for it
    compiled_program._LONG = 1000
{"first": first, "repeated": repeated, "stuck": stuck}[SCENARIO]()
WORLD.Barrier()
if RANK == 0:
    shutil.rmtree(FOLDER)
print("done", flush=True)
