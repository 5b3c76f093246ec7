"""What a user's calls take (small, repeated, first, bound) as a line of JSON.

    mpiexec -n 2 python benchmarks/run/calls.py

It uses nothing but the public interface, so that `versions` can run it on any version of mpicoll:
on the one that is imported first. Microseconds, the median over repetitions of the maximum over
ranks.
"""

import json
from collections.abc import Callable
from statistics import median
from time import perf_counter

import numpy as np
from mpi4py import MPI

import mpicoll

REPEATS = 15


def main() -> None:
    mpicoll.install_abort_hook()
    comm = mpicoll.Communicator(MPI.COMM_WORLD)
    few = np.zeros(1)
    many = np.zeros(16 << 10, np.float32)
    found = {
        "allreduce of 8 bytes": timed(comm, lambda: comm.Allreduce(MPI.IN_PLACE, few), calls=2000),
        "repeated allreduce of 64 KiB": timed(
            comm, lambda: comm.Allreduce(MPI.IN_PLACE, many, algorithm="ring"), calls=200
        ),
        "first allreduce on a new communicator": first(comm, many),
        "plan for 64 KiB: made, run, freed": timed(comm, lambda: plan(comm, many), calls=20),
    }
    if comm.Get_rank() == 0:
        print(json.dumps({"mpicoll": mpicoll.__file__, "microseconds": found}), flush=True)


def timed(comm: mpicoll.Communicator, function: Callable[[], object], calls: int) -> float:
    """Microseconds of one call, of so many in a row."""
    function()
    return median(_slowest(comm, function, calls) for _ in range(REPEATS))


def first(comm: mpicoll.Communicator, vector: np.ndarray) -> float:
    """Microseconds of the first scheduled call, with all that a communicator prepares once."""
    times = []
    for _ in range(REPEATS):
        own = comm.Dup()
        times.append(
            _slowest(comm, lambda: own.Allreduce(MPI.IN_PLACE, vector, algorithm="ring"), 1)
        )
        own.Free()
    return median(times)


def plan(comm: mpicoll.Communicator, vector: np.ndarray) -> None:
    """Bind a schedule, run it once."""
    bound = comm.Allreduce_init(MPI.IN_PLACE, vector, algorithm="ring")
    bound.Start()
    bound.Wait()
    bound.Free()


def _slowest(comm: mpicoll.Communicator, function: Callable[[], object], calls: int) -> float:
    comm.Barrier()
    start = perf_counter()
    for _ in range(calls):
        function()
    seconds: float = comm.allreduce(perf_counter() - start, op=MPI.MAX)
    return seconds / calls * 1e6


if __name__ == "__main__":
    main()
