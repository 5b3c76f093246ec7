"""A program made ready for Python's interpreter: on the memory it was made for, and on other memory of the same shape.

What was decided for one buffer serves all others of its size and type, so that a call on memory
that was not seen before costs no more than making its requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from .. import buffers
from ..schedule import Reduce
from .channel import Channel
from .known import KEPT_REQUESTS, KNOWN_CALLS
from .near import Near
from .program import Instruction, Places, Program, Step, lies_in, mover
from .staging import Work
from .tracing import Tracer

#: a function and its arguments
Action = tuple[Callable[..., object], tuple[Any, ...]]
#: what makes, of an instruction on some memory, what the interpreter calls: of a message a function
#: of the tag, of what is computed an `Action`
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
    """What the instructions of one call are made of: its channel, the ranks of its node, its memory."""

    def __init__(self, channel: Channel, near: Near | None, work: Work, tracer: Tracer | None) -> None:
        self._channel = channel
        self._near = near
        self._work = work
        self._tracer = tracer

    def maker(self, one: Instruction) -> Maker:
        """That of this instruction, on whatever memory."""
        if not one.is_started:
            return self._action
        maker = self._copying if one.is_copied else self._message(one)
        return maker if self._tracer is None else self._tracer.noted(one, maker)

    def _action(self, one: Instruction) -> Action:
        array = self._work.array
        if one.kind is Reduce:
            assert self._work.reduce is not None
            return self._work.reduce, tuple(map(array, one.spans))
        return self._work.copyto, (array(one.writes[0]), array(one.reads[0]))

    def _copying(self, one: Instruction) -> Callable[[int], Any]:
        start = self._work.device_copy(one)
        return lambda tag: start()

    def _message(self, one: Instruction) -> Maker:
        near, peer = self._near, one.peer
        assert peer is not None
        if near is not None and peer in near.ranks:
            return near.receiving(one) if one.is_received else near.sending(one)
        start = partial(self._channel.receiver if one.is_received else self._channel.sender, peer=peer)
        if near is not None:
            distant = near.distant
            return lambda placed: distant(start(buffers.bytes_at(*placed.span)))
        return lambda placed: start(buffers.bytes_at(*placed.span))


class _Places(NamedTuple):
    """Where a step has instructions that lie in the caller's buffers, and what makes them.

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
        self._numbers = {id(one): next(numbers) for one in program.started()}
        steps = [self._ready(step, fence) for step in program.steps]
        #: the steps where they lie now
        self.numbered: Numbered = list(enumerate(steps))
        self.messages = len(self._numbers)
        self.lies_in(())

    def _ready(self, step: Step, fence: tuple[Action, ...]) -> Ready:
        # receives first, one by one: messages of one tag then arrive in the order of the pieces
        starts = tuple((self._numbers[id(one)], self._machine.maker(one)(one)) for one in step.starts)
        waits = tuple(self._numbers[id(one)] for one in step.waits)
        sent = [one.nbytes for one in step.starts if one.is_sent]
        actions = tuple(self._machine.maker(one)(one) for one in step.local)
        return Ready(starts, waits, actions + fence if actions else (), len(sent), sum(sent), step.round)

    # On other memory.

    @property
    def requests(self) -> int:
        """Messages that it is ready for, wherever they lie."""
        return self.messages * len(self._placed)

    def lies_in(self, memory: Places) -> None:
        """Say which buffers it works on."""
        self._made_for = memory
        self._moving: list[_Places] = []
        self._placed = {memory: self.numbered}

    def move(self, memory: Places) -> None:
        """Work on these buffers from now on, of the sizes of those it was made for, and as far apart or the same."""
        numbered = self._placed.pop(memory, None)
        if numbered is None:
            numbered = self._on(memory)
        while self._placed and (len(self._placed) >= KNOWN_CALLS or 4 * self.requests > KEPT_REQUESTS):
            del self._placed[next(iter(self._placed))]
        self._placed[memory] = self.numbered = numbered  # the last to go

    def _on(self, memory: Places) -> Numbered:
        if not self._moving:
            self._moving = [
                _Places(self._in_buffers(step.starts), self._in_buffers(step.local))
                for step in self.program.steps
            ]
        move = mover(self._made_for, memory)
        return [
            (number, _moved(ready, places, move)) for (number, ready), places in zip(self.numbered, self._moving)
        ]

    def _in_buffers(self, instructions: Sequence[Instruction]) -> list[tuple[int, Instruction, Maker]]:
        return [
            (position, one, self._machine.maker(one))
            for position, one in enumerate(instructions)
            if any(lies_in(span, self._made_for) for span in one.spans)
        ]


def _moved(ready: Ready, places: _Places, move: Callable[[Any], Any]) -> Ready:
    if not (places.starts or places.local):
        return ready
    starts, actions = list(ready.starts), list(ready.actions)
    for position, one, maker in places.starts:
        starts[position] = starts[position][0], maker(one.moved(move))
    for position, one, maker in places.local:
        actions[position] = maker(one.moved(move))
    return ready._replace(starts=tuple(starts), actions=tuple(actions))
