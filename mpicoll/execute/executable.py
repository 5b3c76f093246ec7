"""A program made ready for Python's interpreter, on its memory and on other memory alike.

What was decided for one buffer serves all others of its size and type, so a call on other memory
costs no more than making its requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from .. import buffers
from ..binding import Decode, Encode, Instruction, Places, Program, Step, lies_in, mover
from ..schedule import Reduce
from ..transport import Channel, Near
from .staging import BYTES, Work
from .tracing import Tracer

#: a function and its arguments
Action = tuple[Callable[..., object], tuple[Any, ...]]
#: makes, of an instruction on some memory, what the interpreter calls: of a message a function of
#: the tag, of a computation an `Action`
Maker = Callable[[Instruction], Any]


class Ready(NamedTuple):
    """A step, ready to run.

    starts: (number, function of the tag that makes the request); receives come first. waits:
    numbers, of what was started in this step or an earlier one. messages, nbytes: that it sends.
    """

    starts: tuple[tuple[int, Callable[[int], Any]], ...]
    waits: tuple[int, ...]
    actions: tuple[Action, ...]
    messages: int
    nbytes: int
    round: int


Numbered = list[tuple[int, Ready]]


class Machine:
    """Makes the instructions of one call: with its channel, the ranks of its node, its memory."""

    def __init__(
        self, channel: Channel, near: Near | None, work: Work, tracer: Tracer | None
    ) -> None:
        self._channel = channel
        self._near = near
        self._work = work
        self._tracer = tracer

    def maker(self, piece: Instruction) -> Maker:
        """The maker of this instruction, on any memory."""
        if not piece.is_started:
            return self._action
        maker = self._copying if piece.is_copied else self._message(piece)
        return maker if self._tracer is None else self._tracer.noted(piece, maker)

    def _action(self, piece: Instruction) -> Action:
        array = self._work.array
        if piece.kind is Reduce:
            assert self._work.reduce is not None
            return self._work.reduce, tuple(map(array, piece.spans))
        (source,), (target,) = piece.reads, piece.writes
        if piece.kind is Encode:
            return self._work.encode, (array(target, BYTES), array(source))
        if piece.kind is Decode:
            return self._work.decode, (array(target), array(source, BYTES))
        return self._work.copying(source, target)

    def _copying(self, piece: Instruction) -> Callable[[int], Any]:
        start = self._work.device_copy(piece)
        return lambda tag: start()

    def _message(self, piece: Instruction) -> Maker:
        near, peer = self._near, piece.peer
        assert peer is not None
        if near is not None and peer in near.ranks:
            part = self._work.typed_part(piece.span)
            return near.receiving(piece, part) if piece.is_received else near.sending(piece, part)
        channel = self._channel
        start = partial(channel.receiver if piece.is_received else channel.sender, peer=peer)
        if near is not None:
            distant = near.distant
            return lambda placed: distant(start(buffers.bytes_at(*placed.span)))
        return lambda placed: start(buffers.bytes_at(*placed.span))


class _Places(NamedTuple):
    """Where a step has instructions that lie in the caller's buffers, with their makers.

    starts, local: (position, instruction, maker).
    """

    starts: list[tuple[int, Instruction, Maker]]
    local: list[tuple[int, Instruction, Maker]]


class Executable:
    """A program, ready on the memory of one call after the other."""

    def __init__(self, program: Program, machine: Machine, fence: tuple[Action, ...] = ()) -> None:
        self.program = program
        self._machine = machine
        numbers = count()
        self._numbers = {id(piece): next(numbers) for piece in program.started()}
        steps = [self._ready(step, fence) for step in program.steps]
        #: the steps on the memory in use
        self.numbered: Numbered = list(enumerate(steps))
        #: how many instructions start a request
        self.messages = len(self._numbers)
        self.lies_in(())

    def _ready(self, step: Step, fence: tuple[Action, ...]) -> Ready:
        # receives first, in order: messages of one tag then arrive in the order of the pieces
        starts = tuple(
            (self._numbers[id(piece)], self._machine.maker(piece)(piece)) for piece in step.starts)
        waits = tuple(self._numbers[id(piece)] for piece in step.waits)
        sent = [piece.nbytes for piece in step.starts if piece.is_sent]
        actions = tuple(self._machine.maker(piece)(piece) for piece in step.local)
        if actions:
            actions += fence
        return Ready(starts, waits, actions, len(sent), sum(sent), step.round)

    # On other memory.

    def lies_in(self, memory: Places) -> None:
        """Set the buffers that it works on."""
        self._made_for = memory
        self._moving: list[_Places] = []

    def move(self, memory: Places) -> None:
        """Work on these buffers from now on, of the same sizes, and the same or apart as before."""
        if not self._moving:
            self._moving = [
                _Places(self._in_buffers(step.starts), self._in_buffers(step.local))
                for step in self.program.steps
            ]
        move = mover(self._made_for, memory)
        self.numbered = [
            (number, _moved(ready, places, move))
            for (number, ready), places in zip(self.numbered, self._moving)
        ]

    def _in_buffers(
        self, instructions: Sequence[Instruction]
    ) -> list[tuple[int, Instruction, Maker]]:
        return [
            (position, piece, self._machine.maker(piece))
            for position, piece in enumerate(instructions)
            if any(lies_in(span, self._made_for) for span in piece.spans)
        ]


def _moved(ready: Ready, places: _Places, move: Callable[[Any], Any]) -> Ready:
    if not (places.starts or places.local):
        return ready
    starts = list(ready.starts)
    actions = list(ready.actions)
    for position, piece, maker in places.starts:
        starts[position] = starts[position][0], maker(piece.moved(move))
    for position, piece, maker in places.local:
        actions[position] = maker(piece.moved(move))
    return ready._replace(starts=tuple(starts), actions=tuple(actions))
