"""A program that the extension executes, as a request that moves when it is tested."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Any

from mpi4py import MPI

from ..binding import Instruction, Places, Program, Span, mover
from ..errors import MpicollError
from ..schedule import Recv
from ..shared_memory import HEAP, LARGE, Polled
from ..transport import Channel, Near
from .library import status
from .lowering import NOWHERE, Slots, lowered, refusal

#: buffers that a call may have
_MOST_BUFFERS = 3
#: of a near rank: the addresses of the words of the pipes to it and from it, and its rank
_NEAR = Struct("=3q")
#: polls of a waiting rank before it yields its core; the same where ranks outnumber cores
_POLLS = 4000
_FEW_POLLS = 32


def compiled(program: Program, channel: Channel, near: Near | None) -> Compiled | None:
    """The program for the extension, or None where it cannot execute it."""
    extension = status().extension
    if extension is None or refusal(program, () if near is None else near.ranks):
        return None
    if near is None:
        return Compiled(extension, program, channel)
    return CompiledNear(extension, program, channel, near)


class _Nearby:
    """The ranks of the node to and from which a program has messages: see `lowering.Nearby`."""

    def __init__(self, program: Program, channel: Channel, near: Near | None) -> None:
        peers = {piece.peer: None for piece in program.started()}
        ranks = [] if near is None else [rank for rank in peers if rank in near.ranks]
        self.numbers: Mapping[int | None, int] = {rank: at for at, rank in enumerate(ranks)}
        self.pipes = [near.pipes(rank) for rank in ranks if near is not None and rank is not None]
        self._near = near
        self._wire_ranks = [channel.ranks[rank] for rank in ranks if rank is not None]

    def locate(self, span: Span) -> int:
        location = HEAP.location(span[0], span[1] - span[0])
        return NOWHERE if location is None else location

    def slots(self, piece: Instruction) -> Slots:
        if piece.nbytes >= LARGE or self.locate(piece.span) != NOWHERE:
            return Slots(1)
        assert self._near is not None
        chunk = min(piece.nbytes, self._near.chunk)
        slots = self.pipes[self.numbers[piece.peer]].out.slots(chunk)
        first, second = slots[0], slots[1]
        return Slots(chunk, first.address, first.location, second.address - first.address)

    def packed(self) -> bytes:
        return b"".join(
            _NEAR.pack(pipes.out.words_at, pipes.inward.words_at, rank)
            for pipes, rank in zip(self.pipes, self._wire_ranks)
        )


class Compiled:
    """A program of the extension. The messages of its peers may come from either interpreter."""

    def __init__(
        self, extension: Any, program: Program, channel: Channel, near: Near | None = None
    ) -> None:
        self._extension = extension
        self._source = program
        self._channel = channel
        self._near = near
        self._nearby = _Nearby(program, channel, near)
        self._starts = list(program.started())
        self._patience = 0.0
        self._program: Any = None
        self.lies_in(())

    def lies_in(self, memory: Places) -> None:
        """Take the buffers of the call, which may be others at each start."""
        assert len(memory) <= _MOST_BUFFERS
        self._made_for = memory
        self._epoch = HEAP.epoch
        code = list(lowered(self._source, self._channel.ranks, self._nearby, memory))
        #: by instruction: the step, and the number of the request that it awaits
        self._positions = [(step, awaited) for _, step, awaited in code]
        self._sent = [piece.nbytes for piece in self._starts if piece.is_sent]
        packed = b"".join(bytes(instruction) for instruction, *_ in code)
        self.free()
        comm = MPI._handleof(self._channel.wire.comm)
        polls = _FEW_POLLS if self._near is not None and self._near.is_crowded else _POLLS
        self._program = self._extension.program(
            packed, len(self._starts), comm, self._nearby.packed(), polls)
        #: near ranks whose pipes to this one were not found yet
        self._unfound = list(enumerate(pipes.inward for pipes in self._nearby.pipes))
        self._next = len(code)
        #: the requests that were given away, by number
        self._taken: list[MPI.Request | None] = [None] * len(self._starts)
        self._memory: Places | None = None
        self._buffers: tuple[tuple[int, int], ...] = ()

    @property
    def sent(self) -> tuple[int, int]:
        """Messages that it sends, and their bytes."""
        return len(self._sent), sum(self._sent)

    def start(self, tag: int, memory: Places, patience: float) -> None:
        """Begin. memory: the buffers of this call; patience: seconds that a test waits."""
        if self._epoch != HEAP.epoch:  # memory may have new locations
            self.lies_in(self._made_for)
        if memory != self._memory:
            self._memory = memory
            self._buffers = tuple(map(self._buffer, memory))
        self._patience = patience
        self._next = 0
        self._taken = [None] * len(self._starts)
        self._extension.start(self._program, tag, self._buffers)

    def resume(self, result: int, memory: Places, patience: float) -> None:
        """Go on with a call that a door has begun; result: of the extension's last step."""
        self._memory = memory
        self._buffers = tuple(map(self._buffer, memory))
        self._patience = patience
        self._taken = [None] * len(self._starts)
        if result:
            self._see_to(result)

    @property
    def is_under_way(self) -> bool:
        """Whether a call has begun and not ended."""
        return bool(self._extension.is_under_way(self._program))

    def open_door(self, door: Any, *call: Any, tag: int) -> None:
        """Let calls like the last one through a door. tag: of call 0."""
        arguments, operation, mark = call
        assert self._memory is not None
        buffers = tuple(
            (*buffer, nbytes) for buffer, (_, nbytes) in zip(self._buffers, self._memory))
        moves = not HEAP.in_use
        door.learn(
            arguments, self._program, operation, mark, tag, buffers, moves, *self.sent)

    def free(self) -> None:
        """Let no door use it from now on."""
        if self._program is not None:
            self._extension.forget(self._program)

    def _buffer(self, place: tuple[int, int]) -> tuple[int, int]:
        address, nbytes = place
        location = HEAP.location(address, nbytes)
        return address, NOWHERE if location is None else location - address

    def advance(self) -> bool:
        """Execute what need not wait; whether all is done.

        Raises MPI.Exception, and where a rank of the node has given up.
        """
        result, self._next = self._extension.advance(self._program, self._patience)
        while result:
            self._see_to(result)
            result, self._next = self._extension.advance(self._program, self._patience)
        return self.has_ended

    def _see_to(self, result: int) -> None:
        """What the extension leaves to Python."""
        extension = self._extension
        if result == extension.UNKNOWN_LOCATION:
            number, location = extension.unknown(self._program)
            segment = self._nearby.pipes[number].peer.segment(location)
            extension.mapped(self._program, number, *segment)
        elif result == extension.PEER_GAVE_UP and self._near is not None:
            self._near.look(surely=True)
        elif result == extension.WRONG_SIZE:
            raise MpicollError("a rank of this node has sent a message of another size")
        else:
            raise MPI.Exception(result)

    @property
    def has_ended(self) -> bool:
        """Whether all is done."""
        return self._next == len(self._positions)

    @property
    def position(self) -> tuple[int, int | None]:
        """The step, and the number of the request that it awaits."""
        return self._positions[self._next]

    def Test(self) -> bool:
        """Whether anything has moved: as a request, it stands for the next message alone."""
        before = self._next
        if self.advance() or self._next != before:
            return True
        self._find_pipes()
        return False

    def _find_pipes(self) -> None:
        """A rank creates the pipe to this one when it first sends."""
        for number, pipe in tuple(self._unfound):
            if pipe.is_found:
                self._extension.found(self._program, number, pipe.words_at)
                self._unfound.remove((number, pipe))

    def pending(self) -> Sequence[MPI.Request | None]:
        """The requests that MPI has not ended, by number: to be ended by the caller."""
        for number, handle in self._extension.take_requests(self._program).items():
            self._taken[number] = MPI.Request.fromhandle(int.from_bytes(handle, sys.byteorder))
        return self._taken

    def detach(self) -> None:
        """Let no other process read or write the caller's memory from now on."""
        move = mover(self._made_for, self._memory or ())
        for piece in self._starts:
            if piece.peer in self._nearby.numbers and piece.kind is not Recv:
                start, end = move(piece.span)
                HEAP.detach(start, end - start)


class CompiledNear(Compiled, Polled):
    """The same with messages through shared memory: it polls, and looks around meanwhile."""

    _near: Near

    def Wait(self) -> None:
        """Wait until anything has moved."""
        while not self.Test():
            self._near.look()
