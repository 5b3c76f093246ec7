"""Which bytes of host memory a buffer touches, in the order of its elements."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from .layout import Layout
from .memory import address, at

Packing = Callable[[Any], object]


class Footprint(Protocol):
    """span: where the first byte lies, and where the last ends. key: equal for the same bytes in the same order."""

    @property
    def span(self) -> tuple[int, int]: ...

    @property
    def key(self) -> tuple[Any, ...]: ...

    def copies(self, shift: int = 0) -> tuple[Packing, Packing]:
        """(pack, unpack) between a work array and these bytes, or those that lie `shift` further on."""
        ...


class Strided(NamedTuple):
    """The footprint of a host array."""

    array: Any

    @property
    def span(self) -> tuple[int, int]:
        reach = [(count - 1) * stride for count, stride in zip(self.array.shape, self.array.strides)]
        start = address(self.array)
        low, high = (sum(extreme(step, 0) for step in reach) for extreme in (min, max))
        return start + low, start + high + self.array.itemsize

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
        room, start = at(low + shift, high - low, np.uint8), address(self.array) - low
        plain = f"V{self.array.itemsize}"  # every bit counts, whatever the type makes of it
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
