"""Messages inside a node: which of them are reduced where they lie, and how they are bound.

A rank that needs a message for one reduction alone does not receive it: it reduces from the sender's memory, when it would
have received. That is allowed where nothing can tell the difference but the clock; all else is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, filterfalse
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from .. import buffers
from ..schedule import Recv, Reduce, Send, Write, Written
from ..shared_memory import BLOCKING, HEAP, PLANS, TASKS, Distant, Incoming, Landing, Links, Outgoing, Writing
from .channel import Channel
from .ordering import Piece, Span, Spans, Step


class Reduced(NamedTuple):
    """The work of a message that is reduced where it lies: reduce(lower, higher, into), the message being `place` of these.

    landing: where it would have been received; None: in `into`.
    """

    function: Callable[..., object]
    other: Any
    into: Any
    place: int
    landing: Any

    @property
    def nbytes(self) -> int:
        """Of the message."""
        nbytes: int = self.into.nbytes
        return nbytes


class Near:
    """The ranks of the node, as a call of one kind reaches them."""

    def __init__(self, links: Links, channel: Channel, nonblocking: bool, persistent: bool) -> None:
        self.ranks, self._links, self._channel = frozenset(links.ranks), links, channel
        self._kind = PLANS if persistent else TASKS if nonblocking else BLOCKING
        self.chunk = links.chunk

    def distant(self, start: Callable[[int], MPI.Request]) -> Callable[[int], Distant]:
        """What starts a message to or from another node."""
        pace = self._links.pace(self._kind)
        return lambda tag: Distant(start(tag), pace)

    def opened_first(self, steps: Iterable[Step]) -> list[Step]:
        """The same steps, in which memory that others of the node may write to is told to them first of all."""
        steps = list(steps)
        is_open: Callable[[Piece], bool] = lambda piece: piece.kind is Written and piece.peer in self.ranks
        opened = [piece for step in steps for piece in filter(is_open, step.starts)]
        if not opened:
            return steps
        left = [step._replace(starts=list(filterfalse(is_open, step.starts))) for step in steps]
        return [left[0]._replace(starts=opened + left[0].starts), *left[1:]]

    def starter(self, piece: Piece) -> Callable[[Spans], Callable[[int], Any]]:
        """What makes, of the memory of a message, a function of the tag that starts it there."""
        rank, work = piece.peer, piece.work
        assert rank is not None
        outward, inward = self._links.to(rank, self._kind), self._links.from_(rank, self._kind)
        peer = self._links.peers[rank]
        if piece.is_sent:
            message = partial(Writing, inward, peer) if piece.kind is Write else Outgoing

            def send(spans: Spans) -> Callable[[int], Any]:
                through_mpi = self._channel.sender(buffers.bytes_at(*spans[0]), rank)
                return message(outward, *spans[0], work.itemsize, through_mpi).start

            return send
        expected = partial(Landing, outward) if piece.kind is Written else Incoming
        dtype = (work.into if type(work) is Reduced else work).dtype

        def receive(spans: Spans) -> Callable[[int], Any]:
            views = [buffers.at(low, high - low, dtype) for low, high in spans]
            if type(work) is Reduced:
                take, take_part = _reduced(work, *views)
                landing = views[-1] if work.landing is None else work.landing
            else:
                (landing,) = views
                take, take_part = _copied(landing)
            through_mpi = self._channel.receiver(buffers.bytes_at(*buffers.span(landing)), rank)
            return expected(inward, peer, landing, through_mpi, take, take_part).start

        return receive


def _copied(into: Any) -> tuple[Callable[..., object], Callable[..., object]]:
    """Functions that take a message, whole and in part, for it to lie in an array."""

    def take(theirs: Any) -> None:
        if theirs is not into:  # it came through MPI
            np.copyto(into, theirs)

    return take, lambda theirs, start, end: np.copyto(into[start:end], theirs)


def _reduced(work: Reduced, other: Any, into: Any) -> tuple[Callable[..., object], Callable[..., object]]:
    """The same, for it to be reduced with another array into one."""
    function = work.function
    if work.place:
        return (lambda theirs: function(other, theirs, into),
                lambda theirs, start, end: function(other[start:end], theirs, into[start:end]))  # fmt: skip
    return (lambda theirs: function(theirs, other, into),
            lambda theirs, start, end: function(theirs, other[start:end], into[start:end]))  # fmt: skip


# Which messages are reduced where they lie.


def reduced_where_they_lie(rounds: list[list[Piece]], near: Near, scratch: Span, whole: bool) -> list[list[Piece]]:
    """The same rounds, with such messages in the place of a receive and a reduction.

    scratch: memory of which nobody reads anything after the call. whole: each round ends before the next one begins.
    """
    readers = _readers(rounds)
    return [_with_reduced(pieces, near.ranks, readers, scratch, near.chunk if whole else 0) for pieces in rounds]


def _readers(rounds: list[list[Piece]]) -> dict[int, set[int]]:
    """Who reads what was received, before something else is written there: pieces by their ids."""
    edges = sorted({edge for piece in chain.from_iterable(rounds) for span in piece.reads + piece.writes for edge in span})
    index = {edge: number for number, edge in enumerate(edges)}
    received: dict[int, int] = {}
    readers: dict[int, set[int]] = {}

    def stretches(spans: tuple[Span, ...]) -> Iterator[int]:
        for low, high in spans:
            yield from range(index[low], index[high])

    for pieces in rounds:
        for piece in sorted(pieces, key=_order_of_use):
            for at in stretches(piece.reads):
                if at in received:
                    readers[received[at]].add(id(piece))
            if piece.is_received:
                readers[id(piece)] = set()
            for at in stretches(piece.writes):
                if piece.is_received:
                    received[at] = id(piece)
                else:
                    received.pop(at, None)
    return readers


def _order_of_use(piece: Piece) -> int:
    """In a round what is sent is read first, and what is received is there before anything is computed."""
    return 0 if piece.is_sent else 1 if piece.is_received else 2


def _with_reduced(
    pieces: list[Piece], near: frozenset[int], readers: dict[int, set[int]], scratch: Span, most: int
) -> list[Piece]:
    """One round. most: bytes of the largest slot; 0: rounds overlap, what is sent waits in no slot."""
    receives = [piece for piece in pieces if piece.is_received]
    sends = [piece for piece in pieces if piece.is_sent]
    computed = [piece for piece in pieces if not piece.is_message]
    taken: dict[int, Piece] = {}
    first: set[int] = set()
    left: list[Piece] = []
    for piece in computed:
        source = _source(piece, receives, near, readers, scratch)
        hindered = [one for one in sends if _touch(one.reads, piece.writes)]
        # in pieces, what is started early follows nothing of its own round
        before = left if most else [*left, *(one for one in [*receives, *taken.values()] if one is not source)]
        if (
            source is None
            or any(_touch(piece.reads + piece.writes, one.writes) or _touch(piece.writes, one.reads) for one in before)
            or not all(_is_buffered(one, near, most) for one in hindered)
        ):
            left.append(piece)
            continue
        first.update(map(id, hindered))
        taken[id(source)] = _taken(piece, source)
    # what is received for later reductions of the round must have come before they read it
    plain = [piece for piece in receives if id(piece) not in taken]
    if _overtakes(receives, [*map(id, plain), *taken]):
        return pieces
    return [*plain, *taken.values(), *(one._replace(first=True) if id(one) in first else one for one in sends), *left]


def _source(
    piece: Piece, receives: list[Piece], near: frozenset[int], readers: dict[int, set[int]], scratch: Span
) -> Piece | None:
    """The message that a reduction may take where it lies."""
    if piece.kind is not Reduce:
        return None
    for one in receives:
        alone = one.kind is Recv and one.peer in near and readers[id(one)] == {id(piece)}
        if alone and one.writes[0] in piece.reads:
            is_result = not scratch[0] <= one.writes[0][0] < scratch[1]
            if piece.reads[0] != piece.reads[1] and (not is_result or one.writes == piece.writes):
                return one
    return None


def _taken(piece: Piece, source: Piece) -> Piece:
    """The message that is reduced."""
    function, (lower, higher, into) = piece.work
    place = piece.reads.index(source.writes[0])
    other = (higher, lower)[place]
    landing = None if source.writes == piece.writes else source.work
    return Piece(Recv, source.peer, (piece.reads[1 - place],), piece.writes, Reduced(function, other, into, place, landing))


def _overtakes(receives: list[Piece], ordered: list[int]) -> bool:
    """Whether messages of one rank would be awaited in another order than they are sent. ordered: ids."""
    peers = {id(one): one.peer for one in receives}
    return any(
        [key for key in ordered if peers[key] == peer] != [key for key in peers if peers[key] == peer]
        for peer in set(peers.values())
    )


def _is_buffered(piece: Piece, near: frozenset[int], most: int) -> bool:
    """Whether a message lies in a slot before anything else is done."""
    low, high = piece.span
    in_slot = piece.kind is Send and piece.peer in near and high - low <= most - piece.work.itemsize
    return in_slot and HEAP.location(low, high - low) is None


def _touch(some: tuple[Span, ...], others: tuple[Span, ...]) -> bool:
    return any(low < end and start < high for low, high in some for start, end in others)
