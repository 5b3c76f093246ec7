"""Transposes of a distributed array by Alltoallw, as mpi4py-fft makes them, beside MPI's own.

    mpiexec -n 4 python -m benchmarks.run.transposes --json FILE

The array is cut along one axis before a transpose and along another one after it; each rank's block
is a subarray type (`mpi4py_fft/pencil.py`). MPI's own call, ours as it is chosen by default, and
each of our algorithms alternate, and "copy": each rank copies its own array, from one end to the
other. That is the limit of all calls that copy each byte once. Times are medians of the maximum
over ranks.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.algorithms import NATIVE
from mpicoll.measure import alternate, measured_on, repeats_for, statistics

#: the axis that is cut after a transpose, and the axis that is cut before it
AXES = ((1, 0), (0, 1), (2, 1), (1, 2), (2, 0), (0, 2))
#: algorithms for blocks of one size only
_EQUAL = ("bruck", "hierarchical")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--lengths", default="256", help="of the cubes' sides (default 256)")
    parser.add_argument("--dtype", default="complex128")
    parser.add_argument("--seconds", type=float, default=3, help="for each call (default 3)")
    options = parser.parse_args()
    mpicoll.install_abort_hook()
    comm = mpicoll.Communicator(MPI.COMM_WORLD)
    facts = measured_on(comm)
    results = []
    for length in map(int, options.lengths.split(",")):
        for after, before in AXES:
            row = measured(comm, length, options.dtype, after, before, options.seconds)
            results.append(row)
            if comm.rank == 0:
                figures = ", ".join(f"{name} {us:.1f} us" for name, us in row["median_us"].items())
                print(f"{length}^3, axis {before} to {after}: {figures}, x{row['ratio']}", flush=True)
    if comm.rank == 0 and options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"schema": 1, "environment": facts, "results": results}, file, indent=1)


def measured(
    comm: mpicoll.Communicator, length: int, dtype: str, after: int, before: int, seconds: float
) -> dict[str, Any]:
    """Medians in microseconds; ratio: MPI's own to ours by default."""
    source, sent = pencil(comm, length, dtype, before, after)
    target, received = pencil(comm, length, dtype, after, before)
    places = [1] * comm.size, [0] * comm.size
    send = [source, places, sent]
    recv = [target, places, received]
    plain = MPI.Intracomm(comm.Dup())
    spare = np.ones_like(source)
    calls: dict[str, Callable[[], object]] = {
        "MPI": lambda: plain.Alltoallw(send, recv),
        "default": lambda: comm.Alltoallw(send, recv),
        "copy": lambda: np.copyto(spare, source),
    }
    for name in mpicoll.list_algorithms("alltoall"):
        if name != NATIVE and name not in _EQUAL:
            calls[name] = lambda name=name: comm.Alltoallw(send, recv, algorithm=name)
    repeats = repeats_for(comm, calls, seconds, least=7)
    times = alternate(comm, calls, repeats)
    medians = {name: statistics(each)["median_us"] for name, each in times.items()}
    for datatype in (*sent, *received):
        datatype.Free()
    plain.Free()
    return {
        "length": length, "dtype": dtype, "cut_before": before, "cut_after": after,
        "bytes": source.nbytes, "median_us": medians,
        "ratio": round(medians["MPI"] / medians["default"], 2),
    }  # fmt: skip


def pencil(
    comm: MPI.Intracomm, length: int, dtype: str, cut: int, divided: int
) -> tuple[np.ndarray[Any, Any], Sequence[MPI.Datatype]]:
    """This rank's part of a cube that is cut along an axis, and its block for, or from, each rank."""
    shape = [length] * 3
    low, high = bounds(length, comm.rank, comm.size)
    shape[cut] = high - low
    array = np.full(shape, comm.rank, dtype)
    kind = MPI.Datatype.fromcode(array.dtype.char)
    blocks = []
    for rank in range(comm.size):
        lengths, starts = list(shape), [0, 0, 0]
        low, high = bounds(length, rank, comm.size)
        lengths[divided], starts[divided] = high - low, low
        blocks.append(kind.Create_subarray(shape, lengths, starts).Commit())
    return array, blocks


def bounds(length: int, rank: int, size: int) -> tuple[int, int]:
    """Where a rank's share of an axis begins and ends."""
    return length * rank // size, length * (rank + 1) // size


if __name__ == "__main__":
    main()
