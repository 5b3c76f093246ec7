"""The check of `Write`: no rank uses memory before another rank has written it.

A rank may write into memory of another rank from the first round on.
"""

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
BlockKey: TypeAlias = "tuple[str, int]"


class _Use(NamedTuple):
    """An operation of a rank in a round: one end of a message, or local."""

    rank: int
    round: int
    operation: Any


def writes(programs: Programs) -> bool:
    """Whether any rank writes into memory of another rank."""
    messages = (op for steps in programs for step in steps for op in (*step.sends, *step.receives))
    return any(type(op) in (Write, Written) for op in messages)


def must_leave_alone_what_is_written(programs: Programs, blocks: int, in_place: bool) -> None:
    """Raise ScheduleError for a use of memory before it is written, or a `Write` without `Written`.

    The exception is a send to the writer, which receives it in an earlier round than it writes.
    programs: the sorted rounds of every rank; in_place: input and output may be the same memory.
    """
    messages = [_messages_of(rank, steps) for rank, steps in enumerate(programs)]
    partner = _partners(messages)
    for rank, steps in enumerate(programs):
        uses = _uses(messages[rank], steps, blocks, in_place)
        for written in messages[rank]:
            if type(written.operation) is not Written:
                continue
            writer = partner[id(written)]
            for block in _blocks(written.operation.part, blocks, in_place):
                for use in uses[block]:
                    reader = partner.get(id(use))
                    if _comes_before(use, written) and not _is_read_by(writer, reader):
                        raise ScheduleError(
                            f"rank {rank}, round {use.round + 1}: {use.operation} uses what "
                            f"rank {writer.rank} writes for round {written.round + 1}, "
                            "maybe before it"
                        )


def _messages_of(rank: int, steps: Sequence[SortedRound]) -> list[_Use]:
    return [
        _Use(rank, number, op)
        for number, step in enumerate(steps)
        for op in (*step.sends, *step.receives)
    ]


def _comes_before(use: _Use, written: _Use) -> bool:
    """Whether memory may be used before it is written; local operations come after the messages."""
    if use.round != written.round:
        return use.round < written.round
    return use is not written and type(use.operation) in MESSAGES


def _is_read_by(writer: _Use, reader: _Use | None) -> bool:
    """Whether the writer itself receives a message before it writes."""
    return (
        reader is not None
        and type(reader.operation) is Recv
        and reader.rank == writer.rank
        and reader.round < writer.round
    )


def _partners(messages: Sequence[Sequence[_Use]]) -> dict[int, _Use]:
    """The other end of each message, by the id of an end; a `Write` has to meet a `Written`."""
    channels: dict[tuple[int, int], tuple[list[_Use], list[_Use]]] = defaultdict(lambda: ([], []))
    for end in chain.from_iterable(messages):
        peer = end.operation.peer
        if type(end.operation) in SENDS:
            channels[end.rank, peer][0].append(end)
        else:
            channels[peer, end.rank][1].append(end)
    partner: dict[int, _Use] = {}
    for sends, receives in channels.values():
        for send, receive in zip(sends, receives):
            if (type(send.operation) is Write) != (type(receive.operation) is Written):
                raise ScheduleError(
                    f"rank {send.rank}, round {send.round + 1}: {send.operation} meets "
                    f"{receive.operation} of rank {receive.rank}, round {receive.round + 1}"
                )
            partner[id(send)] = receive
            partner[id(receive)] = send
    return partner


def _uses(
    messages: Sequence[_Use], steps: Sequence[SortedRound], blocks: int, in_place: bool
) -> dict[BlockKey, list[_Use]]:
    """The messages and local operations of a rank, by the blocks that they use."""
    uses: dict[BlockKey, list[_Use]] = defaultdict(list)
    local = [_Use(-1, number, op) for number, step in enumerate(steps) for op in step.local]
    for use in (*messages, *local):
        parts = use.operation[1:] if type(use.operation) in MESSAGES else use.operation
        for block in {block for part in parts for block in _blocks(part, blocks, in_place)}:
            uses[block].append(use)
    return uses


def _blocks(part: Part, blocks: int, in_place: bool) -> Iterator[BlockKey]:
    place = OUTPUT if in_place and part.place == INPUT else part.place
    return ((place, number % blocks) for number in range(part.first, part.first + part.count))
