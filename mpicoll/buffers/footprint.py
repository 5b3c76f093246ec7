"""Which bytes of host memory a buffer touches, in the order of its elements."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..schedule import offsets
from .layout import Layout
from .memory import address, at
from .patterns import Pattern

Packing = Callable[[Any], object]
#: NumPy's limit of work to tell two arrays apart: more than usual arrays need, yet microseconds
_EFFORT = 1000


class Footprint(Protocol):
    """Bytes of host memory in the order of elements."""

    @property
    def span(self) -> tuple[int, int]:
        """Addresses of the first byte and behind the last byte."""
        ...

    @property
    def key(self) -> tuple[Any, ...]:
        """A value that is equal for the same bytes in the same order."""
        ...

    def copies(self, shift: int = 0) -> tuple[Packing, Packing]:
        """(pack, unpack) between a work array and these bytes, each `shift` bytes further on."""
        ...


class Strided(NamedTuple):
    """The footprint of a host array."""

    array: Any

    @property
    def span(self) -> tuple[int, int]:
        array = self.array
        reach = [(count - 1) * stride for count, stride in zip(array.shape, array.strides)]
        start = address(array)
        low = sum(min(step, 0) for step in reach)
        high = sum(max(step, 0) for step in reach)
        return start + low, start + high + array.itemsize

    @property
    def key(self) -> tuple[Any, ...]:
        return address(self.array), self.array.shape, self.array.strides, self.array.itemsize

    def copies(self, shift: int = 0) -> tuple[Packing, Packing]:
        return _copies(self._moved(shift) if shift else self.array)

    def _moved(self, shift: int) -> Any:
        low, high = self.span
        room = at(low + shift, high - low, np.uint8)
        start = address(self.array) - low
        plain = f"V{self.array.itemsize}"  # copies every bit, whatever the element type
        return np.ndarray(self.array.shape, plain, room, start, self.array.strides)


class Described(NamedTuple):
    """The footprint of a layout that begins at an address."""

    layout: Layout
    base: int

    @property
    def span(self) -> tuple[int, int]:
        low, high = self.layout.reach
        return self.base + low, self.base + high

    @property
    def key(self) -> tuple[Any, ...]:
        return self.base, *self.layout

    def copies(self, shift: int = 0) -> tuple[Packing, Packing]:
        return self.layout.packing(self.base + shift)


class Patterned(NamedTuple):
    """The footprint of a pattern that begins at an address."""

    pattern: Pattern
    base: int

    @property
    def span(self) -> tuple[int, int]:
        low, high = self.pattern.reach
        return self.base + low, self.base + high

    @property
    def key(self) -> tuple[Any, ...]:
        return self.base, *self.pattern

    def copies(self, shift: int = 0) -> tuple[Packing, Packing]:
        return _copies(self.pattern.array(self.base + shift))


class Blocks(NamedTuple):
    """The footprint of blocks, one after the other in a work array."""

    #: of blocks that are not empty, with the bytes of each
    parts: tuple[tuple[Footprint, int], ...]

    @property
    def span(self) -> tuple[int, int]:
        spans = [part.span for part, _ in self.parts]
        return min(low for low, _ in spans), max(high for _, high in spans)

    @property
    def key(self) -> tuple[Any, ...]:
        return tuple([part.key for part, _ in self.parts])

    def copies(self, shift: int = 0) -> tuple[Packing, Packing]:
        edges = offsets(nbytes for _, nbytes in self.parts)
        slices = [slice(low, high) for low, high in pairwise(edges)]
        copies = [part.copies(shift) for part, _ in self.parts]

        def pack(work: Any) -> None:
            raw = work.view(np.uint8)
            for (pack_part, _), place in zip(copies, slices):
                pack_part(raw[place])

        def unpack(work: Any) -> None:
            raw = work.view(np.uint8)
            for (_, unpack_part), place in zip(copies, slices):
                unpack_part(raw[place])

        return pack, unpack


def may_share_bytes(left: Any, right: Any) -> bool:
    """Whether two host arrays share a byte; True also where NumPy does not find out."""
    effort: Any = _EFFORT  # NumPy's types allow two limits only
    return np.may_share_memory(left, right, max_work=effort)


def touched(footprint: Footprint, nbytes: int) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """Which bytes of its span a footprint of `nbytes` bytes touches."""
    low, high = footprint.span
    room = np.zeros(high - low, np.uint8)
    _, unpack = footprint.copies(address(room) - low)
    unpack(np.ones(nbytes, np.uint8))
    return room.view(bool)


def _copies(array: Any) -> tuple[Packing, Packing]:
    """(pack, unpack) between a work array and this one."""

    def pack(work: Any) -> None:
        np.copyto(work.view(array.dtype).reshape(array.shape), array)

    def unpack(work: Any) -> None:
        np.copyto(array, work.view(array.dtype).reshape(array.shape))

    return pack, unpack
