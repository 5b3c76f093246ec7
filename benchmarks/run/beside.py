"""What an allreduce adds to a computation beside which it runs.

    mpicoll cluster --hosts 2 --rate 1gbit --mpi mpich -- \\
        python -m benchmarks.run.beside --link 1gbit --json FILE

The computation is a product of matrices, which leaves the interpreter to others, or a loop in
Python, which does not. It takes as long as the allreduce alone, and half as long again. By turns:
the computation alone (`alone`), a blocking call after it (`after`), and calls that do not block
beside it, ours by an algorithm and MPI's own. Times are the maximum over ranks, of processors the
mean; medians. `added`: beyond `alone`. `wait`: in Wait, after the computation.
"""

import argparse
import json
from statistics import median
from time import perf_counter, process_time

import numpy as np
from mpi4py import MPI

from mpicoll import Communicator, install_abort_hook
from mpicoll.cli.options import parse_sizes
from mpicoll.measure import measured_on
from mpicoll.support.units import format_bytes

#: rows of the matrices: a product takes about 1 ms
ROWS = 200


def product():
    """Multiply matrices, one piece of the work."""
    return MATRIX @ MATRIX


def loop():
    """Add in Python, one piece of the work."""
    total = 0
    for number in range(20_000):
        total += number
    return total


WORK = {"matmul": product, "python": loop}
MATRIX = np.ones((ROWS, ROWS))


def main():
    """Measure, print, write."""
    install_abort_hook()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--sizes", default="1K,64K,1M,4M")
    add("--algorithm", default="ring")
    add("--rounds", type=int, default=15)
    add("--link", default="none", help="the cluster's --rate, for the record")
    add("--json")
    options = parser.parse_args()
    comm = Communicator(MPI.COMM_WORLD)
    facts = measured_on(comm) | {"link": options.link}
    rows = [
        row
        for name in WORK
        for nbytes in parse_sizes(options.sizes)
        for row in _measured(comm, name, nbytes, options)
    ]
    if comm.Get_rank() == 0 and options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"schema": 1, "environment": facts, "results": rows}, file, indent=1)


def _measured(comm, name, nbytes, options):
    x = np.ones(nbytes // 4, np.float32)
    y = np.empty_like(x)
    algorithm = options.algorithm

    def blocking():
        comm.Allreduce(x, y, algorithm=algorithm)

    calls = {
        "ours": lambda: comm.Iallreduce(x, y, algorithm=algorithm),
        "native": lambda: comm.Iallreduce(x, y, algorithm="native"),
    }
    blocking()
    pieces = _pieces(comm, WORK[name], blocking)

    def compute():
        for _ in range(pieces):
            WORK[name]()

    found = {}
    for number in range(options.rounds + 1):
        for word in ("alone", "after", *calls):
            took = _one(comm, compute, calls.get(word), blocking if word == "after" else None)
            assert word == "alone" or (y == comm.Get_size()).all()
            y[:] = 0
            if number:  # the first one binds
                found.setdefault(word, []).append(took)
    rows = []
    for word, times in found.items():
        wall, cpu, wait = (median(column) for column in zip(*times))
        rows.append({
            "work": name, "bytes": nbytes, "algorithm": word, "wall_ms": wall * 1e3,
            "core_ms": cpu * 1e3, "wait_ms": wait * 1e3,
        })  # fmt: skip
        if comm.Get_rank() == 0:
            added, cores = (rows[-1][key] - rows[0][key] for key in ("wall_ms", "core_ms"))
            print(
                f"{name:7}{format_bytes(nbytes):>5} {word:7} {wall * 1e3:8.2f} ms,"
                f" added {added:7.2f}, of cores {cores:7.2f}, in Wait {wait * 1e3:7.2f}",
                flush=True,
            )
    return rows


def _pieces(comm, piece, blocking):
    """How often the piece of work fits into the time of one call and a half."""

    def seconds(function):
        comm.Barrier()
        begin = perf_counter()
        for _ in range(5):
            function()
        return (perf_counter() - begin) / 5

    pieces = max(1, round(1.5 * seconds(blocking) / seconds(piece)))
    return comm.bcast(pieces)


def _one(comm, compute, begin, after):
    """(seconds, of processors, in Wait) of one turn."""
    MPI.COMM_WORLD.Barrier()
    start, cores = perf_counter(), process_time()
    request = begin and begin()
    compute()
    computed = perf_counter()
    if request:
        request.Wait()
    if after:
        after()
    end = perf_counter()
    own = np.array([end - start, process_time() - cores, end - computed])
    most, mean = np.empty(3), np.empty(3)
    MPI.COMM_WORLD.Allreduce(own, most, MPI.MAX)
    MPI.COMM_WORLD.Allreduce(own, mean)
    return most[0], mean[1] / comm.Get_size(), most[2]


if __name__ == "__main__":
    main()
