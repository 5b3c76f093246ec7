"""Measure what watching over calls costs.

    mpiexec -n 2 python -m benchmarks.run.checks --json FILE

The same allreduce, repeated on the same memory, on communicators that compare their calls never,
the first time, and always, and on one with a limit of waiting; they alternate. Times are medians of
the maximum over ranks.
"""

import argparse
import json

import numpy as np
from mpi4py import MPI

import mpicoll
from benchmarks.run.overhead import compared
from mpicoll.measure import alternate, measured_on, repeats_for
from mpicoll.support.units import format_bytes

#: bytes, and the algorithm that serves them
CASES = [
    (8, None),
    (16 << 10, "ring"),
    (64 << 10, "ring"),
    (1 << 20, "ring"),
    (16 << 20, "ring"),
    (64 << 10, "native"),
    (1 << 20, "native"),
]
#: small calls in a row: "always" compares one of 512 of them, so that each sample has some of these
SMALL = 1024
MODES = {
    "off": {"check": "off"},
    "first": {"check": "first"},
    "always": {"check": "always"},
    "timeout": {"check": "off", "timeout": 600},
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each case (default 4)")
    arguments = parser.parse_args()
    mpicoll.install_abort_hook()
    comms = {
        mode: mpicoll.Communicator(MPI.COMM_WORLD.Dup(), **options)
        for mode, options in MODES.items()
    }
    facts = measured_on(comms["off"])
    results = [case(comms, *one, arguments.seconds) for one in CASES]
    if MPI.COMM_WORLD.rank == 0:
        print(text(results), flush=True)
        if arguments.json:
            with open(arguments.json, "w", encoding="utf-8") as file:
                json.dump({"schema": 1, "environment": facts, "results": results}, file, indent=1)


def case(comms, nbytes, algorithm, seconds):
    """All modes at one size."""
    vector = np.zeros(max(1, nbytes // 8))
    result = np.zeros_like(vector)
    calls = {
        mode: lambda comm=comm: comm.Allreduce(vector, result, algorithm=algorithm)
        for mode, comm in comms.items()
    }
    many = max(1, min(100, (1 << 20) // nbytes)) if algorithm else SMALL
    repeats = repeats_for(comms["off"], calls, seconds, calls=many, least=20)
    figures = compared(
        alternate(comms["off"], calls, repeats, calls=many), "off", ("first", "always", "timeout")
    )
    return {"bytes": nbytes, "algorithm": algorithm, "repeats": repeats, "calls": many, **figures}


def text(results):
    """The figures for a person."""
    lines = []
    for row in results:
        ratios = "  ".join(
            f"{mode} x{row[f'{mode}_ratio']:.3f}" for mode in ("first", "always", "timeout")
        )
        word = row["algorithm"] or "chosen"
        lines.append(
            f"{format_bytes(row['bytes']):>6} {word:8} off {row['off']['median_us']:10.2f} us "
            f" {ratios}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
