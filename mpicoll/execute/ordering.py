"""The order in which a rank starts, awaits and computes: round by round, or piece by piece across rounds.

In pieces, a piece goes out as soon as it is reduced, while later pieces of its round are still on their way. The order
is fixed when a plan is bound, so that running it decides nothing:

* Every message piece has a *position*: its round, then its place among the round's pieces for that peer. A rank awaits a
  piece at its position or later and starts it at its position or earlier. That this comes to an end however little MPI
  buffers is proved by the verifier with messages cut in two (`verify.flows_in_pieces`); an algorithm of which it cannot
  be proved runs round by round.
* Starts come up to `ahead` positions early, as far as memory allows: nothing is sent before it is computed, nothing
  received where an earlier piece is still needed. Sends are awaited up to `ahead` positions late. So at most about
  2 `ahead` requests per peer and direction are alive, whatever the size of the vector.

This module knows neither MPI nor NumPy.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

from ..schedule import Recv, Send

Span = tuple[int, int]


class Piece(NamedTuple):
    """A piece of an operation. reads, writes: spans (start, end) of one address space; work: what the caller attaches."""

    kind: type
    peer: int | None
    reads: tuple[Span, ...]
    writes: tuple[Span, ...]
    work: Any

    @property
    def is_message(self) -> bool:
        """Whether it is sent or received, and not computed."""
        return self.kind is Send or self.kind is Recv


class Step(NamedTuple):
    """What a rank does next: start these messages, wait for those, then compute. round: which round's turn it is."""

    round: int
    starts: list[Piece]
    waits: list[Piece]
    local: list[Piece]


def by_rounds(rounds: Iterable[list[Piece]]) -> Iterator[Step]:
    """One step per round, everything that it starts awaited in it. rounds: lists of pieces, receives first."""
    for number, pieces in enumerate(rounds):
        messages = [piece for piece in pieces if piece.is_message]
        yield Step(number, messages, messages, [piece for piece in pieces if not piece.is_message])


def by_pieces(rounds: list[list[Piece]], ahead: int) -> list[Step]:
    """Steps in which pieces overtake the rounds' ends. rounds: lists of pieces, receives first, then sends."""
    steps, firsts = _empty_steps(rounds)
    pieces = list(chain.from_iterable(rounds))
    follows = _dependencies(pieces)
    positions = _positions(rounds, firsts, follows)
    deadlines = _deadlines(pieces, follows, positions, ahead)
    started: dict[tuple[type, int | None], int] = defaultdict(int)  # the last start per peer and direction
    for number, piece in enumerate(pieces):
        if not piece.is_message:
            steps[positions[number]].local.append(piece)
            continue
        ready = max([deadlines[other] for other in follows[number]], default=-1)
        channel = piece.kind, piece.peer
        started[channel] = start = max(ready + 1, positions[number] - ahead, started[channel])
        steps[start].starts.append(piece)
        steps[min(deadlines[number], len(steps) - 1)].waits.append(piece)
    for step in steps:
        for messages in (step.starts, step.waits):
            messages.sort(key=lambda piece: piece.kind is not Recv)
    return steps


def _empty_steps(rounds: list[list[Piece]]) -> tuple[list[Step], list[int]]:
    """A step for every position, and the first position of each round."""
    steps: list[Step] = []
    firsts = []
    for number, pieces in enumerate(rounds):
        firsts.append(len(steps))
        channels: dict[tuple[type, int | None], int] = defaultdict(int)
        for piece in pieces:
            channels[piece.kind, piece.peer] += piece.is_message
        # as many as its longest channel has messages, or one for local work alone
        steps += [Step(number, [], [], []) for _ in range(max([1, *channels.values()]))]
    return steps, firsts


def _dependencies(pieces: list[Piece]) -> list[set[int]]:
    """For each piece the numbers of the earlier ones that must be done with the memory it uses.

    Those that wrote what it reads or writes, and those that read, since the last write, what it writes.
    """
    edges = sorted({edge for piece in pieces for span in piece.reads + piece.writes for edge in span})
    index = {edge: number for number, edge in enumerate(edges)}  # memory in stretches: they end wherever some span does
    writer = [-1] * len(edges)
    readers: list[tuple[int, ...]] = [()] * len(edges)
    follows = []

    def stretches(spans: tuple[Span, ...]) -> Iterator[int]:
        for start, end in spans:
            yield from range(index[start], index[end])

    for number, piece in enumerate(pieces):
        read, written = list(stretches(piece.reads)), list(stretches(piece.writes))
        earlier = {writer[at] for at in chain(read, written)}
        earlier.update(chain.from_iterable(readers[at] for at in written))
        follows.append(earlier - {-1})
        for at in written:
            writer[at], readers[at] = number, ()
        for at in read:
            readers[at] += (number,)
    return follows


def _positions(rounds: list[list[Piece]], firsts: list[int], follows: list[set[int]]) -> list[int]:
    """Where the turn of each piece comes: of a message by its place in its channel, of local work after what it follows."""
    positions: list[int] = []
    for first, pieces in zip(firsts, rounds):
        taken: dict[tuple[type, int | None], int] = defaultdict(int)
        for piece in pieces:
            if piece.is_message:
                positions.append(first + taken[piece.kind, piece.peer])
                taken[piece.kind, piece.peer] += 1
            else:
                earlier = (positions[other] for other in follows[len(positions)])
                positions.append(max([first, *earlier]))
    return positions


def _deadlines(pieces: list[Piece], follows: list[set[int]], positions: list[int], ahead: int) -> list[int]:
    """The position after which each piece is through: a send's is late, unless its memory is needed earlier."""
    deadlines = [at + ahead if piece.kind is Send else at for piece, at in zip(pieces, positions)]
    for number, piece in enumerate(pieces):
        # local work runs at the end of its step, a message starts at the beginning of one
        needed = positions[number] - piece.is_message
        for other in follows[number]:
            if pieces[other].kind is Send:
                deadlines[other] = min(deadlines[other], needed)
    return deadlines
