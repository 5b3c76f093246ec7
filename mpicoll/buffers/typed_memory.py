"""Typed blocks in a schedule: packed in a work array, or by the messages themselves.

A message inside a node is packed piece by piece into the memory that both ranks share, and unpacked
from there: the work array of its block is never touched, and what is copied stays in the caches.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..schedule import offsets
from .footprint import Footprint, Packing, Patterned
from .memory import address

Span = tuple[int, int]


class TypedPart:
    """Bytes `start` to `end` of a block, in the order of its elements."""

    def __init__(self, pattern: Patterned, start: int, end: int) -> None:
        self._elements = pattern.pattern.array(pattern.base)
        self._bytes = self._elements.view(np.uint8)
        self._start = start
        self.nbytes = end - start
        #: by range, the arrays of its bytes, and their places in it
        self._arrays = lru_cache(maxsize=4096)(self._arrays_of)

    def pack(self, target: Any, start: int, end: int) -> None:
        """Copy a range of it to an array of bytes."""
        for array, low, high in self._arrays(start, end):
            np.copyto(target[low:high].view(array.dtype).reshape(array.shape), array)

    def unpack(self, source: Any, start: int, end: int) -> None:
        """Copy an array of bytes to a range of it."""
        for array, low, high in self._arrays(start, end):
            np.copyto(array, source[low:high].view(array.dtype).reshape(array.shape))

    def _arrays_of(self, start: int, end: int) -> list[tuple[Any, int, int]]:
        low, high = self._start + start, self._start + end
        unit = self._elements.itemsize
        array = self._bytes if low % unit or high % unit else self._elements
        arrays = list(_subarrays(array, low // array.itemsize, high // array.itemsize))
        edges = offsets(piece.nbytes for piece in arrays)
        return list(zip(arrays, edges, edges[1:]))


def _subarrays(array: Any, start: int, end: int) -> Iterator[Any]:
    """Arrays that are together the elements `start` to `end` of an array, in their order."""
    if array.ndim == 1:
        if end > start:
            yield array[start:end]
        return
    row = array[0].size
    first, before = divmod(start, row)
    last, behind = divmod(end, row)
    if first == last:
        yield from _subarrays(array[first], before, behind)
        return
    if before:
        yield from _subarrays(array[first], before, row)
        first += 1
    if last > first:
        yield array[first:last]
    if behind:
        yield from _subarrays(array[last], 0, behind)


class TypedMemory:
    """The typed blocks of a buffer, and a work array in which they lie one after the other.

    parts: the footprint and the bytes of each block. room: the work array; is_own: it is the
    buffer's own memory.
    """

    def __init__(
        self, parts: Sequence[tuple[Footprint, int]], room: Any, is_own: bool
    ) -> None:
        self._parts = parts
        start = address(room)
        self._edges = [start + offset for offset in offsets(nbytes for _, nbytes in parts)]
        #: numbers of the blocks of which messages take care
        self.direct: frozenset[int] = frozenset()
        self._copies: list[tuple[Packing, Packing, Any]] = []
        self._room = room
        self.is_own = is_own
        self.leave(self.direct)

    def leave(self, direct: frozenset[int]) -> None:
        """Leave blocks to messages."""
        self.direct = direct
        if self.is_own:
            return
        start = self._edges[0]
        self._copies = [
            (*part.copies(), self._room[low - start : high - start])
            for number, ((part, nbytes), low, high)
            in enumerate(zip(self._parts, self._edges, self._edges[1:]))
            if nbytes and number not in direct
        ]

    def pack(self) -> None:
        """Copy the other blocks to the work array."""
        for pack, _, work in self._copies:
            pack(work)

    def unpack(self) -> None:
        """Copy them back."""
        for _, unpack, work in self._copies:
            unpack(work)

    @property
    def regular(self) -> frozenset[int]:
        """The blocks that messages can take care of."""
        return frozenset(
            number
            for number, (part, nbytes) in enumerate(self._parts)
            if nbytes and isinstance(part, Patterned)
        )

    def blocks_of(self, span: Span) -> range:
        """The numbers of the blocks that some bytes of the work array belong to."""
        start, end = max(span[0], self._edges[0]), min(span[1], self._edges[-1])
        if start >= end:
            return range(0)
        return range(bisect_right(self._edges, start) - 1, bisect_right(self._edges, end - 1))

    def part(self, span: Span) -> TypedPart | None:
        """The bytes in the buffer that these stand for, where messages take care of them."""
        numbers = self.blocks_of(span)
        if len(numbers) != 1 or numbers[0] not in self.direct:
            return None
        pattern, _ = self._parts[numbers[0]]
        assert isinstance(pattern, Patterned)
        low = self._edges[numbers[0]]
        return TypedPart(pattern, span[0] - low, span[1] - low)
