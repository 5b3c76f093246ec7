"""The memory a call runs on: the caller's where it will do, work arrays with copies before and after where it will not."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from .. import buffers, collectives
from ..buffers import Operand
from ..schedule import INPUT, OUTPUT, Part
from ..support.arrays import synchronize
from .pool import ScratchPool
from .scratch import Vector

BYTES = np.dtype(np.uint8)


class Staging:
    """What happens around a call: `pack` before, `unpack` after, `close` when it is not needed any more."""

    def __init__(self) -> None:
        self.packing: list[Callable[[], object]] = []
        self.unpacking: list[Callable[[], object]] = []
        self.closing: list[Callable[[], object]] = []

    def pack(self) -> None:
        """Bring the input to where it is read."""
        for function in self.packing:
            function()

    def unpack(self) -> None:
        """Bring the result to where the caller wants it."""
        for function in self.unpacking:
            function()

    def close(self) -> None:
        """Give work arrays and datatypes back."""
        for function in self.closing:
            function()

    def packed(self, one: Operand, work: Any, written: bool) -> Any:
        """`work` as the array of an operand whose own memory will not do."""
        # a receive buffer is packed too: in place it is the input, and what a call leaves alone must come back as it was
        self.packing.append(partial(one.pack, work))
        if written:
            self.unpacking.append(partial(one.unpack, work))
        return work


class Work(Staging):
    """The vectors a schedule runs on, and how they are reduced.

    call: a `calls.Call`. edges: element offsets of the blocks. persistent: the caller may forget the arrays, so they are
    owned until `close`, and any thread may run it.
    """

    def __init__(self, call: Any, pool: ScratchPool, edges: list[int], persistent: bool = False) -> None:
        super().__init__()
        self.dtype, self.module, self._pool, self._edges = call.dtype, call.module, pool, edges
        self.reduce = None if call.op is None else buffers.ops.reducer(call.op, call.operands[0])
        self.fence: tuple[Any, ...] = () if self.module is np else ((synchronize, (self.module,)),)
        self.owned: tuple[Operand, ...] = tuple(call.operands) if persistent else ()
        self.device: AbstractContextManager[object] | None = buffers.device_of(call.operands) if persistent else None
        self.vectors: dict[str, Vector] = {}
        self._place(call)
        self.packing += [partial(function, *arguments) for function, arguments in self.fence]

    def _place(self, call: Any) -> None:
        """Find the vectors of input and output."""
        before, after = (
            condition(call.rank, call.size, len(self._edges) - 1, call.root or 0)
            for condition in (call.collective.precondition, call.collective.postcondition)
        )
        send, recv = (self._array(one, one is call.recv) for one in (call.send, call.recv))
        if call.collective is collectives.REDUCE_SCATTER and call.shared:
            self._result_to_front(recv, after)
            return
        if after is not None and recv is not None:
            self.vectors[OUTPUT] = self._vector(recv, after)
        if before is not None and before.place == INPUT:
            self.vectors[INPUT] = self._vector(send if send is not None else recv, before)
        if after is not None and recv is None:  # Scatter in place at the root: its block stays where it is
            self.vectors[OUTPUT] = self._vector(send, after)

    def _vector(self, array: Any, part: Part) -> Vector:
        """The array as the vector's elements from this part on; an in-place block lies inside the whole vector."""
        low, high = self._edges[part.first], self._edges[part.first + part.count]
        if array.size == self._edges[-1] != high - low:
            array = array[low:high]
        return Vector(array, low)

    def _array(self, one: Operand | None, written: bool) -> Any:
        """The operand's elements: the caller's memory, or a work array."""
        if one is None:
            return None
        if not one.staged:
            vector = one.vector.view(self.dtype)
            # by address: a plan kept for repeated calls must not keep the caller's memory alive
            return buffers.at(buffers.address(vector), one.nbytes, self.dtype) if one.module is np else vector
        work = self.acquire(one.nbytes, np)[: one.nbytes].view(one.dtype or BYTES)
        self.closing.append(one.release)
        return self.packed(one, work, written).view(self.dtype)

    def _result_to_front(self, recv: Any, after: Part) -> None:
        """Reduce_scatter in place: the input is the receive buffer, the result goes to its front at the end."""
        size = self._edges[after.first + 1] - self._edges[after.first]
        result = self.acquire(size * self.dtype.itemsize)[: size * self.dtype.itemsize].view(self.dtype)
        self.vectors = {INPUT: Vector(recv), OUTPUT: Vector(result, self._edges[after.first])}
        fence = [partial(function, *arguments) for function, arguments in self.fence]
        self.unpacking[:0] = [partial(self.module.copyto, recv[:size], result), *fence]

    def acquire(self, nbytes: int, module: ModuleType | None = None) -> Any:
        """A byte vector of at least `nbytes` until `close`; module: where it lies, by default where the vectors do."""
        where = module or self.module
        scratch = self._pool.acquire(nbytes, where)
        self.closing.append(partial(self._pool.release, scratch, where))
        return scratch
