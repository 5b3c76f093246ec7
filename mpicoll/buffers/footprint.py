"""Which bytes of host memory a buffer touches, in the order of its elements."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from .layout import Layout
from .memory import address, at

Packing = Callable[[Any], object]


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
        array = self._moved(shift) if shift else self.array

        def pack(work: Any) -> None:
            np.copyto(work.view(array.dtype).reshape(array.shape), array)

        def unpack(work: Any) -> None:
            np.copyto(array, work.view(array.dtype).reshape(array.shape))

        return pack, unpack

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
