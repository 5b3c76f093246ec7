"""Spreads: how the blocks of all ranks reach all others, each along a tree of its own.

A spread says for rank 0 from which distances it receives in a round, and whose blocks; other ranks
do the same, shifted. Forwards it is an allgather (`gathered`); backwards, with sums in the place of
copies, a reduce-scatter (`reduced`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from itertools import chain
from typing import NamedTuple

from ...schedule import (
    INPUT,
    Copy,
    Input,
    Operation,
    Output,
    Part,
    Recv,
    Reduce,
    Round,
    Scratch,
    Send,
    joined,
)


class Exchange(NamedTuple):
    """The messages of a rank in one round of an allgather, with numbers of blocks."""

    source: int
    arriving: list[int]
    target: int
    leaving: list[int]

    @property
    def blocks(self) -> list[int]:
        """All blocks that move."""
        return self.arriving + self.leaving


class Spread(NamedTuple):
    """The rounds of an allgather, as rank 0 sees them.

    Attributes
    ----------
    size : int
        Ranks.
    rounds : list of list of (int, list of int)
        In each round: distances to ranks from which messages come, with the ranks whose blocks
        come.
    mirrored : bool
        Odd ranks count in the other direction, so that two ranks send to each other.
    """

    size: int
    rounds: list[list[tuple[int, list[int]]]]
    mirrored: bool = False

    def numbers(self) -> list[int]:
        """A number for each rank, in the order in which their blocks reach rank 0.

        Blocks of these numbers that move together follow one another, where `swing_pairs` has a
        power of two of ranks.
        """
        order = [0, *chain.from_iterable(ranks for moves in self.rounds for _, ranks in moves)]
        return sorted(range(self.size), key=order.__getitem__)

    def exchanges(
        self, rank: int, block_of: Callable[[int], int] = int
    ) -> Iterator[list[Exchange]]:
        """The exchanges of each round. block_of: the number of the block of a rank."""
        sign = -1 if self.mirrored and rank % 2 else 1

        def blocks(origin: int, direction: int, ranks: Iterable[int]) -> list[int]:
            return [block_of((origin + direction * each) % self.size) for each in ranks]

        for moves in self.rounds:
            exchanges = []
            for distance, ranks in moves:
                source = rank + sign * distance
                target = source if self.mirrored else rank - distance
                arriving = blocks(rank, sign, ranks)
                leaving = blocks(target, -sign if self.mirrored else 1, ranks)
                exchanges.append(Exchange(source, arriving, target, leaving))
            yield exchanges


def gathered(rounds: Iterable[list[Exchange]], block: int, own: str = INPUT) -> Iterator[Round]:
    """The allgather of these exchanges. block: of this rank, at first in the place `own`."""
    yield Copy(Part(own, block), Output(block))
    for exchanges in rounds:
        operations: list[Operation] = []
        for source, arriving, target, leaving in exchanges:
            operations += [Send(target, Output(*run)) for run in _runs(leaving)]
            operations += [Recv(source, Output(*run)) for run in _runs(arriving)]
        yield operations


def reduced(rounds: Iterable[list[Exchange]], sums: str = "sum") -> Iterator[Round]:
    """The reduce-scatter of these exchanges, backwards."""
    backwards = list(rounds)[::-1]
    place: Callable[..., Part] = Input
    total: Callable[..., Part] = partial(Scratch, sums)
    for number, exchanges in enumerate(backwards, 1):
        if number == len(backwards):
            total = Output
        operations: list[Operation] = []
        added: set[int] = set()
        for index, (source, arriving, target, leaving) in enumerate(exchanges):
            received = partial(Scratch, f"received {index}")
            operations += [Send(source, place(*run)) for run in _runs(arriving)]
            operations += [Recv(target, received(*run)) for run in _runs(leaving)]
            for mine, blocks in ((place, {*leaving} - added), (total, {*leaving} & added)):
                operations += [
                    Reduce(received(*run), mine(*run), total(*run)) for run in _runs(blocks)
                ]
            added.update(leaving)
        if number == 1:  # later messages have all their blocks from one place
            later = {each for moves in backwards[1:] for move in moves for each in move.blocks}
            operations += [Copy(Input(*run), total(*run)) for run in _runs(later - added)]
        place = total
        yield operations


def even(size: int) -> int:
    """The largest even number up to `size`, and 1 for 1."""
    return max(1, size - size % 2)


def swing_peers(rank: int, size: int) -> list[int]:
    """The partners at distances …, -5, 3, -1, 1; odd ranks count in the other direction.

    These are sums of powers of -2, one for each of ceil(log2 size) rounds; size is even.
    """
    sign = -1 if rank % 2 else 1
    bits = reversed(range((size - 1).bit_length()))
    return [(rank + sign * (1 - (-2) ** (bit + 1)) // 3) % size for bit in bits]


@lru_cache(maxsize=64)
def swing_pairs(size: int) -> Spread:
    """Partners give each other what they lack; for even sizes."""
    present = [0]
    rounds = []
    for distance in swing_peers(0, size):
        theirs = [(distance - each) % size for each in present]
        new = [each for each in theirs if each not in present]
        rounds.append([(distance, new)])
        present += new
    return Spread(size, rounds, mirrored=True)


@lru_cache(maxsize=64)
def near_last(size: int) -> Spread:
    """All I have goes down by …, 4, 2, 1 ranks, as far as no block goes around: PAT's trees."""
    bits = reversed(range((size - 1).bit_length()))
    return Spread(size, [[(1 << bit, [*range(1 << bit, size, 2 << bit)])] for bit in bits])


@lru_cache(maxsize=64)
def both_ways(size: int) -> Spread:
    """All I have goes …, 9, 3, 1 ranks up and as many down, as far as it is not there."""
    present = [0]
    rounds = []
    distance = 3 ** _least_power(3, size)
    while distance := distance // 3:
        before = list(present)
        moves = []
        for way in (distance, -distance):
            new = [each for each in ((way + old) % size for old in before) if each not in present]
            moves.append((way, new))
            present += new
        rounds.append(moves)
    return Spread(size, rounds)


def _least_power(base: int, size: int) -> int:
    """The least exponent with which the power is at least `size`."""
    exponent = 0
    while base**exponent < size:
        exponent += 1
    return exponent


def _runs(blocks: Iterable[int]) -> list[tuple[int, int]]:
    return joined((block, 1) for block in blocks)
