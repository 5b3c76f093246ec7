"""What a training needs to go on after ranks died: its state after the last two steps, and copies of it on other ranks.

A *generation* is the state after a step: parameters (or their float32 masters), the arrays of the optimizer, its count of
updates, the loss scale, the losses so far. No rank is more than one generation ahead of another, because an update needs all
gradients of all ranks. So whoever lives has one in common, the newest that all of them have had:

* Where every rank owns everything, a rank that has made an update has the whole generation, and gives it to the others.
* Where ranks own shards, each keeps those of its last two generations, and sends each to its *holder*, a rank of another
  node where there is one, while the next step computes. The holder has it before any rank can complete that next step: the
  last reduction of a step begins when the copies of the step before have come. Parameters that come to all ranks anyway are
  not sent again: the holder takes them from its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy
from mpi4py import MPI

from ...communicator import Exchange
from ...errors import RankFailure
from ...support.arrays import Array
from ...support.checks import ranks_text
from ..optim import LossScale
from .optimizer_step import Update

if TYPE_CHECKING:
    from ...communicator import Communicator

#: elements of one vector that are handed over at a time
WINDOW = 1 << 22
PARAMETERS = "parameters"


def holders(nodes: Sequence[int]) -> list[int]:
    """Who keeps the copy of each rank's shard: a rank of another node where there is one. nodes: of each rank.

    >>> holders([0, 0, 1, 1]), holders([0, 0, 0])
    ([2, 3, 0, 1], [1, 2, 0])
    """
    size, chosen = len(nodes), []
    for rank, node in enumerate(nodes):
        others = [other for other in range(size) if nodes[other] != node]
        others.sort(key=lambda other: ((nodes[other] - node) % size, other))
        if others:
            chosen.append(others[nodes[:rank].count(node) % len(others)])
        else:
            chosen.append((rank + 1) % size)
    return chosen


class Known(NamedTuple):
    """What a rank tells of its generations when others have died. newest: None before the first; held: of its copies.

    first: the one with which these ranks began together.
    """

    rank: int
    first: int | None
    newest: int | None
    held: int | None


class Plan(NamedTuple):
    """Where the living take up. generation: which; servers: who has the shard of each former rank, by rank now."""

    generation: int
    servers: Mapping[int, int]


class Generations:
    """Those of one rank. Collective: all ranks of `update.reducer.comm` make it, and call its methods, together.

    losses: of all steps so far, the same on all ranks. before: those of more ranks, until all of these have one of their own.
    """

    def __init__(self, update: Update, scale: LossScale | None, nodes: Sequence[int]) -> None:
        self.update, self.scale, self.reducer = update, scale, update.reducer
        self.rank, self.size, self._layout = self.reducer.rank, self.reducer.size, self.reducer.layout
        self._starts, self._state = update.starts, update.optimizer.state
        self._values = self.reducer.parameters if update.masters is None else update.masters
        self._divided, self._total = self.reducer.divided, update.total
        self.losses: list[float] = []
        self.first: int | None = None
        self.newest: int | None = None
        self.held: int | None = None
        self.before: Generations | None = None
        self._counts: dict[int, tuple[int, Any]] = {}
        self._copying: Exchange | None = None
        self.costs: list[tuple[int, float, float]] = []
        self._copied = 0.0
        self.holders = holders(nodes)
        if self._divided:
            self._allocate()

    @property
    def names(self) -> list[str]:
        """The vectors of a generation."""
        return [PARAMETERS, *self._state]

    @property
    def nbytes(self) -> int:
        """Bytes of the generations and copies on this rank."""
        return sum(array.nbytes for arrays in (self._mine, *self._theirs.values()) for array in arrays) if self._divided else 0

    def _allocate(self) -> None:
        owners = [owner for owner in range(self.size) if self.size > 1 and self.holders[owner] == self.rank]
        self._mine = self._pair()
        self._theirs = {owner: self._pair() for owner in owners}
        self._comm: Communicator = self.reducer.comm.Dup()  # copies do not wait for the buckets, nor buckets for them

    def _pair(self) -> list[Array]:
        """Room for two generations of a shard: a row for each vector."""
        return [numpy.zeros((len(self.names), self._total), self._values.dtype) for _ in range(2)]

    # While all is well.

    def begin(self, losses: Sequence[float]) -> None:
        """The state is that after so many steps: the first generation."""
        self.losses = list(losses)
        self.first = len(self.losses)
        self._keep()
        self.send()

    def take(self, loss: float) -> None:
        """An update was made, and its parameters are not sent yet. loss: of the step, the same on all ranks."""
        self.losses.append(loss)
        self.before = None  # it needed all ranks, which therefore have a generation of their own, and its copies
        self._keep()

    def _keep(self) -> None:
        step, begin = len(self.losses), perf_counter()
        self._counts[step] = self.update.optimizer.steps, None if self.scale is None else self.scale.state()
        self._counts.pop(step - 2, None)
        if self._divided:
            with self.reducer.meter.computing("copy"):
                self._copy(self._mine[step % 2])
        self.newest = step
        if self._divided and self.size > 1:
            self._copied = perf_counter() - begin

    def _copy(self, rows: Array) -> None:
        """Copy this rank's shard."""
        if self.update.masters is None:
            self._copy_parameters(self.rank, rows)
        else:
            rows[0] = self._values
        for row, array in zip(rows[1:], self._state.values()):
            row[...] = array

    def _copy_parameters(self, owner: int, rows: Array) -> None:
        for start, bucket in zip(self._starts, self._layout.buckets):
            part = bucket.shard(owner, self.size)
            rows[0, start : start + part.stop - part.start] = self._values[part]

    def send(self) -> None:
        """Send the newest generation to its holder; parameters that go to all ranks are needed sooner, so do it after them."""
        if self._divided and self.size > 1 and self.newest is not None:
            self._send(self.newest)

    def _send(self, step: int) -> None:
        sent = slice(1 if self.update.masters is None else 0, None)
        received = {owner: rows[step % 2][sent] for owner, rows in self._theirs.items()}
        mine = self._mine[step % 2][sent]
        self._copying = Exchange(self._comm, mine, self.holders[self.rank], received, behind=self.reducer.comm)

    def wait(self) -> None:
        """Wait until the copies of the newest generation have come, and been sent."""
        copying, self._copying = self._copying, None
        if copying is None or self.newest is None:
            return
        begin = perf_counter()
        with self.reducer.meter.waiting("copy"):
            seconds = copying.wait()
        exposed = perf_counter() - begin + self._copied
        self._complete(self.newest)
        self.costs.append((copying.nbytes, seconds + self._copied, exposed))

    def _complete(self, step: int) -> None:
        """All of the copies came but the parameters that this rank has as well."""
        if self.update.masters is None:
            self.reducer.wait()
            with self.reducer.meter.computing("copy"):
                for owner, rows in self._theirs.items():
                    self._copy_parameters(owner, rows[step % 2])
        self.held = step

    def report(self) -> dict[str, Any]:
        """Medians per step: bytes that this rank sends for copies, seconds that takes, and those it does nothing else."""
        costs = self.costs or [(0, 0.0, 0.0)]
        nbytes, seconds, exposed = (median(one[number] for one in costs) for number in range(3))
        return {"copy_bytes_per_step": int(nbytes), "copy_s": seconds, "copy_exposed_s": exposed,
                "copy_bytes_held": self.nbytes}  # fmt: skip

    # When ranks have died.

    def known(self) -> Known:
        """What the others must know of this rank."""
        return Known(self.rank, self.first, self.newest, self.held)

    def plan(self, everyone: Sequence[Known | None]) -> Plan | None:
        """Where those that live take up; None where not all of these ranks have a generation of their own.

        Raises RankFailure where a shard was lost with its copy.
        """
        known = [one for one in everyone if one is not None]
        newest = [-1 if one.newest is None else one.newest for one in known]
        if len(known) < len(everyone) or min(newest) < 0:
            return None
        living = {one.rank: number for number, one in enumerate(known)}
        if not self._divided:
            return Plan(max(newest), {known[newest.index(max(newest))].rank: newest.index(max(newest))})
        if self.first is None or max(newest) <= self.first:  # copies of the first may still have been on their way
            return None
        servers = {rank: living.get(rank, living.get(self.holders[rank], -1)) for rank in range(self.size)}
        if lost := [rank for rank, server in servers.items() if server < 0]:
            raise ShardsLost(f"the optimizer state of {ranks_text(lost)} was lost with its copy: both ranks died", tuple(lost))
        copies = [known[server].held or 0 for rank, server in servers.items() if rank not in living]
        return Plan(min(newest + copies), servers)

    def counts(self, generation: int) -> tuple[list[float], tuple[int, Any]]:
        """The losses up to a generation, and its counts."""
        return self.losses[:generation], self._counts[generation]

    def hand_over(self, comm: Communicator, plan: Plan, update: Update, steps: int) -> None:
        """Give the planned generation to the update of those that live, which owns other parts. steps: of its optimizer."""
        mine = [rank for rank, server in plan.servers.items() if server == comm.rank]
        elements = self._layout.plain[-1]
        for low in range(0, elements, WINDOW):
            vectors = {}
            for number, name in enumerate(self.names):
                window = numpy.zeros(min(WINDOW, elements - low), self._values.dtype)
                for owner in mine:
                    self._fill(window, low, owner, number, plan.generation)
                bits = window.view(f"u{window.itemsize}")  # each element comes from one rank, the others have zero bits
                comm.Allreduce(MPI.IN_PLACE, bits, op=MPI.BOR)
                vectors[name] = window
            update.restore(_Window(vectors, low), steps, low, low + WINDOW)

    def _fill(self, window: Array, low: int, owner: int, number: int, generation: int) -> None:
        """Copy what `owner` has of a vector to where it lies in the plain order, from `low` on."""
        for start, bucket in zip(self._starts, self._layout.buckets):
            part = bucket.shard(owner, self.size) if self._divided else slice(bucket.start, bucket.stop)
            for plain, first, size in self._layout.runs(part):
                begin, end = max(plain, low), min(plain + size, low + len(window))
                if begin < end:
                    at = start + first - part.start + begin - plain
                    window[begin - low : end - low] = self._row(owner, number, generation)[at : at + end - begin]

    def _row(self, owner: int, number: int, generation: int) -> Array:
        if not self._divided:
            return self._values if number == 0 else list(self._state.values())[number - 1]
        rows = self._mine if owner == self.rank else self._theirs[owner]
        row: Array = rows[generation % 2][number]
        return row


class ShardsLost(RankFailure):
    """A rank died, and so did the one that had its copy."""


class _Window:
    """Part of the vectors of a generation, as a checkpoint is read."""

    def __init__(self, vectors: Mapping[str, Array], low: int) -> None:
        self._vectors, self._low = vectors, low

    def read(self, name: str, start: int, stop: int) -> Array:
        """Elements in plain order."""
        return self._vectors[name][start - self._low : stop - self._low]
