"""Inside a node, schedules in several ways beside MPI's own call.

    mpiexec -n 2 python -m benchmarks.run.shared_memory

A call without options; through MPI; on ordinary arrays, by reading where the other ranks have copied
them to; and on arrays of `comm.empty`, by reading them where they lie; these with `direct` too, which
also writes there.
Inputs are rewritten before every call and results read after it, outside the measured time: a loop
that never touches its data measures caches that no program has. Candidates alternate; times are
medians of the slowest rank, and every element is checked. `--row 20`: each time is the median of
20 calls in a row, as programs repeat them. A lone call finds the caches that other candidates left,
and the clock is read before and after it: that is more than a call of 8 bytes takes.
"""

import argparse
import json
import os
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.measure import alternate, in_turn, measured_on, repeats_for, statistics
from mpicoll.support.units import parse_bytes

SIZES = "8,1K,16K,64K,256K,1M,4M,16M,64M"
#: rows of calls of each candidate
ROWS = 101
ALGORITHM = "circulant"
THROUGH_MPI = "through MPI"
ORDINARY = "ordinary arrays"
SHARED = "shared arrays"
NATIVE = "native"
DIRECT = "shared arrays, direct"
#: without options, on ordinary arrays
AUTO = "auto"
WORDS = {NATIVE: {}, AUTO: {}, DIRECT: {"algorithm": "direct"}}
COLLECTIVES = (
    "allreduce", "reduce_scatter", "allgather", "bcast", "reduce", "scan", "exscan", "barrier",
)  # fmt: skip
#: of ours, where it is not ALGORITHM
ALGORITHMS = {"scan": "pipeline", "exscan": "pipeline", "barrier": "dissemination"}


class Case:
    """One collective on so many bytes, for one candidate. calls: what is measured; wrong: elements,
    after a call.
    """

    def __init__(self, comm: mpicoll.Communicator, collective: str, nbytes: int, name: str) -> None:
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()
        self.collective = collective
        count = max(1, nbytes // 4 // self.size) * self.size
        make = comm.empty if name in (SHARED, DIRECT) else np.empty
        self.vector = make(count, np.float32)
        self.block = make(count // self.size, np.float32)
        plain = MPI.Intracomm(comm)
        word = WORDS.get(name, {"algorithm": ALGORITHMS.get(collective, ALGORITHM)})
        serving: Any = plain if name == NATIVE else comm
        calls: dict[str, Callable[[], object]] = {
            "allreduce": lambda: serving.Allreduce(MPI.IN_PLACE, self.vector, **word),
            "reduce_scatter": lambda: serving.Reduce_scatter_block(self.vector, self.block, **word),
            "allgather": lambda: serving.Allgather(self.block, self.vector, **word),
            "bcast": lambda: serving.Bcast(self.vector, **word),
            "reduce": lambda: serving.Reduce(
                self.vector if self.rank else MPI.IN_PLACE,
                None if self.rank else self.vector,
                **word,
            ),
            "scan": lambda: serving.Scan(MPI.IN_PLACE, self.vector, **word),
            "exscan": lambda: serving.Exscan(MPI.IN_PLACE, self.vector, **word),
            "barrier": lambda: serving.Barrier(**word),
        }
        self.call = calls[collective]
        self.result = self.block if collective == "reduce_scatter" else self.vector
        self.wrong = 0

    def rewrite(self) -> None:
        """What every program does before a call."""
        self.vector.fill(self.rank + 1)
        self.block.fill(self.rank + 1)

    def timed(self) -> float:
        """The seconds of a call."""
        self.rewrite()
        start = perf_counter()
        self.call()
        seconds = perf_counter() - start
        self.read()
        return seconds

    def read(self) -> None:
        """And after it."""
        wanted = self.size * (self.size + 1) // 2
        has_own = self.collective == "barrier" or (self.collective == "reduce" and self.rank)
        if has_own or (self.collective == "exscan" and not self.rank):
            wanted = self.rank + 1
        elif self.collective in ("scan", "exscan"):
            terms = self.rank + (self.collective == "scan")
            wanted = terms * (terms + 1) // 2
        if self.collective != "allgather":
            self.wrong += int(
                np.count_nonzero(self.result != (1 if self.collective == "bcast" else wanted))
            )
        else:
            rows = self.result.reshape(self.size, -1)
            self.wrong += int(
                np.count_nonzero(rows != np.arange(1, self.size + 1, dtype=np.float32)[:, None])
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--collective", choices=COLLECTIVES, default="allreduce")
    parser.add_argument("--sizes", help=f"bytes of the vector (default {SIZES}; of a barrier 8)")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each size (default 2)")
    parser.add_argument("--row", type=int, metavar="N", help="calls in a row (default 1)")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    mpicoll.install_abort_hook()
    os.environ["MPICOLL_SHARED_MEMORY"] = "off"
    through_mpi = mpicoll.Communicator(MPI.COMM_WORLD.Dup())
    os.environ["MPICOLL_SHARED_MEMORY"] = "on"
    comm = mpicoll.Communicator(MPI.COMM_WORLD)
    results = []
    sizes = arguments.sizes or ("8" if arguments.collective == "barrier" else SIZES)
    for nbytes in map(parse_bytes, sizes.split(",")):
        names = {
            NATIVE: comm, AUTO: comm, THROUGH_MPI: through_mpi, ORDINARY: comm, SHARED: comm,
        }  # fmt: skip
        if "direct" in mpicoll.list_algorithms(arguments.collective):
            names[DIRECT] = comm
        cases = {name: Case(own, arguments.collective, nbytes, name) for name, own in names.items()}
        results += measured(comm, cases, arguments, nbytes)
    facts = measured_on(comm)
    if comm.Get_rank() == 0 and arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"schema": 1, "environment": facts, "results": results}, file, indent=1)


def times_of(
    comm: mpicoll.Communicator, cases: dict[str, Case], arguments: argparse.Namespace
) -> dict[str, Any]:
    """The times of each candidate."""

    def of_a_row(name: str, _: int) -> float:
        comm.Barrier()
        return float(np.median([cases[name].timed() for _ in range(arguments.row)]))

    if arguments.row:
        return in_turn(comm, list(cases), ROWS, of_a_row)
    calls = {name: case.call for name, case in cases.items()}
    before = lambda name, _: cases[name].rewrite()
    after = lambda name, _: cases[name].read()
    repeats = repeats_for(comm, calls, arguments.seconds, before, after, least=9)
    return alternate(comm, calls, repeats, before, after)


def measured(
    comm: mpicoll.Communicator, cases: dict[str, Case], arguments: argparse.Namespace, nbytes: int
) -> list[dict[str, Any]]:
    """One row for each candidate."""
    collective = arguments.collective
    times = times_of(comm, cases, arguments)
    rows = []
    for name, case in cases.items():
        wrong = comm.allreduce(case.wrong)
        rows.append(
            {
                "collective": collective,
                "algorithm": name,
                "bytes": nbytes,
                "dtype": "float32",
                "wrong": wrong,
                "repeats": len(times[name]),
                **statistics(times[name]),
            }
        )
        if comm.Get_rank() == 0:
            ratio = rows[0]["median_us"] / rows[-1]["median_us"]
            print(
                f"{collective} {nbytes:>9} {name:22}{rows[-1]['median_us']:>10.1f} us, {ratio:.2f}"
                " x native",
                flush=True,
            )
    return rows


if __name__ == "__main__":
    main()
