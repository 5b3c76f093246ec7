"""Measure what the same bits cost.

    mpiexec -n 2 python -m benchmarks.run.bits --json FILE
    mpicoll cluster --hosts 4 --rate 1gbit --mpi mpich -- \\
        python -m benchmarks.run.bits --link 1gbit --json FILE

The same allreduce of float32, repeated in place, on an ordinary communicator, a deterministic and a
reproducible one, each by what it chooses; they alternate. Times are medians of the maximum over
ranks. `wrong` counts elements that are not as expected.
"""

import argparse
import json

import numpy as np
from mpi4py import MPI

import mpicoll
from benchmarks.run.overhead import compared
from mpicoll.measure import alternate, measured_on, repeats_for
from mpicoll.support.units import format_bytes

SIZES = (64 << 10, 1 << 20, 16 << 20)
MODES = {
    "ordinary": {},
    "deterministic": {"deterministic": True},
    "reproducible": {"reproducible": True},
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--seconds", type=float, default=6.0, help="for each size (default 6)")
    parser.add_argument("--link", default="none", help="the cluster's --rate, for the record")
    parser.add_argument(
        "--placement", default="node", help="the cluster's --placement, for the record"
    )
    arguments = parser.parse_args()
    mpicoll.install_abort_hook()
    comms = {
        mode: mpicoll.Communicator(MPI.COMM_WORLD.Dup(), **options)
        for mode, options in MODES.items()
    }
    facts = measured_on(comms["ordinary"]) | {"link": arguments.link}
    results = [case(comms, nbytes, arguments.seconds) for nbytes in SIZES]
    if MPI.COMM_WORLD.rank == 0:
        print(text(results), flush=True)
        if arguments.json:
            with open(arguments.json, "w", encoding="utf-8") as file:
                json.dump({"schema": 1, "environment": facts, "results": results}, file, indent=1)


def case(comms, nbytes, seconds):
    """All modes at one size."""
    vectors = {mode: np.zeros(nbytes // 4, np.float32) for mode in comms}
    calls = {
        mode: lambda comm=comm, mode=mode: comm.Allreduce(MPI.IN_PLACE, vectors[mode])
        for mode, comm in comms.items()
    }
    repeats = repeats_for(comms["ordinary"], calls, seconds, least=7)
    figures = compared(
        alternate(comms["ordinary"], calls, repeats), "ordinary", ("deterministic", "reproducible")
    )
    chosen = {
        mode: comm.explain("allreduce", vectors[mode]).algorithm for mode, comm in comms.items()
    }
    return {
        "bytes": nbytes,
        "repeats": repeats,
        "algorithms": chosen,
        "wrong": wrong(comms, nbytes),
        **figures,
    }


def wrong(comms, nbytes):
    """Elements of all modes that are not the sum, on any rank."""
    found = 0
    size = MPI.COMM_WORLD.size
    for comm in comms.values():
        vector = np.arange(nbytes // 4, dtype=np.float32) % 1000 + comm.rank
        expected = (vector - comm.rank) * size + size * (size - 1) // 2
        comm.Allreduce(MPI.IN_PLACE, vector)
        found += int((vector != expected).sum())
    return MPI.COMM_WORLD.allreduce(found)


def text(results):
    """The figures for a person."""
    lines = []
    for row in results:
        modes = "  ".join(
            f"{mode} x{row[f'{mode}_ratio']:.2f} ({row['algorithms'][mode]})"
            for mode in list(MODES)[1:]
        )
        first = f"{row['ordinary']['median_us']:12.1f} us ({row['algorithms']['ordinary']})"
        lines.append(
            f"{format_bytes(row['bytes']):>6} ordinary {first}  {modes}  wrong {row['wrong']}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
