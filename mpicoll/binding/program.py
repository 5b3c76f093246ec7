"""A program: what one rank does in one collective, as data.

An instruction has a kind, a peer and addresses, and nothing of Python's: a program prints, it can
be compared, it can be moved to other memory, and another interpreter could execute it. Passes make
it from the rounds of a schedule (`lowering`, `device_copies`, `reduced`, `ordering`); `executable`
makes it ready for the interpreter, which is `ScheduledCall._steps`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import NamedTuple

from ..schedule import RECEIVES, SENDS

#: addresses: of the first byte, and behind the last one
Span = tuple[int, int]
#: (address, bytes) of each buffer of a call
Places = tuple[tuple[int, int], ...]


class Fetch:
    """The kind of an instruction that copies from a device to the host."""


class Put:
    """The kind of an instruction that copies from the host to a device."""


class Encode:
    """The kind of an instruction that writes the codes of some elements."""


class Decode:
    """The kind of an instruction that writes the elements of some codes."""


class Instruction(NamedTuple):
    """What a rank does to memory, as a part of its program.

    kind: Send, Recv, Write, Written, Reduce, Copy (`schedule`), Encode, Decode, Fetch or Put.
    reads, writes: where; of a Reduce (lower operand, higher operand) and (result,).
    operand: of a message that is reduced as it comes, which operand it is, 0 or 1; the other one
    is what is read, the result what is written. landing: where it lies until then, if it has to
    be received; None: where the result goes. first: of what its step starts it is awaited first.
    """

    kind: type
    peer: int | None
    reads: tuple[Span, ...]
    writes: tuple[Span, ...]
    operand: int | None = None
    landing: Span | None = None
    first: bool = False

    @property
    def spans(self) -> tuple[Span, ...]:
        """All memory that it uses."""
        return self.reads + self.writes

    @property
    def span(self) -> Span:
        """The memory of a message or a copy."""
        return (self.reads or self.writes)[0]

    @property
    def nbytes(self) -> int:
        """Bytes of a message or a copy."""
        start, end = self.span
        return end - start

    @property
    def is_message(self) -> bool:
        """Whether it sends or receives."""
        return self.is_sent or self.is_received

    @property
    def is_sent(self) -> bool:
        """Whether it sends to its peer."""
        return self.kind in SENDS

    @property
    def is_received(self) -> bool:
        """Whether it receives from its peer."""
        return self.kind in RECEIVES

    @property
    def is_copied(self) -> bool:
        """Whether it copies from a device to the host, or back."""
        return self.kind is Fetch or self.kind is Put

    @property
    def is_started(self) -> bool:
        """Whether it is started first and awaited later, and not computed at once."""
        return self.is_message or self.is_copied

    def moved(self, move: Callable[[Span], Span]) -> Instruction:
        """The same on other memory."""
        reads = tuple(map(move, self.reads))
        writes = tuple(map(move, self.writes))
        return self._replace(reads=reads, writes=writes)

    def __str__(self) -> str:
        words = [self.kind.__name__.lower()]
        if self.peer is not None:
            words.append(f"{'to' if self.is_sent else 'from'} rank {self.peer}")
        if self.operand is not None:
            words.append(f"reduced as operand {self.operand}")
        words += [f"reads {start:#x}+{end - start}" for start, end in self.reads]
        words += [f"writes {start:#x}+{end - start}" for start, end in self.writes]
        return ", ".join(words)


class Step(NamedTuple):
    """What a rank does next: start these, wait for those, then compute.

    round: of the schedule.
    """

    round: int
    starts: list[Instruction]
    waits: list[Instruction]
    local: list[Instruction]


class Program(NamedTuple):
    """The steps of one rank. dtype, op: of all that it reduces. compression: of its codes."""

    steps: tuple[Step, ...]
    dtype: str
    op: str = ""
    compression: str = ""

    def __str__(self) -> str:
        op = self.op and f", op: {self.op}"
        codes = self.compression and f", codes: {self.compression}"
        return "\n".join([f"elements: {self.dtype}{op}{codes}", *self.lines()])

    def lines(self) -> Iterator[str]:
        """One line for each thing that the interpreter does."""
        numbers = {id(piece): number for number, piece in enumerate(self.started())}
        for step in self.steps:
            yield f"round {step.round + 1}:"
            yield from (f"  {numbers[id(piece)]}: start {piece}" for piece in step.starts)
            yield from (f"  wait for {numbers[id(piece)]}" for piece in step.waits)
            yield from (f"  {piece}" for piece in step.local)

    def started(self) -> Iterator[Instruction]:
        """The instructions that are started, in order: a wait names the number of one of them."""
        return chain.from_iterable(step.starts for step in self.steps)


def mover(old: Places, new: Places) -> Callable[[Span], Span]:
    """A function that moves a span in some buffers to others of the same sizes."""
    shifts = [
        (start, start + nbytes, to - start) for (start, nbytes), (to, _) in zip(old, new)
    ]

    def move(span: Span) -> Span:
        for low, high, shift in shifts:
            if low <= span[0] < high:
                return span[0] + shift, span[1] + shift
        return span

    return move


def lies_in(span: Span, places: Places) -> bool:
    """Whether it lies in one of these buffers."""
    return any(start <= span[0] < start + nbytes for start, nbytes in places)
