"""Calls by the hundred thousand that must leave nothing behind.

    mpiexec -n 2 python -m benchmarks.run.soak --json FILE

Blocking and non-blocking calls, plans, and communicators, as in `tests.support.leaks`. Each kind is
made on a communicator of its own; counted are resident memory after the first twentieth and at the
end, objects, files and threads before and after, and the time of a call in the first and in the
last tenth. Memory may grow by 1 %, but not that of MPI's own plans: Open MPI 5.0 keeps 24 KiB of
each, also where mpi4py makes them alone, which is measured beside it.
"""

import argparse
import json
import os
from pathlib import Path
from time import perf_counter

from mpi4py import MPI

import mpicoll
from mpicoll.measure import measured_on
from tests.support import leaks

CALLS = {"blocking": 100_000, "nonblocking": 100_000, "plans": 10_000, "communicators": 2000}
#: what MPI does alone, to be compared
OF_MPI = {"native_plans": 1000, "mpi4py_plans": 1000}
#: calls that fill what is kept for all later ones
FIRST = 200
#: by how much resident memory may grow
LIMIT = 0.01


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--scale", type=float, default=1.0, help="of all numbers of calls (default 1)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    mpicoll.install_abort_hook()
    world = MPI.COMM_WORLD
    facts = measured_on(world)
    for name in {**CALLS, **OF_MPI}:
        soak(world, name, FIRST)
    results = [
        soak(world, name, int(calls * options.scale)) for name, calls in {**CALLS, **OF_MPI}.items()
    ]
    if world.Get_rank() == 0:
        for row in results:
            print(
                "{what:14}{calls:8} calls, resident {resident_mib[0]:.1f} to {resident_mib[1]:.1f}"
                " MiB (x{growth:.4f}), {first_us:.1f} us, at the end {last_us:.1f} us, left: {left}"
                .format(**row),
                flush=True,
            )
        if options.json:
            options.json.write_text(
                json.dumps({"schema": 1, "environment": facts, "results": results}, indent=1)
                + "\n",
                encoding="utf-8",
            )
        if any(
            row["left"] or row["what"] in CALLS and row["growth"] > 1 + LIMIT for row in results
        ):
            world.Abort(1)


def soak(world, what, calls):
    """So many calls of a kind: the figures of the rank whose memory grew most, and what is left on
    any.
    """
    before = leaks.counted()
    times, memory = made(world, what, calls)
    left = world.allgather(leaks.left_over(before))
    growth, memory = max(world.allgather((memory[1] / memory[0], memory)))
    return {
        "what": what,
        "calls": 10 * (calls // 10),
        "resident_mib": memory,
        "growth": round(growth, 5),
        "first_us": times[0],
        "last_us": times[-1],
        "us_by_tenths": times,
        "left": next(filter(None, left), {}),
    }


def made(world, what, calls):
    """Make them: microseconds of a call in each tenth, and resident memory after a twentieth and at
    the end.
    """
    comm = mpicoll.Communicator(world.Dup())
    call = leaks.ALL[what](comm)
    tenth = calls // 10
    times = []
    warm = 0.0
    for start in range(0, 10 * tenth, tenth):
        began = perf_counter()
        for number in range(start, start + tenth):
            call(number)
            if number == calls // 20:
                warm = resident()
        times.append(round((perf_counter() - began) / tenth * 1e6, 2))
    memory = [round(warm, 2), round(resident(), 2)]
    comm.Free()
    return times, memory


def resident():
    """MiB of this process that lie in memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


if __name__ == "__main__":
    main()
