"""Whether ranks leave memory alone until others have written it, who may do so from the first round on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ..errors import ScheduleError
from ..schedule import INPUT, MESSAGES, OUTPUT, SENDS, Part, Recv, Write, Written

if TYPE_CHECKING:
    from .symbolic import SortedRound

    Programs = Sequence[Sequence[SortedRound]]

#: a place, and the number of a block
Block: TypeAlias = "tuple[str, int]"


class _End(NamedTuple):
    """One end of a message: whose, in which round, and the operation."""

    rank: int
    round: int
    operation: Any


def writes(programs: Programs) -> bool:
    """Whether any rank writes into another's memory, or awaits that."""
    return any(type(op) in (Write, Written) for steps in programs for step in steps for op in (*step.sends, *step.receives))


def must_leave_alone_what_is_written(programs: Programs, blocks: int, in_place: bool) -> None:
    """Raise ScheduleError where memory is used before another rank has written it, or a write meets no `Written`.

    The one use that is allowed is to send it to the writer, who has read it in an earlier round than that in which it writes.
    programs: the sorted rounds of every rank; in_place: input and output may be the same memory.
    """
    ends = [[_End(rank, number, op) for number, step in enumerate(steps) for op in (*step.sends, *step.receives)]
            for rank, steps in enumerate(programs)]  # fmt: skip
    partner = _partners(ends)
    for rank, steps in enumerate(programs):
        uses = _uses(ends[rank], steps, blocks, in_place)
        for end in ends[rank]:
            if type(end.operation) is not Written:
                continue
            writer = partner[id(end)]
            for block in _blocks(end.operation.part, blocks, in_place):
                for use in uses[block]:
                    if _comes_before(use, end) and not _is_read_by(writer, partner.get(id(use))):
                        raise ScheduleError(f"rank {rank}, round {use.round + 1}: {use.operation} uses what rank {writer.rank} "
                                            f"writes for round {end.round + 1}, maybe before it")  # fmt: skip


def _comes_before(use: _End, written: _End) -> bool:
    """Whether memory is used before it is known to be written; what is computed in a round comes after its messages."""
    return use.round < written.round or use.round == written.round and use is not written and type(use.operation) in MESSAGES


def _is_read_by(writer: _End, reader: _End | None) -> bool:
    """Whether what was sent was read by the writer, before it writes."""
    return (
        reader is not None
        and type(reader.operation) is Recv
        and reader.rank == writer.rank
        and reader.round < writer.round
    )


def _partners(ends: Sequence[Sequence[_End]]) -> dict[int, _End]:
    """The other end of each message, by the id of this one; a write has to meet a `Written`."""
    channels: dict[tuple[int, int], tuple[list[_End], list[_End]]] = defaultdict(lambda: ([], []))
    for end in chain.from_iterable(ends):
        peer = end.operation.peer
        if type(end.operation) in SENDS:
            channels[end.rank, peer][0].append(end)
        else:
            channels[peer, end.rank][1].append(end)
    partner: dict[int, _End] = {}
    for sent, received in channels.values():
        for one, other in zip(sent, received):
            if (type(one.operation) is Write) != (type(other.operation) is Written):
                raise ScheduleError(f"rank {one.rank}, round {one.round + 1}: {one.operation} meets {other.operation} of "
                                    f"rank {other.rank}, round {other.round + 1}")  # fmt: skip
            partner[id(one)], partner[id(other)] = other, one
    return partner


def _uses(ends: Sequence[_End], steps: Sequence[SortedRound], blocks: int, in_place: bool) -> dict[Block, list[_End]]:
    """For each block the messages of a rank, and what it computes, that use it."""
    uses: dict[Block, list[_End]] = defaultdict(list)
    computed = [_End(-1, number, op) for number, step in enumerate(steps) for op in step.local]
    for end in (*ends, *computed):
        parts = end.operation[1:] if type(end.operation) in MESSAGES else end.operation
        for block in {block for part in parts for block in _blocks(part, blocks, in_place)}:
            uses[block].append(end)
    return uses


def _blocks(part: Part, blocks: int, in_place: bool) -> Iterator[Block]:
    place = OUTPUT if in_place and part.place == INPUT else part.place
    return ((place, number % blocks) for number in range(part.first, part.first + part.count))
