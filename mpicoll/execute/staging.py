"""The memory a call runs on: the caller's where possible, else work arrays and copies."""

from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from .. import buffers, collectives, gpu, schedule
from ..binding import Instruction, Put, Span, Twin, Vector
from ..buffers import Operand, TypedMemory, TypedPart
from ..errors import BufferError
from ..schedule import INPUT, OUTPUT, SUMS, Part
from ..shared_memory import HEAP, SHARED
from ..transport import Channel
from .agreement import largest
from .pool import ScratchPool

BYTES = np.dtype(np.uint8)
#: bytes of typed blocks below which all are packed first, so that the extension executes the rest
_PACKED_FIRST = 64 << 10
#: bytes of a piece that is copied from one type to another
_PIECE = 256 << 10


class Staging:
    """What happens around a call: `pack` before, `unpack` after."""

    def __init__(self) -> None:
        self.packing: list[Callable[[], object]] = []
        self.unpacking: list[Callable[[], object]] = []

    def pack(self) -> None:
        """Bring the input to where it is read."""
        for function in self.packing:
            function()

    def unpack(self) -> None:
        """Bring the result to where the caller wants it."""
        for function in self.unpacking:
            function()

    def packed(self, copies: tuple[Callable[[Any], object], ...], work: Any, written: bool) -> Any:
        """`work` as the array of an operand that cannot lie in its own memory.

        copies: (pack, unpack) between them.
        """
        pack, unpack = copies
        # also a receive buffer: in place it is the input, and the call may not write all of it
        self.packing.append(partial(pack, work))
        if written:
            self.unpacking.append(partial(unpack, work))
        return work


class _Placed(NamedTuple):
    """Where an operand's elements lie."""

    #: bytes of the caller's memory or a work array
    array: Any
    #: NumPy, or CuPy on a device
    module: Any
    #: the memory that messages use
    messages: Any


class Work(Staging):
    """The vectors a schedule runs on, and how they are reduced.

    call: a `calls.Call`. edges: element offsets of the blocks. persistent: the caller may forget
    the arrays, so they are owned until `close`. on_device: bring staged memory back to the device
    to reduce it, where that can be done.
    """

    def __init__(
        self,
        call: Any,
        pool: ScratchPool,
        edges: list[int],
        persistent: bool = False,
        on_device: bool = False,
    ) -> None:
        super().__init__()
        self.dtype = call.dtype
        self._pool = pool
        self._edges = edges
        self.owned: tuple[Operand, ...] = tuple(call.operands) if persistent else ()
        self.device = buffers.device_of(call.operands)
        self.vectors: dict[str, Vector] = {}
        #: vectors on a device of which messages use a copy on the host
        self.twins: list[Twin] = []
        #: an event to be awaited before anything is sent, or None
        self.arrival: gpu.Arrival | None = None
        #: how floats become integers, where they do
        self.fixed: buffers.FixedPoint | None = call.fixed
        #: actions after each computation
        self.fence: tuple[Any, ...] = ()
        #: instructions after the rounds
        self.last: list[Instruction] = []
        #: (scratch, module)
        self._acquired: list[tuple[Any, Any]] = []
        #: the module of the memory that messages use, and of that where elements are reduced
        self._messages_on = gpu.optional_cupy() if call.on_device else np
        comes_back = on_device and _can_come_back(call)
        self._reduces_on = gpu.optional_cupy() if comes_back else self._messages_on
        op = call.op
        self.reduce = None
        if op is not None:
            self.reduce = buffers.ops.reducer(op, call.operands[0], self._reduces_on)
        #: no function of the user's reduces
        self.is_predefined = op is None or op.is_predefined
        self.op_name = "" if op is None else buffers.ops.op_name(op)
        self.copyto: Callable[..., object] = self._reduces_on.copyto
        #: how elements become codes, and back; None: it is not compressed
        self.compression: buffers.Compression | None = call.codes
        if self.compression is not None:
            module = self._reduces_on
            self.encode: Callable[..., object] = partial(self.compression.encode, module=module)
            self.decode: Callable[..., object] = partial(self.compression.decode, module=module)
        links = call.context.links
        #: whether all ranks share memory
        self._all_share = links is not None and len(links.ranks) + 1 == call.size
        #: buffers of which each block has its own datatype
        self.typed: list[TypedMemory] = []
        #: actions that make this call's streams follow the caller's
        self._following: list[Callable[[], object]] = []
        # the thread that packs may have another current device
        self._device_current: AbstractContextManager[object] = (
            nullcontext() if self.device is None else self.device
        )
        if self.device is not None:
            self._own = gpu.current_streams()
            self._use_streams()
            self._following.append(partial(self._follow, call.operands))
            self.packing += self._following
        self._place(call)
        if self._messages_on is not np:
            self.packing.append(self._arrive)

    @property
    def is_plain(self) -> bool:
        """Whether it lies on the host, and is reduced by a predefined op, not in fixed point."""
        return self.device is None and self.fixed is None and self.is_predefined

    # On a device.

    def pack(self) -> None:
        """Bring the input to where it is read; fixed point only measures it, see `arriving`."""
        with self._device_current:
            if self.fixed is None:
                super().pack()
            else:
                for follow in self._following:
                    follow()
                self.fixed.measure()

    def arriving(self, channel: Channel, tag: int) -> Iterable[Any]:
        """Requests to be awaited before anything is sent, mostly none. tag: of the messages."""
        if self.fixed is not None:
            return self._agreeing(self.fixed, channel, tag)
        return () if self.arrival is None else (self.arrival,)

    def _agreeing(self, fixed: buffers.FixedPoint, channel: Channel, tag: int) -> Iterator[Any]:
        yield from largest(channel, fixed.agreed, tag)
        fixed.check(len(channel.ranks))
        super().pack()
        if self.arrival is not None:
            yield self.arrival

    def _use_streams(self) -> None:
        """Compute beside the caller's kernels."""
        if self._reduces_on is np:
            return
        self._computed = self._own.fetch.record()
        computes = partial(gpu.on_stream, self._own.fetch, event=self._computed)
        self.reduce = self.reduce and computes(self.reduce)
        self.copyto = computes(self.copyto)
        if self.compression is not None:
            self.encode = computes(self.encode)
            self.decode = computes(self.decode)
        if self._messages_on is np:
            self.unpacking.append(self._own.fetch.synchronize)
        else:  # MPI reads next what was computed
            self.fence = ((self._own.fetch.synchronize, ()),)

    def _follow(self, operands: Iterable[Operand]) -> None:
        """Begin after what the caller has asked the device to do."""
        for operand in operands:
            if operand.device is not None:
                self._own.follow(operand.caller_event())

    def _arrive(self) -> None:
        """MPI reads device memory at any time: it has to wait for the work in this stream."""
        self.arrival = gpu.Arrival(self._own.fetch.record())

    def _twin(self, array: Any, wanted: bool) -> Any:
        """A copy on the host of an array on the device, for messages.

        wanted: what is written there is a result.
        """
        copy = self.acquire(array.nbytes, gpu.PAGE_LOCKED)[: array.nbytes]
        self.twins.append(Twin(buffers.address(copy), buffers.address(array), array.nbytes, wanted))
        return copy

    def where_reduced(self, span: Span) -> Span:
        """The same elements where they are reduced."""
        if self._reduces_on is not self._messages_on:
            for twin in self.twins:
                if twin.on_host(span[0]):
                    shift = twin.device - twin.host
                    return span[0] + shift, span[1] + shift
        return span

    def array(self, span: Span, dtype: Any = None) -> Any:
        """The elements that lie there, where they are reduced. dtype: if it is another one."""
        at = buffers.at if self._reduces_on is np else gpu.at_device
        return at(span[0], span[1] - span[0], self.dtype if dtype is None else dtype)

    def device_copy(self, copy: Instruction) -> Callable[[], object]:
        """A function that starts this `Fetch` or `Put`, and returns it as a request."""
        source = copy.reads[0][0]
        target = copy.writes[0][0]
        if copy.kind is not Put:
            return gpu.DeviceCopy(target, source, copy.nbytes, self._own.fetch).start
        put = gpu.DeviceCopy(target, source, copy.nbytes, self._own.put)
        if self._reduces_on is np:
            return put.start

        def start() -> object:
            self._own.put.wait_event(self._computed)  # what is written may have been read there
            return put.start()

        return start

    # Where the vectors lie.

    def _place(self, call: Any) -> None:
        """Find the vectors of input and output."""
        if call.own_edges is not None:
            for place, operand in ((INPUT, call.send), (OUTPUT, call.recv)):
                array = self._array(operand, place == OUTPUT, place == OUTPUT).messages
                self.vectors[place] = Vector(array, 0, call.own_edges[place])
            return
        collective = call.collective
        before, after = (
            condition(call.rank, call.size, len(self._edges) - 1, call.root or 0)
            for condition in (collective.precondition, collective.postcondition)
        )
        to_front = call.shared and collective.place == INPUT and not collective.shares_memory
        # what comes back to the root of a Bcast is its own data, unless it is quantised
        sends_all = collective is collectives.BCAST and call.is_root and call.codes is None
        is_result = not to_front and not sends_all
        send = call.send and self._array(call.send, call.send is call.recv, is_result)
        recv = call.recv and self._array(call.recv, True, is_result)
        if to_front:
            self._result_to_front(recv, after)
            return
        if after is not None and recv is not None:
            vector = self._vector(recv.messages, after)
            self.vectors[OUTPUT] = vector._replace(edges=call.edges_received)
        if before is not None and before.place == INPUT:
            self.vectors[INPUT] = self._vector((send or recv).messages, before)
        if call.recv and call.recv.sums is not None:
            self.vectors[SUMS] = self._own_block(call.recv.sums, call.rank)
        # Scatter in place at the root: its block stays where it is
        if after is not None and recv is None:
            self.vectors[OUTPUT] = self._vector(send.messages, after)

    def _vector(self, array: Any, part: Part) -> Vector:
        """The array as the vector's elements of this part; in place, it is the whole vector."""
        low = self._edges[part.first]
        high = self._edges[part.first + part.count]
        if array.size == self._edges[-1] != high - low:
            array = array[low:high]
        return Vector(array, low)

    def _own_block(self, operand: Operand, rank: int) -> Vector:
        """The array as the elements of this rank's block."""
        low, high = self._edges[rank : rank + 2]
        if operand.nbytes != (high - low) * self.dtype.itemsize:
            got = operand.nbytes // self.dtype.itemsize
            raise BufferError(f"expected room for {high - low} elements, got {got}")
        return Vector(self._array(operand, True, True).messages, low)

    def _array(self, operand: Operand, written: bool, is_result: bool) -> _Placed:
        """Place an operand."""
        nbytes, module = operand.nbytes, operand.packs_on
        if operand.typed is not None and (operand.packed or self._lends(operand, written)):
            work = self._typed(operand.typed, nbytes, written)
        elif operand.packed:
            room = self.acquire(nbytes, module)[:nbytes]
            work = self.packed((operand.pack, operand.unpack), room, written)
        else:  # by address: a plan kept for repeated calls must not keep the caller's memory alive
            at = buffers.at if module is np else gpu.at_device
            work = at(buffers.address(operand.vector), nbytes, BYTES)
            if operand.typed is not None:
                self.typed.append(TypedMemory(operand.typed, work, is_own=True))
        staged = operand.staged and nbytes > 0
        messages = self._twin(work, written and is_result) if staged else work
        return _Placed(work, module, messages.view(self.dtype))

    def _lends(self, operand: Operand, written: bool) -> bool:
        """Whether large typed blocks without gaps are copied to where other ranks read them.

        They unpack them there, in place of what MPI would copy to a work array of theirs.
        """
        if written or not self._all_share or operand.nbytes < _PACKED_FIRST:
            return False
        return HEAP.location(*operand.key) is None

    def _typed(self, parts: Any, nbytes: int, written: bool) -> Any:
        """The work array of typed blocks; other ranks read there what is large."""
        is_read = not written and nbytes >= _PACKED_FIRST
        room = self.acquire(nbytes, SHARED if is_read else np)[:nbytes]
        memory = TypedMemory(parts, room, is_own=False)
        self.typed.append(memory)
        self.packing.append(memory.pack)
        if written:
            self.unpacking.append(memory.unpack)
        return room

    def leave_to_messages(self, instructions: Iterable[Instruction], near: Container[Any]) -> None:
        """Let messages inside the node pack and unpack large typed blocks that they alone use.

        near: the ranks of the node.
        """
        if all(memory.is_own for memory in self.typed):
            return
        left = {id(memory): set(memory.regular) for memory in self.typed}
        largest = 0
        for piece in instructions:
            is_plain = piece.kind in (schedule.Send, schedule.Recv) and piece.peer in near
            if is_plain:
                largest = max(largest, piece.nbytes)
            for memory, span in product(self.typed, piece.spans):
                numbers = memory.blocks_of(span)
                if len(numbers) > 1 or not (is_plain or piece.kind is schedule.Copy):
                    left[id(memory)].difference_update(numbers)
        if largest >= _PACKED_FIRST:
            for memory in self.typed:
                memory.leave(frozenset(left[id(memory)]))

    @property
    def leaves_blocks(self) -> bool:
        """Whether messages pack and unpack some of its blocks."""
        return any(memory.direct for memory in self.typed)

    def typed_part(self, span: Span) -> TypedPart | None:
        """What messages pack or unpack in the place of these bytes."""
        parts = (memory.part(span) for memory in self.typed)
        return next(filter(None, parts), None)

    def copying(self, source: Span, target: Span) -> tuple[Callable[..., object], tuple[Any, ...]]:
        """A function that copies, and its arguments."""
        read = self.typed_part(source)
        written = self.typed_part(target)
        if read is None and written is None:
            return self.copyto, (self.array(target, BYTES), self.array(source, BYTES))
        nbytes = source[1] - source[0]
        if written is None:
            assert read is not None
            return read.pack, (self.array(target, BYTES), 0, nbytes)
        if read is None:
            return written.unpack, (self.array(source, BYTES), 0, nbytes)
        return _repack, (read, written, nbytes)

    def _result_to_front(self, recv: _Placed, after: Part) -> None:
        """In place, where blocks move: the result goes to the front of the input at the end."""
        low = self._edges[after.first]
        high = self._edges[after.first + after.count]
        nbytes = (high - low) * self.dtype.itemsize
        on_device = recv.module is not np
        result = self.acquire(nbytes, recv.module)[:nbytes]
        staged = on_device and self._messages_on is np
        messages = (self._twin(result, wanted=True) if staged else result).view(self.dtype)
        self.vectors = {INPUT: Vector(recv.messages), OUTPUT: Vector(messages, low)}
        front = recv.array[:nbytes]
        if on_device:
            copyto = gpu.on_stream(self._own.fetch, recv.module.copyto)
            self.unpacking[:0] = [partial(copyto, front, result), self._own.fetch.synchronize]
        elif nbytes:
            spans = (buffers.span(result),), (buffers.span(front),)
            self.last = [Instruction(schedule.Copy, None, *spans)]

    def scratch(self, nbytes: int) -> Any:
        """Bytes for messages, and for what is computed in between."""
        if self._reduces_on is self._messages_on:
            return self.acquire(nbytes, self._messages_on)[:nbytes]
        return self._twin(self.acquire(nbytes, self._reduces_on)[:nbytes], wanted=False)

    def acquire(self, nbytes: int, module: Any) -> Any:
        """`nbytes` or more until `close`. module: NumPy, CuPy, `PAGE_LOCKED`, `SHARED`."""
        scratch = self._pool.acquire(nbytes, module)
        self._acquired.append((scratch, module))
        return scratch

    @property
    def acquired_bytes(self) -> int:
        """Bytes of scratch that it holds."""
        return sum(scratch.size for scratch, _ in self._acquired)

    def close(self) -> None:
        """Give back what was acquired."""
        for scratch in self._acquired:
            self._pool.release(*scratch)


def _repack(source: TypedPart, target: TypedPart, nbytes: int) -> None:
    """Copy between two typed parts, piece by piece."""
    piece = np.empty(min(nbytes, _PIECE), BYTES)
    for start in range(0, nbytes, _PIECE):
        end = min(start + _PIECE, nbytes)
        source.pack(piece[: end - start], start, end)
        target.unpack(piece[: end - start], start, end)


def _can_come_back(call: Any) -> bool:
    """Whether what is staged can be reduced on the device."""
    if call.op is None or not all(operand.staged for operand in call.operands):
        return False
    return not buffers.ops.host_only(call.op, call.operands[0])
