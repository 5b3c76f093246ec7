"""The pass that reduces messages of the node where they lie.

A rank that needs a message for one reduction alone does not receive it: it reduces from the
sender's memory, when it would have received. That is allowed where nothing can tell the difference
but the clock; all else is copied.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from operator import itemgetter

from ..schedule import Recv, Reduce, Send
from .ordering import stretches
from .program import Instruction, Span

Rounds = list[list[Instruction]]


def reduced_where_they_lie(
    rounds: Rounds, peers: Collection[int], slot: int, is_shared: Callable[[Span], bool],
    scratch: Span,
) -> Rounds:  # fmt: skip
    """The same rounds, with such messages in the place of a receive and a reduction.

    peers: the ranks of the node. slot: bytes of a message that lies in a slot of shared memory as
    soon as it is sent, unless it is_shared itself; 0 where rounds overlap. scratch: memory that is
    not read after the call.
    """
    readers = _readers(rounds)

    def is_buffered(send: Instruction) -> bool:
        """Whether a message lies in a slot before anything else is done."""
        in_slot = send.kind is Send and send.peer in peers and send.nbytes <= slot
        return in_slot and not is_shared(send.span)

    return [
        _with_reduced(instructions, _Sources(instructions, peers, readers, scratch), is_buffered,
                      bool(slot))
        for instructions in rounds
    ]  # fmt: skip


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
    sources: _Sources,
    is_buffered: Callable[[Instruction], bool],
    by_rounds: bool,
) -> list[Instruction]:
    """One round."""
    used = stretches(instructions)
    receives = [piece for piece in instructions if piece.is_received]
    sends = [piece for piece in instructions if piece.is_sent]
    computed = [piece for piece in instructions if not piece.is_message]
    #: what a message in the place of a reduction must not overtake
    before = _Accesses(used)
    if not by_rounds:  # in pieces, what is started early follows nothing of its own round
        before.add(*receives)
    sent = _Accesses(used)
    sent.add(*sends)
    taken: dict[int, Instruction] = {}
    first: set[int] = set()
    left: list[Instruction] = []
    for piece in computed:
        source = sources.of(piece)
        hindered = sent.readers(piece.writes)
        if (
            source is None
            or before.conflict(piece, source)
            or not all(map(is_buffered, hindered))
        ):
            left.append(piece)
            before.add(piece)
            continue
        first.update(map(id, hindered))
        taken[id(source)] = _taken(piece, source)
        if not by_rounds:
            before.add(taken[id(source)])
    # what is received for later reductions of the round must have come before they read it
    plain = [piece for piece in receives if id(piece) not in taken]
    if _overtakes(receives, [*map(id, plain), *taken]):
        return instructions
    sends = [piece._replace(first=True) if id(piece) in first else piece for piece in sends]
    return [*plain, *taken.values(), *sends, *left]


class _Accesses:
    """Which instructions of a round read and write each stretch of memory."""

    def __init__(self, used: Callable[[Iterable[Span]], Iterator[int]]) -> None:
        self._used = used
        self._readers: defaultdict[int, list[Instruction]] = defaultdict(list)
        self._writers: defaultdict[int, list[Instruction]] = defaultdict(list)

    def add(self, *instructions: Instruction) -> None:
        """Add what these do."""
        for piece in instructions:
            for at in self._used(piece.reads):
                self._readers[at].append(piece)
            for at in self._used(piece.writes):
                self._writers[at].append(piece)

    def readers(self, spans: Iterable[Span]) -> list[Instruction]:
        """Those that read there, each as often as it reads a stretch of it."""
        return [piece for at in self._used(spans) for piece in self._readers.get(at, ())]

    def conflict(self, piece: Instruction, source: Instruction) -> bool:
        """Whether any but `source` writes what the piece uses, or reads what it writes."""
        written = (self._writers.get(at, ()) for at in self._used(piece.spans))
        read = (self._readers.get(at, ()) for at in self._used(piece.writes))
        return any(other is not source for others in chain(written, read) for other in others)


class _Sources:
    """The messages of a round that a reduction may read from the sender's memory."""

    def __init__(
        self,
        instructions: Iterable[Instruction],
        peers: Collection[int],
        readers: dict[int, set[int]],
        scratch: Span,
    ) -> None:
        self._readers = readers
        self._scratch = scratch
        self._by_span: defaultdict[Span, list[tuple[int, Instruction]]] = defaultdict(list)
        for place, piece in enumerate(instructions):
            if piece.kind is Recv and piece.peer in peers:
                self._by_span[piece.writes[0]].append((place, piece))

    def of(self, piece: Instruction) -> Instruction | None:
        """The message that this instruction alone reads, if it may be read by the reduction."""
        if piece.kind is not Reduce or piece.reads[0] == piece.reads[1]:
            return None
        low, high = self._scratch
        arrived = chain.from_iterable(self._by_span.get(span, ()) for span in piece.reads)
        for _, receive in sorted(arrived, key=itemgetter(0)):
            is_result = not low <= receive.writes[0][0] < high
            fits = not is_result or receive.writes == piece.writes
            if fits and self._readers[id(receive)] == {id(piece)}:
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
    sent: defaultdict[int | None, list[int]] = defaultdict(list)
    awaited: defaultdict[int | None, list[int]] = defaultdict(list)
    for key, peer in peers.items():
        sent[peer].append(key)
    for key in ordered:
        awaited[peers[key]].append(key)
    return sent != awaited
