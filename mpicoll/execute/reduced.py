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


def reduced_where_they_lie(
    rounds: Rounds, peers: Collection[int], slot: int, scratch: Span
) -> Rounds:
    """The same rounds, with such messages in the place of a receive and a reduction.

    peers: the ranks of the node. slot: bytes of a message that lies in a slot of shared memory as
    soon as it is sent; 0 where rounds overlap. scratch: memory that is not read after the call.
    """
    readers = _readers(rounds)
    return [_with_reduced(instructions, peers, readers, scratch, slot) for instructions in rounds]


def _readers(rounds: Rounds) -> dict[int, set[int]]:
    """The ids of the instructions that read each received message, by the message's id."""
    used = stretches(chain.from_iterable(rounds))
    received: dict[int, int] = {}
    readers: dict[int, set[int]] = {}
    for instructions in rounds:
        for piece in sorted(instructions, key=_order_of_use):
            for at in used(piece.reads):
                if at in received:
                    readers[received[at]].add(id(piece))
            if piece.is_received:
                readers[id(piece)] = set()
            for at in used(piece.writes):
                if piece.is_received:
                    received[at] = id(piece)
                else:
                    received.pop(at, None)
    return readers


def _order_of_use(piece: Instruction) -> int:
    """In a round, sends read first, then receives write, then the rest computes."""
    return 0 if piece.is_sent else 1 if piece.is_received else 2


def _with_reduced(
    instructions: list[Instruction],
    peers: Collection[int],
    readers: dict[int, set[int]],
    scratch: Span,
    slot: int,
) -> list[Instruction]:
    """One round."""
    receives = [piece for piece in instructions if piece.is_received]
    sends = [piece for piece in instructions if piece.is_sent]
    computed = [piece for piece in instructions if not piece.is_message]
    taken: dict[int, Instruction] = {}
    first: set[int] = set()
    left: list[Instruction] = []
    for piece in computed:
        source = _source(piece, receives, peers, readers, scratch)
        if source is None:
            left.append(piece)
            continue
        # in pieces, what is started early follows nothing of its own round
        before = left
        if not slot:
            before = left + [other for other in [*receives, *taken.values()] if other is not source]
        in_use = any(
            _touch(piece.spans, other.writes) or _touch(piece.writes, other.reads)
            for other in before
        )
        hindered = [send for send in sends if _touch(send.reads, piece.writes)]
        if in_use or not all(_is_buffered(send, peers, slot) for send in hindered):
            left.append(piece)
            continue
        first.update(map(id, hindered))
        taken[id(source)] = _taken(piece, source)
    # what is received for later reductions of the round must have come before they read it
    plain = [piece for piece in receives if id(piece) not in taken]
    if _overtakes(receives, [*map(id, plain), *taken]):
        return instructions
    sends = [piece._replace(first=True) if id(piece) in first else piece for piece in sends]
    return [*plain, *taken.values(), *sends, *left]


def _source(
    piece: Instruction,
    receives: list[Instruction],
    peers: Collection[int],
    readers: dict[int, set[int]],
    scratch: Span,
) -> Instruction | None:
    """The message that a reduction may read from the sender's memory."""
    if piece.kind is not Reduce:
        return None
    for receive in receives:
        is_near = receive.kind is Recv and receive.peer in peers
        if is_near and readers[id(receive)] == {id(piece)} and receive.writes[0] in piece.reads:
            is_result = not scratch[0] <= receive.writes[0][0] < scratch[1]
            fits = not is_result or receive.writes == piece.writes
            if fits and piece.reads[0] != piece.reads[1]:
                return receive
    return None


def _taken(piece: Instruction, source: Instruction) -> Instruction:
    """The message that is reduced."""
    operand = piece.reads.index(source.writes[0])
    landing = None if source.writes == piece.writes else source.writes[0]
    return source._replace(
        reads=(piece.reads[1 - operand],), writes=piece.writes, operand=operand, landing=landing
    )


def _overtakes(receives: list[Instruction], ordered: list[int]) -> bool:
    """Whether messages of one rank would be awaited in another order than they are sent.

    ordered: ids.
    """
    peers = {id(piece): piece.peer for piece in receives}
    for peer in set(peers.values()):
        sent = [key for key in peers if peers[key] == peer]
        if [key for key in ordered if peers[key] == peer] != sent:
            return True
    return False


def _is_buffered(send: Instruction, peers: Collection[int], slot: int) -> bool:
    """Whether a message lies in a slot before anything else is done."""
    in_slot = send.kind is Send and send.peer in peers and send.nbytes <= slot
    return in_slot and HEAP.location(send.span[0], send.nbytes) is None


def _touch(some: tuple[Span, ...], others: tuple[Span, ...]) -> bool:
    return any(low < end and start < high for low, high in some for start, end in others)
