"""Bound steps, and the same on other memory: what was decided for one buffer serves all others of its size and type.

What depends on where buffers lie is found once, so that a call on memory not seen before costs no more than making it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import buffers
from ..schedule import Reduce
from .known import KEPT_REQUESTS, KNOWN_CALLS, Places
from .ordering import Span, Starter, Step
from .staging import Work

if TYPE_CHECKING:
    from typing_extensions import Self

Action = tuple[Callable[..., object], tuple[Any, ...]]  # a function and its arguments


class BoundStep(NamedTuple):
    """A round or a step of one, ready to run: what to start, what to wait for, what to compute, and what it sends.

    Messages are numbered in a plan: started in one step, awaited in that or a later one.
    """

    starts: tuple[tuple[int, Callable[[int], Any]], ...]  # receives first; functions of the tag, which make requests
    waits: tuple[int, ...]
    actions: tuple[Action, ...]
    messages: int
    nbytes: int
    round: int
    text: str
    step: Step


Numbered = list[tuple[int, BoundStep]]


class Spot(NamedTuple):
    """Memory in a buffer: which one, and the bytes from where to where."""

    buffer: int
    low: int
    high: int

    def span(self, memory: Places) -> Span:
        """Where that is."""
        start = memory[self.buffer][0]
        return start + self.low, start + self.high


class Moving:
    """One step: its starts and actions, and which of them lie in buffers.

    bound_for: where these were.
    """

    def __init__(
        self, step: Step, starts: Sequence[Any], actions: Sequence[Any], bound_for: Places, starter: Starter
    ) -> None:
        self._starts, self._actions = starts, actions
        self._messages = []
        for place, piece in enumerate(step.starts):
            spans = piece.reads + piece.writes
            spots = [_spot(span, bound_for) for span in spans]
            if any(spots):
                self._messages.append((place, starts[place][0], starter(piece), list(zip(spots, spans))))
        self._computed = []
        for place, piece in enumerate(step.local):
            spans = piece.reads + piece.writes if piece.kind is Reduce else piece.writes + piece.reads
            moved = [(number, spot) for number, span in enumerate(spans) if (spot := _spot(span, bound_for))]
            if moved:
                self._computed.append((place, moved))
        self.moves = bool(self._messages or self._computed)

    def starts(self, memory: Places) -> tuple[Any, ...]:
        """What starts its messages in this memory."""
        starts = list(self._starts)
        for place, number, start, places in self._messages:
            starts[place] = number, start([span if spot is None else spot.span(memory) for spot, span in places])
        return tuple(starts)

    def actions(self, memory: Places) -> tuple[Any, ...]:
        """What it computes there."""
        if not self._computed:
            return tuple(self._actions)
        actions = list(self._actions)
        for place, spots in self._computed:
            function, arguments = actions[place]
            arguments = list(arguments)
            for number, (buffer, low, high) in spots:
                arguments[number] = buffers.at(memory[buffer][0] + low, high - low, arguments[number].dtype)
            actions[place] = function, tuple(arguments)
        return tuple(actions)


def _spot(span: Span, places: Places) -> Spot | None:
    """Where a span lies in the buffers; None for all other memory."""
    for buffer, (start, nbytes) in enumerate(places):
        if start <= span[0] < start + nbytes:
            return Spot(buffer, span[0] - start, span[1] - start)
    return None


class Movable:
    """A plan that may work on other memory than that it was bound for.

    memory: the buffers that it works on. numbered: its steps there; steps: where it was bound for, None once it is freed.
    """

    steps: list[BoundStep] | None
    numbered: Numbered
    work: Work
    messages: int
    starter: Starter

    @property
    def movable(self) -> bool:
        """Whether it may work on other memory: that of the host, which nothing has to be copied from or to."""
        return self.work.device is None and not self.work.packing and not self.work.unpacking

    @property
    def requests(self) -> int:
        """Messages that it is bound for, wherever they lie."""
        return self.messages * len(self._placed)

    def lies_in(self, memory: Places) -> Self:
        """Say which buffers it was bound for; returns it."""
        self.memory = memory
        self._moving: list[Moving] = []
        self._placed = {memory: self.numbered}
        return self

    def move(self, memory: Places) -> None:
        """Work on these buffers from now on: of the sizes of those it was bound for, the same or apart as those are."""
        assert self.steps is not None
        numbered = self._placed.pop(memory, None)
        if numbered is None:
            numbered = self._numbered_in(memory)
        while self._placed and (len(self._placed) >= KNOWN_CALLS or 4 * self.requests > KEPT_REQUESTS):
            del self._placed[next(iter(self._placed))]
        self._placed[memory] = self.numbered = numbered  # the last to go
        self.memory = memory

    def _numbered_in(self, memory: Places) -> Numbered:
        assert self.steps is not None
        if not self._moving:
            self._moving = [Moving(one.step, one.starts, one.actions, self.memory, self.starter) for one in self.steps]
        numbered = []
        for moving, one in zip(self._moving, self.numbered):
            if moving.moves:
                number, (_, waits, _, messages, nbytes, in_round, text, step) = one
                starts, actions = moving.starts(memory), moving.actions(memory)
                one = number, BoundStep(starts, waits, actions, messages, nbytes, in_round, text, step)
            numbered.append(one)
        return numbered
