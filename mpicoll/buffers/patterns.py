"""Patterns: datatypes whose elements lie at regular distances, so that NumPy copies them.

They are made of contiguous, vector, subarray, indexed and resized types, as those of mpi4py-fft
are. MPI packs all others.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from .memory import at

#: (how many, bytes from one to the next) of each dimension, the slowest first
Dimensions = Sequence[tuple[int, int]]
#: NumPy's types of which a run of bytes is copied, by their bytes
_UNITS = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}
_WIDEST = max(_UNITS)


class Pattern(NamedTuple):
    """Runs of bytes at regular distances, in the order of elements; offsets are in bytes."""

    #: of the first run
    start: int
    #: how many runs, in each dimension
    shape: tuple[int, ...]
    #: from one run to the next
    strides: tuple[int, ...]
    #: bytes of a run
    run: int

    @classmethod
    def of(cls, start: int, dimensions: Dimensions, run: int) -> "Pattern":
        """The pattern in its simplest form: what follows without a gap is one run."""
        if not run or not all(count for count, _ in dimensions):
            return _NOTHING
        merged: list[tuple[int, int]] = []
        for count, stride in reversed(dimensions):
            if count == 1:
                continue
            if not merged and stride == run:
                run *= count
            elif merged and stride == merged[-1][0] * merged[-1][1]:
                merged[-1] = merged[-1][0] * count, merged[-1][1]
            else:
                merged.append((count, stride))
        return cls(start, tuple(n for n, _ in merged[::-1]), tuple(s for _, s in merged[::-1]), run)

    def repeated(self, dimensions: Dimensions, start: int = 0) -> "Pattern":
        """The pattern once for each place of these dimensions."""
        inner = zip(self.shape, self.strides)
        return Pattern.of(self.start + start, [*dimensions, *inner], self.run)

    @property
    def nbytes(self) -> int:
        """Bytes of all runs."""
        return prod(self.shape) * self.run

    @property
    def reach(self) -> tuple[int, int]:
        """Offsets of the first byte, and behind the last byte."""
        if not self.run:
            return 0, 0
        reach = [(count - 1) * stride for count, stride in zip(self.shape, self.strides)]
        low = self.start + sum(min(step, 0) for step in reach)
        return low, self.start + sum(max(step, 0) for step in reach) + self.run

    @property
    def is_contiguous(self) -> bool:
        """Whether it is a single run."""
        return not self.shape

    @property
    def is_surely_apart(self) -> bool:
        """Whether no two runs share a byte; False where that is not obvious."""
        room = self.run
        for stride, count in sorted(zip(map(abs, self.strides), self.shape)):
            if stride < room:
                return False
            room += stride * (count - 1)
        return True

    def array(self, base: int) -> "np.ndarray[Any, Any]":
        """An array over the memory of the runs, from this address on.

        Its elements are as wide as addresses allow, and mean nothing. It does not keep the memory
        alive.
        """
        low, high = self.reach
        room = at(base + low, high - low, np.uint8)
        unit = gcd(_WIDEST, self.run, base + self.start, *self.strides)
        shape = (*self.shape, self.run // unit)
        return np.ndarray(shape, _UNITS[unit], room, self.start - low, (*self.strides, unit))


_NOTHING = Pattern(0, (), (), 0)


class DecodedType(NamedTuple):
    """What packing must know of a datatype; equal where the datatypes have the same layout."""

    #: None where the elements lie irregularly
    pattern: Pattern | None
    size: int
    extent: int
    #: tells types without a pattern apart; None where there is one
    identity: object = None

    def block(self, count: int, place: int) -> Pattern | None:
        """The pattern of `count` elements at an offset."""
        pattern = self.pattern
        return pattern and pattern.repeated([(count, self.extent)], place)


def decoded(datatype: MPI.Datatype) -> DecodedType:
    """The decoded form of a datatype.

    It is an attribute of the datatype, which MPI deletes with it: a handle that is used again has
    none.
    """
    if datatype.is_predefined:
        return _predefined(datatype.handle)
    kept: Any = datatype.Get_attr(_keyval())
    if kept is None:
        kept = _decoded(datatype, _pattern_of(datatype))
        datatype.Set_attr(_keyval(), kept)
    result: DecodedType = kept
    return result


@lru_cache(maxsize=None)
def _keyval() -> int:
    return MPI.Datatype.Create_keyval()


@lru_cache(maxsize=None)
def _predefined(handle: int) -> DecodedType:
    datatype = MPI.Datatype.fromhandle(handle)
    size = datatype.Get_size()
    has_gaps = size != datatype.Get_extent()[1]  # a pair; only MPI knows where
    return _decoded(datatype, None if has_gaps else Pattern.of(0, (), size))


def _decoded(datatype: MPI.Datatype, pattern: Pattern | None) -> DecodedType:
    identity = object() if pattern is None else None
    return DecodedType(pattern, datatype.Get_size(), datatype.Get_extent()[1], identity)


def _pattern_of(datatype: MPI.Datatype) -> Pattern | None:
    inner, combiner, parameters = datatype.decode()
    parts = [*parameters.get("datatypes", ()), inner]
    try:
        arrange = _ARRANGEMENTS.get(combiner)
        if arrange is None:
            return None
        element = decoded(inner)
        pattern = element.pattern
        return pattern and arrange(pattern, element.extent, **parameters)
    finally:
        for part in parts:
            if part != MPI.DATATYPE_NULL and part != datatype and not part.is_predefined:
                part.Free()


# How each constructor arranges elements: of their pattern and extent, and its parameters.


def _same(element: Pattern, step: int, /, **_: Any) -> Pattern:
    return element


def _contiguous(element: Pattern, extent: int, count: int) -> Pattern:
    return element.repeated([(count, extent)])


def _vector(
    element: Pattern, extent: int, count: int, blocklength: int, stride: int
) -> Pattern:
    return element.repeated([(count, stride * extent), (blocklength, extent)])


def _hvector(
    element: Pattern, extent: int, count: int, blocklength: int, stride: int
) -> Pattern:
    return element.repeated([(count, stride), (blocklength, extent)])


def _subarray(
    element: Pattern, extent: int,
    sizes: Sequence[int], subsizes: Sequence[int], starts: Sequence[int], order: int,
) -> Pattern:  # fmt: skip
    step = extent
    start = 0
    fastest_first = []
    axes = range(len(sizes))
    for axis in axes if order == MPI.ORDER_F else reversed(axes):
        fastest_first.append((subsizes[axis], step))
        start += starts[axis] * step
        step *= sizes[axis]
    return element.repeated(fastest_first[::-1], start)


def _hindexed_block(
    element: Pattern, extent: int, blocklength: int, displacements: Sequence[int]
) -> Pattern | None:
    steps = {after - before for before, after in pairwise(displacements)} or {0}
    if not displacements:
        return _NOTHING
    if len(steps) > 1:
        return None
    dimensions = [(len(displacements), steps.pop()), (blocklength, extent)]
    return element.repeated(dimensions, displacements[0])


def _indexed_block(
    element: Pattern, extent: int, blocklength: int, displacements: Sequence[int]
) -> Pattern | None:
    places = [displacement * extent for displacement in displacements]
    return _hindexed_block(element, extent, blocklength, places)


def _hindexed(
    element: Pattern, extent: int, blocklengths: Sequence[int], displacements: Sequence[int]
) -> Pattern | None:
    blocks = [block for block in zip(blocklengths, displacements) if block[0]]
    lengths = {length for length, _ in blocks} or {0}
    if len(lengths) > 1:
        return None
    return _hindexed_block(element, extent, lengths.pop(), [place for _, place in blocks])


def _indexed(
    element: Pattern, extent: int, blocklengths: Sequence[int], displacements: Sequence[int]
) -> Pattern | None:
    places = [displacement * extent for displacement in displacements]
    return _hindexed(element, extent, blocklengths, places)


_ARRANGEMENTS: dict[str, Callable[..., Pattern | None]] = {
    "DUP": _same,
    "RESIZED": _same,
    "CONTIGUOUS": _contiguous,
    "VECTOR": _vector,
    "HVECTOR": _hvector,
    "SUBARRAY": _subarray,
    "INDEXED": _indexed,
    "HINDEXED": _hindexed,
    "INDEXED_BLOCK": _indexed_block,
    "HINDEXED_BLOCK": _hindexed_block,
}
