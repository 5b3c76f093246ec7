"""MPICOLL_PROFILE=1: a table, at exit, of a program's calls, their times, and MPI's own times."""

import atexit
import re
import sys
from functools import cache
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from .. import collectives
from ..errors import ArgumentError
from ..failure import ENDED, Located
from ..support import settings
from ..support.units import format_bytes, format_seconds, many
from .compare import Candidate, compare

#: kinds of calls in the table
_MOST = 20
#: seconds to measure MPI's own call of each kind
_SECONDS = 0.1
_ROW = "{:<21}{:>6}{:>6}  {:<14}{:>7}{:>8}{:>8}{:>8}"
_HEADING = _ROW.format("call", "bytes", "ranks", "algorithm", "calls", "total", "median", "native")
_NOTE = """# rank 0's times; of calls that do not block from their start to their end.
# native: MPI's own blocking call of as many bytes, float32, measured now."""


class CallKind(NamedTuple):
    """Calls that are alike."""

    call: str
    #: of the whole vector; None if unknown
    nbytes: int | None
    #: number of ranks
    size: int
    algorithm: str


_times: dict[CallKind, list[float]] = {}


@cache
def start() -> None:
    """Count calls from now on, until the program ends."""
    ENDED.append(_ended)
    atexit.register(_report)


def _ended(text: str, size: int, plan: Located | None, seconds: float) -> None:
    _times.setdefault(_kind(text, size, getattr(plan, "name", "")), []).append(seconds)


@cache
def _kind(text: str, size: int, name: str) -> CallKind:
    """The kind of a record "Allreduce of 800 bytes", served by a plan named "Allreduce (ring)"."""
    call, _, rest = text.partition(",")[0].partition(" of ")
    match = re.match(r"(\d+) bytes", rest)
    nbytes = int(match[1]) if match else None
    algorithm = re.search(r"\((\w+)\)", name)
    return CallKind(call, nbytes, size, algorithm[1] if algorithm else "native")


def _report() -> None:
    """Print the table on rank 0. Collective over the world; runs before MPI_Finalize."""
    if MPI.Is_finalized():
        return
    world = MPI.COMM_WORLD
    longest = sorted(_times, key=lambda kind: -sum(_times[kind]))
    shown = world.bcast(longest[:_MOST])
    common = set.intersection(*world.allgather(set(_times)))
    native = {kind: _native(world, kind) for kind in shown if kind in common}
    if world.Get_rank() == 0 and longest:
        lines = [_line(kind, native.get(kind)) for kind in shown]
        title = f"# {settings.PROFILE}: {many(len(longest), 'kind')} of calls"
        print(title, _NOTE, _HEADING, *lines, sep="\n", file=sys.stderr)
        if left := longest[_MOST:]:
            rest = format_seconds(sum(sum(_times[kind]) for kind in left))
            print(f"and {many(len(left), 'other kind')} of calls, {rest}", file=sys.stderr)
        sys.stderr.flush()


def _native(world: MPI.Intracomm, kind: CallKind) -> float | None:
    """Seconds of MPI's own call; None if its size is unknown or not all ranks made it."""
    if not kind.nbytes or kind.size != world.Get_size():
        return None
    try:
        name = collectives.of_call(kind.call)[0]
    except ArgumentError:  # for example of Barrier
        return None
    candidates = [Candidate("native")]
    (row,) = compare(world, name, candidates, kind.nbytes, np.dtype("f4"), seconds=_SECONDS)
    return float(row["median_us"]) / 1e6


def _line(kind: CallKind, native: float | None) -> str:
    times = _times[kind]
    nbytes = "-" if kind.nbytes is None else format_bytes(kind.nbytes)
    return _ROW.format(
        kind.call,
        nbytes,
        kind.size,
        kind.algorithm,
        len(times),
        format_seconds(sum(times)),
        format_seconds(float(np.median(times))),
        "-" if native is None else format_seconds(native),
    )
