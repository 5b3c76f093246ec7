"""A program that the extension executes, as a request that moves when it is tested."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import Any, NamedTuple

from mpi4py import MPI

from ..binding import Instruction, Places, Program, Span, mover
from ..errors import MpicollError
from ..schedule import Recv
from ..shared_memory import COPIED, HEAP, LARGE
from ..transport import ACCOUNT, NOTICE, WATCH, Channel, Near
from .library import status
from .lowering import NOWHERE, Slots, lowered, refusal

#: buffers that a call may have
_MOST_BUFFERS = 3
#: of a near rank: the addresses of the words of the pipes to it and from it, and of the word that
#: says that it sleeps; and its rank
_NEAR = Struct("=4q")
#: polls of a rank that waits for others of its node before it yields its core: others may need it,
#: which no rank can know, as those of other containers
_POLLS = 32
#: as patience of a door: a moment, as long as a task would take
_FOR_A_MOMENT = -1.0
#: seconds for which a program waits where a rank of the node has not created its pipe yet: Python
#: finds it
_UNFOUND = 20e-6
#: seconds without progress after which what a signal handler has raised ends a call
_LONG = 1.0


class Held:
    """What a signal handler has raised while a call waited: raised when that has ended.

    A blocking call is waited for like MPI's own. Only where nothing moves for long it is ended.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def hold(self, error: BaseException | None) -> None:
        """Keep it, if it is the first."""
        if self.error is None:
            self.error = error

    def is_due(self, still: float) -> bool:
        """Whether it ends the call, in which nothing has moved for so many seconds."""
        return self.error is not None and still > _LONG

    def release(self) -> None:
        """Raise it, if there is one."""
        if self.error is not None:
            error, self.error = self.error, None
            raise error


class Caller(NamedTuple):
    """What a program needs of its communicator, beside the channel.

    look(surely): see what other ranks tell. watch(): the same while it waits, and end what may not
    wait for longer.
    """

    look: Callable[..., None]
    watch: Callable[[], None]
    held: Held


def compiled(
    program: Program, channel: Channel, near: Near | None, caller: Caller
) -> Compiled | None:
    """The program for the extension, or None where it cannot execute it."""
    extension = status().extension
    if extension is None or refusal(program, () if near is None else near.ranks):
        return None
    if near is None:
        return Compiled(extension, program, channel, caller)
    return CompiledNear(extension, program, channel, caller, near)


class _Nearby:
    """The ranks of the node to and from which a program has messages: see `lowering.Nearby`.

    track: the number of the pipes that they go through.
    """

    def __init__(
        self, program: Program, channel: Channel, near: Near | None, track: int
    ) -> None:
        peers = {piece.peer: None for piece in program.started()}
        ranks = [] if near is None else [rank for rank in peers if rank in near.ranks]
        self.numbers: Mapping[int | None, int] = {rank: at for at, rank in enumerate(ranks)}
        self.ends = [
            near.pipes(rank, track) for rank in ranks if near is not None and rank is not None
        ]
        #: those whose pipes to this one were not found yet, by number
        self.unfound = {at for at, ends in enumerate(self.ends) if not ends.inward.is_found}
        self._chunk = 0 if near is None else near.chunk
        self._wire_ranks = [channel.ranks[rank] for rank in ranks if rank is not None]

    def locate(self, span: Span) -> int:
        location = HEAP.location(span[0], span[1] - span[0])
        return NOWHERE if location is None else location

    def slots(self, piece: Instruction) -> Slots:
        if piece.nbytes >= LARGE or self.locate(piece.span) != NOWHERE:
            return Slots(1)
        chunk = min(piece.nbytes, self._chunk)
        slots = self.ends[self.numbers[piece.peer]].out.slots(chunk)
        first, second, *_ = slots
        chunk = min(chunk, first.array.size)
        distance = second.address - first.address
        return Slots(chunk, first.address, first.location, distance, len(slots))

    def packed(self) -> bytes:
        return b"".join(
            _NEAR.pack(ends.out.words_at, ends.inward.words_at, ends.peer.sleeps_at, rank)
            for ends, rank in zip(self.ends, self._wire_ranks)
        )


class Compiled:
    """A program of the extension. The messages of its peers may come from either interpreter."""

    def __init__(self, extension: Any, program: Program, channel: Channel, caller: Caller) -> None:
        self._extension = extension
        self._caller = caller
        self._source = program
        self._channel = channel
        self._starts = list(program.started())
        sent = [piece.nbytes for piece in self._starts if piece.is_sent]
        #: messages that it sends, and their bytes
        self.sent = len(sent), sum(sent)
        #: of the extension's last step, which `advance` sees to
        self._result = 0
        self._patience = 0.0
        #: seconds that a test of a task waits: its thread waits for it, and has the turn
        self.lingers = 0.0
        #: the programs of the extension, by the number of the pipes that messages go through
        self._tracks: dict[int, tuple[Any, _Nearby]] = {}
        self.lies_in(())

    #: polls of a waiting rank before it yields its core: each takes as long as the yield, and who
    #: is awaited may need that core
    _polls = 0
    #: the ranks of the node, where messages go through shared memory
    _near: Near | None = None
    _all_tracks = 1
    #: whether Python reads what the program reads, where it advances tasks
    reads_pipes = False

    def _track(self, tag: int) -> int:
        """The number of the pipes that the messages of a call go through."""
        return 0

    def lies_in(self, memory: Places) -> None:
        """Take the buffers of the call, which may be others at each start."""
        assert len(memory) <= _MOST_BUFFERS
        self.free()
        self._made_for = memory
        self._epoch = HEAP.epoch
        self._tracks.clear()
        self._program, self._nearby = self._on(0)
        #: the number of the next instruction, and that after the last one
        self._next = self._end = len(self._positions)
        self._tag = -1
        #: the number of the last call of the program that Python has begun or taken over: doors
        #: begin others
        self._call = 0
        #: the requests that were given away, by number
        self._taken: list[MPI.Request | None] = [None] * len(self._starts)
        self._memory: Places | None = None
        self._buffers: tuple[tuple[int, int], ...] = ()

    def _on(self, track: int) -> tuple[Any, _Nearby]:
        """The program of the extension whose messages go through these pipes."""
        if track not in self._tracks:
            nearby = _Nearby(self._source, self._channel, self._near, track)
            code = list(lowered(self._source, self._channel.ranks, nearby, self._made_for))
            #: by instruction: the step, and the number of the request that it awaits
            self._positions = [(step, awaited) for _, step, awaited in code]
            packed = b"".join(bytes(instruction) for instruction, *_ in code)
            channel = self._channel
            program = self._extension.program(
                packed,
                len(self._starts),
                MPI._handleof(channel.wire.comm),
                HEAP.sleeps_at if nearby.ends else 0,
                nearby.packed(),
                self._polls,
                *(channel.tag(WATCH, number) for number in (NOTICE, ACCOUNT)),
            )
            self._tracks[track] = program, nearby
        return self._tracks[track]

    def start(self, tag: int, memory: Places, patience: float) -> None:
        """Begin. memory: the buffers of this call; patience: seconds that a test waits."""
        self._settle()
        self._program, self._nearby = self._on(self._track(tag))
        if memory != self._memory:
            self._memory = memory
            self._buffers = tuple(map(self._buffer, memory))
        self._patience = patience
        self._tag = tag
        self._result = self._next = 0
        self._taken = [None] * len(self._starts)
        self._call = self._extension.start(self._program, tag, self._buffers)

    def _settle(self) -> None:
        if self._epoch != HEAP.epoch:  # memory may have new locations
            self.lies_in(self._made_for)

    def resume(self, tag: int, memory: Places, patience: float) -> None:
        """Go on with a call that a door has begun."""
        self._program, self._nearby = self._on(self._track(tag))
        self._tag = tag
        self._memory = memory
        self._buffers = tuple(map(self._buffer, memory))
        self._patience = patience
        self._taken = [None] * len(self._starts)
        self.catch_up()

    @property
    def is_under_way(self) -> bool:
        """Whether a call has begun and not ended."""
        is_under_way = self._extension.is_under_way
        return any([is_under_way(program) for program, _ in self._tracks.values()])

    def open_door(
        self, door: Any, call: tuple[Any, ...], tag: int, memory: Places, patience: float | None
    ) -> None:
        """Let calls like this one through a door.

        call: arguments, operation and mark; tag: of call 0; memory: its buffers; patience: seconds
        for which it waits there, None: for a moment.
        """
        arguments, operation, mark = call
        if len(memory) != len(self._made_for):  # it was made for one call
            return
        buffers = tuple((*self._buffer(place), place[1]) for place in memory)
        moves = not HEAP.in_use
        programs = tuple(self._on(track)[0] for track in range(self._all_tracks))
        patience = _FOR_A_MOMENT if patience is None else patience
        door.learn(arguments, programs, operation, mark, tag, buffers, moves, *self.sent, patience)

    def open_door_of_plan(self, door: Any, tag: int, memory: Places) -> None:
        """Let the plan start there."""
        self._settle()
        program, _ = self._on(self._track(tag))
        door.learn_plan(program, tag, tuple(map(self._buffer, memory)), *self.sent)

    def free(self) -> None:
        """Let no door use it from now on."""
        for program, _ in self._tracks.values():
            self._extension.forget(program)

    def _buffer(self, place: tuple[int, int]) -> tuple[int, int]:
        address, nbytes = place
        location = HEAP.location(address, nbytes)
        return address, NOWHERE if location is None else location - address

    def advance(self) -> bool:
        """Execute what need not wait; whether all is done.

        Raises MPI.Exception, and where a rank of the node has given up.
        """
        while True:
            result, self._result = self._result, 0
            if result:
                self._see_to(result)
            if result == self._extension.TOLD:
                return self.has_ended
            self._move()
            if not self._result:
                return self.has_ended

    def _move(self) -> None:
        """Advance the program."""
        patience = self._patience or self.lingers
        if patience and self._nearby.unfound:
            patience = _UNFOUND
        self._execute(patience)
        if self._patience and self.is_stuck:
            self._caller.held.release()

    @property
    def is_stuck(self) -> bool:
        """Whether nothing has moved for so long that what a signal handler raises ends the call."""
        still: float = self._extension.reached(self._program)[2]
        return still > _LONG

    def catch_up(self) -> None:
        """Take what the extension reached where its answer was hidden: by a door, an exception."""
        self._result, self._next, _, self._call = self._extension.reached(self._program)

    def _execute(self, patience: float) -> None:
        reached = self._extension.advance(self._program, patience)
        if reached is not None:  # else another thread is at it
            self._result, self._next = reached

    def _see_to(self, result: int) -> None:
        """What the extension leaves to Python."""
        extension = self._extension
        if result == extension.TOLD:
            self._caller.look()
        elif result == extension.UNKNOWN_LOCATION:
            number, location = extension.unknown(self._program)
            segment = self._nearby.ends[number].peer.segment(location)
            extension.mapped(self._program, number, *segment)
        elif result == extension.WRONG_SIZE:
            raise MpicollError("a rank of this node has sent a message of another size")
        else:
            raise MPI.Exception(result)

    @property
    def has_ended(self) -> bool:
        """Whether all is done."""
        return self._next == self._end

    @property
    def reached(self) -> int:
        """The number of the next instruction."""
        return self._next

    @property
    def position(self) -> tuple[int, int | None]:
        """The step, and the number of the request that it awaits."""
        return self._positions[self._next]

    def Test(self) -> bool:
        """Whether anything has moved: as a request, it stands for the next message alone."""
        before = self._next
        return self.advance() or self._next != before

    def Wait(self) -> None:
        """Wait until anything has moved."""
        while not self.Test():
            self._caller.watch()

    @property
    def attended(self) -> tuple[Any, int] | None:
        """The program and its call, if the extension may advance them beside Python; else None."""
        return self._program, self._call

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


class CompiledNear(Compiled):
    """The same with messages through shared memory."""

    _polls = _POLLS
    _near: Near
    reads_pipes = True

    def __init__(
        self, extension: Any, program: Program, channel: Channel, caller: Caller, near: Near
    ) -> None:
        self._near = near
        self._all_tracks = near.tracks
        #: of the call under way, by near rank: messages that were set aside, which the extension
        #: has
        self._given: defaultdict[int, list[Any]] = defaultdict(list)
        super().__init__(extension, program, channel, caller)

    def _track(self, tag: int) -> int:
        return self._near.track(tag)

    @property
    def attended(self) -> tuple[Any, int] | None:  # noqa: D102
        if self._nearby.unfound or self._near.backoff.aside:  # Python sees to it
            return None
        return super().attended

    def start(self, tag: int, memory: Places, patience: float) -> None:  # noqa: D102
        super().start(tag, memory, patience)
        self._give()

    def advance(self) -> bool:  # noqa: D102
        self._give()
        has_ended = super().advance()
        if has_ended:
            self._take_back()
        return has_ended

    def _give(self) -> None:
        """What other calls found in front of their messages, and took: see `Pipe`."""
        if self._near.is_blocking or not self._near.backoff.aside:  # one at a time; nothing
            return
        self._find_pipes()
        for number, ends in enumerate(self._nearby.ends):
            pipe = ends.inward
            while pipe.opened and self._tag in pipe.opened:
                location, nbytes = pipe.opened[self._tag][0]
                if not self._extension.opened(self._program, number, location, nbytes):
                    break
                pipe.opening(self._tag, ends.peer)
            for message in pipe.take_aside(self._tag):
                place, nbytes, copy = message
                self._given[number].append(message)
                location, address = (place, 0) if copy is None else (COPIED, -place)
                self._extension.keep(self._program, number, location, nbytes, address)

    def _take_back(self) -> None:
        """At the end: what was given and not taken is for a later start of this plan."""
        for number, given in self._given.items():
            taken = self._extension.kept_taken(self._program, number)
            if given[taken:]:
                self._nearby.ends[number].inward.put_aside(self._tag, given[taken:])
        self._given.clear()

    def _see_to(self, result: int) -> None:
        if result == self._extension.PEER_GAVE_UP:
            self._caller.look(surely=True)
        else:
            super()._see_to(result)

    def Test(self) -> bool:  # noqa: D102
        if super().Test():
            return True
        self._find_pipes()
        if not self._near.is_blocking:
            for ends in self._nearby.ends:  # other ranks may start calls in another order
                ends.inward.next(self._tag, ends.peer)
            self._near.backoff.pause()
        return False

    def _find_pipes(self) -> None:
        """A rank creates the pipe to this one when it first sends."""
        unfound = self._nearby.unfound
        for number in tuple(unfound):
            pipe = self._nearby.ends[number].inward
            if pipe.is_found:
                self._extension.found(self._program, number, pipe.words_at)
                unfound.remove(number)
