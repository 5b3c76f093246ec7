"""The pass that reduces messages of the node where they lie.

A rank that needs a message for one reduction alone does not receive it: it reduces from the
sender's memory, when it would have received. That is allowed where nothing can tell the difference
but the clock; all else is copied.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain

from ..schedule import Recv, Reduce, Send
from ..shared_memory import HEAP
from .ordering import stretches
from .program import Instruction, Span

Rounds = list[list[Instruction]]


def reduced_where_they_lie(rounds: Rounds, peers: Collection[int], slot: int, scratch: Span) -> Rounds:
    """The same rounds, with such messages in the place of a receive and a reduction.

    peers: the ranks of the node. slot: bytes of a message that lies in a slot of shared memory as
    soon as it is sent; 0 where rounds overlap. scratch: memory of which nobody reads anything
    after the call.
    """
    readers = _readers(rounds)
    return [_with_reduced(instructions, peers, readers, scratch, slot) for instructions in rounds]


def _readers(rounds: Rounds) -> dict[int, set[int]]:
    """Who reads what was received, before something else is written there: by their ids."""
    used = stretches(chain.from_iterable(rounds))
    received: dict[int, int] = {}
    readers: dict[int, set[int]] = {}
    for instructions in rounds:
        for one in sorted(instructions, key=_order_of_use):
            for at in used(one.reads):
                if at in received:
                    readers[received[at]].add(id(one))
            if one.is_received:
                readers[id(one)] = set()
            for at in used(one.writes):
                if one.is_received:
                    received[at] = id(one)
                else:
                    received.pop(at, None)
    return readers


def _order_of_use(one: Instruction) -> int:
    """In a round what is sent is read first, and received is what is computed with."""
    return 0 if one.is_sent else 1 if one.is_received else 2


def _with_reduced(
    instructions: list[Instruction],
    peers: Collection[int],
    readers: dict[int, set[int]],
    scratch: Span,
    slot: int,
) -> list[Instruction]:
    """One round."""
    receives = [one for one in instructions if one.is_received]
    sends = [one for one in instructions if one.is_sent]
    computed = [one for one in instructions if not one.is_message]
    taken: dict[int, Instruction] = {}
    first: set[int] = set()
    left: list[Instruction] = []
    for one in computed:
        source = _source(one, receives, peers, readers, scratch)
        hindered = [send for send in sends if _touch(send.reads, one.writes)]
        # in pieces, what is started early follows nothing of its own round
        before = left
        if not slot:
            before = left + [other for other in [*receives, *taken.values()] if other is not source]
        if (
            source is None
            or any(
                _touch(one.spans, other.writes) or _touch(one.writes, other.reads) for other in before
            )
            or not all(_is_buffered(send, peers, slot) for send in hindered)
        ):
            left.append(one)
            continue
        first.update(map(id, hindered))
        taken[id(source)] = _taken(one, source)
    # what is received for later reductions of the round must have come before they read it
    plain = [one for one in receives if id(one) not in taken]
    if _overtakes(receives, [*map(id, plain), *taken]):
        return instructions
    sends = [one._replace(first=True) if id(one) in first else one for one in sends]
    return [*plain, *taken.values(), *sends, *left]


def _source(
    one: Instruction,
    receives: list[Instruction],
    peers: Collection[int],
    readers: dict[int, set[int]],
    scratch: Span,
) -> Instruction | None:
    """The message that a reduction may take where it lies."""
    if one.kind is not Reduce:
        return None
    for receive in receives:
        is_near = receive.kind is Recv and receive.peer in peers
        if is_near and readers[id(receive)] == {id(one)} and receive.writes[0] in one.reads:
            is_result = not scratch[0] <= receive.writes[0][0] < scratch[1]
            if one.reads[0] != one.reads[1] and (not is_result or receive.writes == one.writes):
                return receive
    return None


def _taken(one: Instruction, source: Instruction) -> Instruction:
    """The message that is reduced."""
    operand = one.reads.index(source.writes[0])
    landing = None if source.writes == one.writes else source.writes[0]
    return source._replace(
        reads=(one.reads[1 - operand],), writes=one.writes, operand=operand, landing=landing
    )


def _overtakes(receives: list[Instruction], ordered: list[int]) -> bool:
    """Whether messages of one rank would be awaited in another order than they are sent.

    ordered: ids.
    """
    peers = {id(one): one.peer for one in receives}
    return any(
        [key for key in ordered if peers[key] == peer] != [key for key in peers if peers[key] == peer]
        for peer in set(peers.values())
    )


def _is_buffered(send: Instruction, peers: Collection[int], slot: int) -> bool:
    """Whether a message lies in a slot before anything else is done."""
    in_slot = send.kind is Send and send.peer in peers and send.nbytes <= slot
    return in_slot and HEAP.location(send.span[0], send.nbytes) is None


def _touch(some: tuple[Span, ...], others: tuple[Span, ...]) -> bool:
    return any(low < end and start < high for low, high in some for start, end in others)
