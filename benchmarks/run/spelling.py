"""Calls as programs spell them, beside mpi4py's own.

    mpiexec -n 2 python -m benchmarks.run.spelling --json FILE

First mpi4py's spellings of small calls and of 1 MiB, then mpi4py's `demo/osu_*.py` call by call, as
these make them: lists of an mmap, a count and MPI.BYTE, at each of their sizes. Both alternate;
times are medians of the maximum over ranks. Last, calls on arrays that were never seen before
beside calls on the same arrays again, by a schedule; what is timed is the call alone, both have
just been written to.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from mmap import mmap
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.measure import alternate, measured_on, repeats_for, statistics
from mpicoll.support.units import format_bytes

OSU_SIZES = [0, *(1 << power for power in range(21))]
FRESH_SIZES = [1 << 10, 1 << 14, 1 << 16, 1 << 20]
#: arrays that live at a time, so that fresh ones do not lie where the last one did
ALIVE = 64

Call = Callable[[MPI.Intracomm], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each call (default 0.5)")
    arguments = parser.parse_args()
    mpicoll.install_abort_hook()
    comm = mpicoll.Communicator(MPI.COMM_WORLD)
    facts = measured_on(comm)
    results = []
    for what, nbytes, call in (*spellings(comm), *osu(comm)):
        results.append(
            {"what": what, "bytes": nbytes, **compared(comm, call, nbytes, arguments.seconds)}
        )
        if comm.rank == 0:
            words = "{what:44}{bytes:>9} bytes{mpi4py:>10.2f} us,{mpicoll:>10.2f} us  x{ratio:.2f}"
            print(words.format(**results[-1]), flush=True)
    seen = [fresh(comm, nbytes, arguments.seconds) for nbytes in FRESH_SIZES]
    if comm.rank == 0:
        for row in seen:
            figures = ", ".join(
                f"{name} {row[name]} us" for name in ("repeated", "fresh", "native")
            )
            print(
                f"allreduce by the ring of {format_bytes(row['bytes'])}: {figures},"
                f" x{row['ratio']}",
                flush=True,
            )
        if arguments.json:
            with open(arguments.json, "w", encoding="utf-8") as file:
                json.dump(
                    {"schema": 1, "environment": facts, "results": results, "fresh": seen},
                    file,
                    indent=1,
                )


def compared(comm: mpicoll.Communicator, call: Call, nbytes: int, seconds: float) -> dict[str, Any]:
    """Medians of mpi4py's call and of ours, in microseconds."""
    own = comm.Dup()
    plain = MPI.Intracomm(own)
    candidates = {"mpi4py": lambda: call(plain), "mpicoll": lambda: call(own)}
    calls = max(4, min(100, (1 << 20) // max(1, nbytes)))
    repeats = repeats_for(own, candidates, seconds, calls=calls, least=15)
    figures = {
        name: statistics(times)["median_us"]
        for name, times in alternate(own, candidates, repeats, calls=calls).items()
    }
    own.Free()
    return {
        **figures,
        "ratio": round(figures["mpicoll"] / figures["mpi4py"], 3),
        "repeats": repeats,
        "calls": calls,
    }


def spellings(comm: mpicoll.Communicator) -> Iterator[tuple[str, int, Call]]:
    """mpi4py's ways to say one thing: (what, bytes, a function of the communicator)."""
    size = comm.Get_size()
    raw = bytearray(8)
    x, y, whole = (np.zeros(count, np.float32) for count in (2, 2, 2 * size))
    wide = np.zeros(1 << 18, np.float32)
    result = np.zeros(1 << 18, np.float32)
    counts = [2] * size
    yield "Allreduce(x, y)", 8, lambda comm: comm.Allreduce(x, y)
    yield (
        "Allreduce([x, MPI.FLOAT], [y, MPI.FLOAT])",
        8,
        lambda comm: comm.Allreduce([x, MPI.FLOAT], [y, MPI.FLOAT]),
    )
    yield (
        "Allreduce(memoryview(x), memoryview(y))",
        8,
        lambda comm: comm.Allreduce(memoryview(x), memoryview(y)),
    )
    yield "Bcast(x)", 8, lambda comm: comm.Bcast(x)
    yield "Bcast(bytearray)", 8, lambda comm: comm.Bcast(raw)
    yield "Bcast([bytearray, MPI.BYTE])", 8, lambda comm: comm.Bcast([raw, MPI.BYTE])
    yield "Allgather(x, g)", 8 * size, lambda comm: comm.Allgather(x, whole)
    yield "Allgatherv(x, [g, counts])", 8 * size, lambda comm: comm.Allgatherv(x, [whole, counts])
    yield "Iallreduce(x, y).Wait()", 8, lambda comm: comm.Iallreduce(x, y).Wait()
    yield (
        "Iallreduce(x, y).Wait()",
        1024,
        lambda comm: comm.Iallreduce(wide[:256], result[:256]).Wait(),
    )
    yield "Allreduce(x, y)", 1 << 20, lambda comm: comm.Allreduce(wide, result)
    yield (
        "Allreduce([x, MPI.FLOAT], [y, MPI.FLOAT])",
        1 << 20,
        lambda comm: comm.Allreduce([wide, MPI.FLOAT], [result, MPI.FLOAT]),
    )


def osu(comm: mpicoll.Communicator) -> Iterator[tuple[str, int, Call]]:
    """The calls of mpi4py's demo/osu_*.py, but for those that are no business of mpicoll's."""
    rank = comm.Get_rank()
    size = comm.Get_size()
    block = mmap(-1, OSU_SIZES[-1])
    whole = mmap(-1, OSU_SIZES[-1] * size)
    yield "osu_barrier", 0, lambda comm: comm.Barrier()
    for nbytes in OSU_SIZES:
        mine = [block, nbytes, MPI.BYTE]
        all_of_them = [whole, nbytes, MPI.BYTE]
        sent, got = (MPI.IN_PLACE, all_of_them) if rank == 0 else (mine, None)
        dealt, taken = (all_of_them, MPI.IN_PLACE) if rank == 0 else (None, mine)
        yield "osu_bcast", nbytes, lambda comm, buffer=mine: comm.Bcast(buffer, 0)
        yield (
            "osu_allgather",
            nbytes,
            lambda comm, buffer=all_of_them: comm.Allgather(MPI.IN_PLACE, buffer),
        )
        yield "osu_gather", nbytes, lambda comm, sent=sent, got=got: comm.Gather(sent, got, 0)
        yield (
            "osu_scatter",
            nbytes,
            lambda comm, dealt=dealt, taken=taken: comm.Scatter(dealt, taken, 0),
        )


def fresh(comm: mpicoll.Communicator, nbytes: int, seconds: float) -> dict[str, Any]:
    """An allreduce by the ring on arrays made for it, beside the same one on ALIVE pairs of arrays
    in turn, in microseconds.

    Both walk through as much memory, and native is MPI's own call on the arrays in turn.
    """
    filled = np.zeros(nbytes // 4, np.float32)
    alive = [(filled.copy(), filled.copy()) for _ in range(ALIVE)]
    kept = [(filled.copy(), filled.copy()) for _ in range(ALIVE)]
    times: dict[str, list[float]] = {"fresh": [], "native": [], "repeated": []}
    plain = MPI.Intracomm(comm)
    word = "ring"
    began = perf_counter()
    while comm.bcast(perf_counter() - began < 3 * seconds or len(times["fresh"]) < 15):
        for name in sorted(times, reverse=len(times["fresh"]) % 2 == 0):
            spent = 0.0
            comm.Barrier()
            for number in range(ALIVE):
                if name == "fresh":
                    alive[number] = np.empty_like(filled), np.empty_like(filled)
                x, y = (alive if name == "fresh" else kept)[number]
                x[:], y[:] = filled, filled
                start = perf_counter()
                plain.Allreduce(x, y) if name == "native" else comm.Allreduce(x, y, algorithm=word)
                spent += perf_counter() - start
            times[name].append(comm.allreduce(spent, op=MPI.MAX) / ALIVE * 1e6)
    figures = {name: round(median(each), 2) for name, each in times.items()}
    return {"bytes": nbytes, **figures, "ratio": round(figures["fresh"] / figures["repeated"], 3)}


if __name__ == "__main__":
    main()
