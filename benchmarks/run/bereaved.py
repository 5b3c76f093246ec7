"""The job of `after_death`: random calls that go on with fewer ranks after deaths.

    mpirun --with-ft ulfm -n 3 python -m benchmarks.run.dying DEATHS benchmarks.run.bereaved SEED

After each RankFailure the arrays of the calls that were given up are written to, and must stay as
they are to the end. Ranks come late by chance, so that some are still in a call that others left.
"""

import sys
import time
from random import Random
from typing import Any

import numpy as np
from mpi4py import MPI

from mpicoll import Communicator, RankFailure

from .killed import ALGORITHMS, arguments, check, fill

#: calls of a job, and seconds by which a rank may be late
CALLS = 150
LATE = 2e-3
LENGTHS = (1, 1000, 30_000, 300_000)


def main() -> None:
    seed = int(sys.argv[1])
    comm = Communicator(MPI.COMM_WORLD.Dup())
    own = Random(seed * 1009 + comm.rank)
    kept: list[tuple[np.ndarray, int, str]] = []
    number = 0
    while number < CALLS:
        arrays: list[tuple[np.ndarray, str]] = []
        try:
            if own.random() < 0.3:
                time.sleep(own.random() * LATE)
            some_calls(comm, Random(seed * 7919 + number), arrays)
            number += 1
        except RankFailure:
            for array, call in arrays:
                array[:] = number + 100
                kept.append((array, number + 100, call))
            comm, number = going_on(comm, number)
    comm.Barrier()
    for array, value, call in kept:
        changed = np.flatnonzero(array != value)
        assert not changed.size, (
            f"an array changed after it was written to: {value}, {np.unique(array)}, "
            f"{changed.size} elements from {changed[0]} on of {array.size}, {call}"
        )
    print(f"done, {len(kept)} arrays kept", flush=True)


def going_on(comm: Communicator, number: int) -> tuple[Communicator, int]:
    """The communicator of those that live, and the call that all of them make next."""
    while True:
        try:
            comm = comm.shrink()
            return comm, comm.allreduce(number, MPI.MAX) + 1
        except RankFailure:  # one more died
            continue


def some_calls(comm: Communicator, random: Random, arrays: list[tuple[np.ndarray, str]]) -> None:
    """One call, or several that do not block; their arrays are entered before they begin."""
    begun: list[tuple[Any, ...]] = []
    plans = []
    for _ in range(random.choice((1, 1, 2, 3))):
        method = random.choice(list(ALGORITHMS))
        algorithm = random.choice(ALGORITHMS[method])
        count = random.choice(LENGTHS)
        make = random.choice((np.empty, comm.empty))
        send = make(comm.size * count if method == "Reduce_scatter_block" else count)
        receive = make(comm.size * count if method == "Allgather" else count)
        fill(comm, method, send, receive)
        given = arguments(method, send, receive)
        form = random.choice(("blocking", "begin", "plan"))
        call = f"of {method} ({algorithm}), {form}, {make.__qualname__}"
        arrays += [(send, f"sent {call}"), (receive, f"received {call}")]
        if form == "blocking":
            getattr(comm, method)(*given, algorithm=algorithm)
            check(comm, method, receive)
        elif form == "begin":
            begun.append(
                (getattr(comm, f"I{method.lower()}")(*given, algorithm=algorithm), method, receive)
            )
        else:
            plan = getattr(comm, f"{method}_init")(*given, algorithm=algorithm)
            plan.Start()
            begun.append((plan, method, receive))
            plans.append(plan)
    for request, method, receive in begun:
        request.Wait()
        check(comm, method, receive)
    for plan in plans:
        plan.Free()


if __name__ == "__main__":
    main()
