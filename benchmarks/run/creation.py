"""Measure what making communicators costs.

    mpiexec -n 16 python -m benchmarks.run.creation --json FILE

The first communicator of a handle, a duplicate with its end, and a part with its end, beside those
of plain mpi4py; they alternate. Times are medians of the maximum over ranks. Rank 0 also reports
its open file descriptors and the modules that `import mpicoll` and the first communicator have
brought in.
"""

import argparse
import json
import os
import sys
import time
from functools import partial

from mpi4py import MPI

import numpy  # noqa: F401  its modules are not counted

#: communicators that a split makes
PARTS = 2


def modules():
    """The names of all modules that are loaded."""
    return set(sys.modules)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    before = modules()
    import mpicoll
    from mpicoll.measure import alternate, measured_on, statistics

    world = MPI.COMM_WORLD
    world.Barrier()
    start = time.perf_counter()
    comm = mpicoll.Communicator(world)
    first = world.allreduce(time.perf_counter() - start, MPI.MAX)
    loaded = modules() - before
    descriptors = len(os.listdir("/proc/self/fd"))
    handles = [world.Dup() for _ in range(arguments.repeats)]  # each gets its first communicator
    made = iter(handles)
    plain = world.Dup()
    candidates = {
        "create": lambda: mpicoll.Communicator(next(made)),
        "plain_dup": plain.Dup,
        "dup_free": lambda: comm.Dup().Free(),
        "plain_dup_free": lambda: plain.Dup().Free(),
        "split_free": partial(split_and_free, comm),
        "plain_split_free": partial(split_and_free, plain),
    }
    times = alternate(world, candidates, arguments.repeats)
    results = {name: statistics(of_one) for name, of_one in times.items()}
    own = sum(name.partition(".")[0] == "mpicoll" for name in loaded)
    document = {
        "schema": 1, "environment": measured_on(world), "repeats": arguments.repeats,
        "first_ms": round(first * 1e3, 3), "descriptors": descriptors,
        "modules": {"own": own, "others": len(loaded) - own}, "results": results,
    }  # fmt: skip
    if world.rank == 0:
        print(text(document), flush=True)
        if arguments.json:
            with open(arguments.json, "w", encoding="utf-8") as file:
                json.dump(document, file, indent=1)


def split_and_free(comm):
    """Make and free communicators of half of the ranks each."""
    comm.Split(comm.rank % PARTS, comm.rank).Free()


def text(document):
    """The figures for a person."""
    median = {name: figures["median_us"] / 1e3 for name, figures in document["results"].items()}
    own, others = document["modules"]["own"], document["modules"]["others"]
    first, descriptors = document["first_ms"], document["descriptors"]
    lines = [f"first {first:.1f} ms, {descriptors} descriptors, {own} + {others} modules"]
    pairs = {"create": "plain_dup", "dup_free": "plain_dup_free", "split_free": "plain_split_free"}
    for name, plain in pairs.items():
        ours, theirs = median[name], median[plain]
        lines.append(f"{name:10} {ours:8.2f} ms, {plain:16} {theirs:8.2f} ms, x{ours / theirs:.2f}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
