"""Sums over the ranks before a rank, and runs of ranks on one node, of which scans consist."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from ...schedule import (
    INPUT,
    OUTPUT,
    Copy,
    Generator,
    Input,
    Operation,
    Output,
    Part,
    Recv,
    Reduce,
    Round,
    Scratch,
    Send,
    renamed,
)
from .lanes import Nodes
from .trees import binomial_tree


def sum_before(rank: int, size: int) -> Iterator[Round]:
    """The exclusive scan in ceil(log2 p) rounds (Traeff, arXiv 2604.25667).

    A rank knows the sum over `reach` ranks before it. In the first rounds it passes on this sum
    with its own vector, and so reaches 2 `reach` + 1; in the others without, which spares a
    reduction and reaches 2 `reach`. There are as few of the first as the number of rounds allows.
    """
    rounds = (size - 1).bit_length()
    with_own = next(k for k in range(rounds + 1) if (2**k - 1) << (rounds - k) >= size - 1)
    received, inclusive = Scratch("received", 0), Scratch("inclusive", 0)
    own = Input(0)
    reach = 0
    for number in range(rounds):
        adds_own = number < with_own
        distance = reach + adds_own
        step: list[Operation] = []
        if rank + distance < size and (adds_own or rank):
            step.append(Send(rank + distance, own if adds_own else Output(0)))
        if rank >= distance + (not adds_own):
            step.append(Recv(rank - distance, received))
            if number + 1 < with_own:
                step.append(Reduce(received, own, inclusive))
                own = inclusive
            step.append(
                Reduce(received, Output(0), Output(0)) if reach else Copy(received, Output(0))
            )
        yield step
        reach += distance


class Runs:
    """Runs of ranks, one after the other, on the same node; this rank is `local` in its run.

    nodes: the node of each rank, any labels; None: ranks 0 and 1, 2 and 3, …
    """

    def __init__(self, rank: int, size: int, nodes: Nodes) -> None:
        node_of = nodes or [each // 2 for each in range(size)]
        members = [list(run) for _, run in groupby(range(size), node_of.__getitem__)]
        #: of the run of this rank
        self.number = next(k for k, run in enumerate(members) if rank <= run[-1])
        self._members = members[self.number]
        self._last = [run[-1] for run in members]
        self.ranks = len(self._members)
        self.local = rank - self._members[0]
        self.is_last = self.local == self.ranks - 1

    def inside(self, generator: Generator, output: str = OUTPUT) -> Iterator[Round]:
        """An algorithm among the ranks of this run, whose output is that place."""
        if self.ranks > 1:
            steps = generator(self.local, self.ranks)
            yield from renamed(steps, {OUTPUT: output}, peer=self._members.__getitem__)

    def sum_before(self, total: Part) -> Iterator[Round]:
        """Sums before each run: from the last ranks' totals to all ranks, in Scratch "before"."""
        before = "before"
        if self.is_last and len(self._last) > 1:
            steps = sum_before(self.number, len(self._last))
            places = {INPUT: total.place, OUTPUT: before}
            yield from renamed(steps, places, peer=self._last.__getitem__)
        if self.number and self.ranks > 1:
            yield from self._from_last(Scratch(before, 0))

    def _from_last(self, part: Part) -> Iterator[Round]:
        """A binomial broadcast in this run from its last rank."""
        place = binomial_tree(self.local, self.ranks, self.ranks - 1)
        if not self.is_last:
            yield Recv(self._members[place.parent], part)
        for child in place.children:
            yield Send(self._members[child.rank], part)
