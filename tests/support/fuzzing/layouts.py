"""How the elements of a vector may lie in memory, and how that is told to mpi4py."""

from collections.abc import Callable
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI


class Layout(NamedTuple):
    """length: elements of the array. places: where in it each element of the vector lies. given: the array as an argument.

    raw: the array lies over a bytearray.
    """

    length: int
    places: np.ndarray
    given: Callable[[np.ndarray], Any]
    raw: bool = False


def mpi_type(dtype: np.dtype) -> MPI.Datatype | None:
    """MPI's type; None where not every MPI has one."""
    return None if dtype.char == "e" or dtype.kind not in "biufc" else MPI.Datatype.fromcode(dtype.char)


@cache
def spaced(code: str) -> MPI.Datatype:
    """The type of an element after which room for another is left."""
    datatype = MPI.Datatype.fromcode(code)
    return datatype.Create_resized(0, 2 * datatype.Get_extent()[1]).Commit()


@cache
def pair(code: str) -> MPI.Datatype:
    """The type of two elements with a gap after each."""
    return spaced(code).Create_contiguous(2).Commit()


# One vector; n: its elements, blocks: equal blocks that it is for mpi4py (0: one), which counts are then of.


def plain(n, kind, blocks):
    return Layout(n, np.arange(n), lambda room: room)


def typed(n, kind, blocks):
    return Layout(n, np.arange(n), lambda room: [room, kind])


def counted(n, kind, blocks):
    return Layout(n + 3, np.arange(n), lambda room: [room, n // max(1, blocks), kind])


def displaced(n, kind, blocks):
    return Layout(n + 5, np.arange(n) + 3, lambda room: [room, (n // max(1, blocks), 3), kind])


def strided(n, kind, blocks):
    return Layout(2 * n + 1, np.arange(n) * 2 + 1, lambda room: room[1::2][:n])


def backwards(n, kind, blocks):
    return Layout(n, np.arange(n)[::-1], lambda room: room[::-1])


def columns(n, kind, blocks):
    """Two of three columns of a matrix."""
    places = np.arange(n // 2 * 3).reshape(-1, 3)[:, :2].ravel()
    return None if n % 2 else Layout(n // 2 * 3, places, lambda room: room.reshape(-1, 3)[:, :2])


def fortran(n, kind, blocks):
    return None if n % 2 else Layout(n, np.arange(n), lambda room: room.reshape((2, -1), order="F"))


def view(n, kind, blocks):
    return Layout(n, np.arange(n), memoryview)


def raw(n, kind, blocks):
    """A bytearray whose bytes are said to be something else."""
    return Layout(n, np.arange(n), lambda room: [room.base.obj, kind], raw=True)


def derived(n, kind, blocks):
    return Layout(2 * n, 2 * np.arange(n), lambda room: [room, n // max(1, blocks), spaced(kind.tocode())])


def pairs(n, kind, blocks):
    count = n // 2 // max(1, blocks)
    odd = n % (2 * max(1, blocks))
    return None if odd else Layout(2 * n, 2 * np.arange(n), lambda room: [room, count, pair(kind.tocode())])


ONE = {one.__name__: one for one in (
    plain, typed, counted, displaced, strided, backwards, columns, fortran, view, raw, derived, pairs,
)}  # fmt: skip
_NEED_TYPE = {"typed", "counted", "displaced", "raw", "derived", "pairs", "gaps", "shuffled", "spread"}
#: MPI's predefined ops know no derived types
DERIVED = {"derived", "pairs", "spread"}


# One block for each rank, of any size.


def listed(counts, kind):
    return Layout(sum(counts), np.arange(sum(counts)), lambda room: [room, counts])


def gaps(counts, kind):
    """Two elements of room after each block."""
    starts = [start + 2 * rank for rank, start in enumerate(_starts(counts))]
    return _blocks(counts, starts, lambda room: [room, (counts, starts), kind])


def shuffled(counts, kind):
    """The last block first, and a gap before each."""
    starts = [start + rank + 1 for rank, start in enumerate(_starts(counts[::-1]))][::-1]
    return _blocks(counts, starts, lambda room: [room, counts, starts, kind])


def spread(counts, kind):
    """Derived elements, with displacements in units of their extent."""
    starts = [start + rank for rank, start in enumerate(_starts(counts))]
    whole = _blocks(counts, starts, None)
    return Layout(2 * whole.length, 2 * whole.places, lambda room: [room, counts, starts, spaced(kind.tocode())])


MANY = {one.__name__: one for one in (listed, gaps, shuffled, spread)}


def _starts(counts):
    return [0, *accumulate(counts)][:-1]


def _blocks(counts, starts, given):
    places = [np.arange(start, start + count) for start, count in zip(starts, counts)]
    length = max(start + count for start, count in zip(starts, counts))
    return Layout(length, np.concatenate(places), given)


def nothing(counts, code):
    """A list of no numbers, of some type."""
    given = np.zeros(0, code)
    return Layout(0, np.arange(0), lambda room: given if isinstance(counts, int) else [given, counts])


def layout_of(
    name: str, counts: int | list[int], dtype: np.dtype, blocks: int, reduces: bool, empty: str = ""
) -> Layout:
    """The layout of that name, or the plainest where this vector cannot have it.

    counts: elements of the vector, or of each rank's block where these are of any size. empty: the
    type of vectors that are only moved and have no elements; "": their own.
    """
    if empty and not reduces and not np.sum(counts):
        return nothing(counts, empty)
    names, plainest = (ONE, plain) if isinstance(counts, int) else (MANY, listed)
    kind, rest = mpi_type(dtype), (blocks,) if isinstance(counts, int) else ()
    possible = (kind is not None or name not in _NEED_TYPE) and not (reduces and name in DERIVED)
    found = names.get(name, plainest)(counts, kind, *rest) if possible else None
    return found or plainest(counts, kind, *rest)
