"""What a training needs to go on after ranks died: its state after the last two steps, and copies of it on other ranks.

A *generation* is the state after a step: parameters (or their float32 masters), the arrays of the optimizer, its count of
updates, the loss scale, the losses so far. No rank is more than one generation ahead of another, because an update needs all
gradients of all ranks. So whoever lives has one in common, the newest that all of them have had:

* Where every rank owns everything, a rank that has made an update has the whole generation, and gives it to the others.
* Where ranks own shards, each has a *holder*, a rank of another node where there is one. Both keep a replica of the shard,
  one generation behind, and the reduced gradients since, from which they make the newest when it is wanted. Only those
  gradients are sent, while the next step computes: they are less than the arrays they change. The holder has them before any
  rank can complete that next step: the last reduction of a step begins when the gradients of the step before have come.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy
from mpi4py import MPI

from ...communicator import Exchange
from ...errors import RankFailure
from ...support.arrays import Array
from ...support.checks import ranks_text
from ..optim import LossScale, first_bad
from .optimizer_step import Update, bad_gradient
from .replica import Made, Replica

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
        self._again = False
        self._made: dict[int, Made] = {}
        self._copying: Exchange | None = None
        self.costs: list[tuple[int, float, float]] = []
        self._copied = 0.0
        self.holders = holders(nodes)
        self._replicas: dict[int, Replica] = {}  # of the shards of these ranks
        if self._divided:
            self._allocate()

    @property
    def nbytes(self) -> int:
        """Bytes of the replicas on this rank."""
        return sum(replica.nbytes for replica in self._replicas.values())

    def _allocate(self) -> None:
        self._theirs = [owner for owner in range(self.size) if self.size > 1 and self.holders[owner] == self.rank]
        for owner in (self.rank, *self._theirs):
            self._replicas[owner] = Replica(list(self._state), self._total, self._values.dtype, self.reducer.parameters.dtype)
        self._comm: Communicator = self.reducer.comm.Dup()  # copies do not wait for the buckets, nor buckets for them

    # While all is well.

    def begin(self, losses: Sequence[float]) -> None:
        """The state is that after so many steps: the first generation, unless it is the newest there is. Collective."""
        self.wait()
        if self.newest is not None and self.losses == list(losses) and not self._changed():
            return
        self._again = self.newest is not None
        self.losses = list(losses)
        self.first = self.newest = len(losses)
        self._made = {self.first: self._note(None)}
        for replica in self._replicas.values():
            replica.step = self.first
        if self._divided:
            for row, vector in zip(self._replicas[self.rank].vectors, self._vectors()):
                row[...] = vector
            self._send(lambda replica: replica.vectors)

    def _changed(self) -> bool:
        """Whether the state is not that of the newest generation, on any rank: somebody may have written to it since."""
        changed = False
        if self._divided and self.newest is not None:
            known = self._replicas[self.rank].after(self.newest, self._made)
            changed = any(mine.tobytes() != one.tobytes() for mine, one in zip(self._vectors(), known))
        return bool(self.reducer.comm.allreduce(changed, MPI.LOR))

    def take(self, loss: float, factor: float | None) -> None:
        """An update was made, and its parameters are not sent yet. loss: of the step, the same on all ranks.

        factor: of its gradients, None where it was skipped.
        """
        self.losses.append(loss)
        self.before = None  # it needed all ranks, which therefore have a generation of their own, and its copies
        step = len(self.losses)
        self._made[step] = self._note(factor)
        self._made.pop(step - 2, None)
        if self._divided:
            begin = perf_counter()
            with self.reducer.meter.computing("copy"):
                self._copy_gradients(self._replicas[self.rank].gradients(step))
            self._copied += perf_counter() - begin
        self.newest = step

    def _note(self, factor: float | None) -> Made:
        """How the last update was made. factor: see `take`."""
        return Made.by(self.update.optimizer, factor, None if self.scale is None else self.scale.state())

    def _vectors(self) -> list[Array]:
        """What there is of this rank's part now: parameters, or their masters, then the arrays of the optimizer."""
        values = self._values
        if self._divided and self.update.masters is None:
            values = numpy.concatenate([values[part] for part in self.reducer.owned])
        return [values, *self._state.values()]

    def _copy_gradients(self, row: Array) -> None:
        for start, bucket in zip(self._starts, self._layout.buckets):
            part = self.reducer.reduced(bucket)
            row[start : start + len(part)] = part

    def follow(self) -> None:
        """Bring the replicas to the generation before the newest, which all ranks have had, with its copy.

        For the end of backward: parameters of the newest have come, so all ranks made it, with all copies of the one before.
        There the last reductions are on their way, so this costs least.
        """
        step, begin = self.newest, perf_counter()
        self._copied = 0.0
        if not self._divided or step is None or step == self.first:
            return
        with self.reducer.meter.computing("copy"):
            for replica in self._replicas.values():
                replica.follow(step - 1, self._made)
        self._copied = perf_counter() - begin

    def send(self) -> None:
        """Send the gradients of the newest generation to the holder; parameters are needed sooner, so do it after them."""
        step = self.newest
        if self._divided and step is not None:
            self._send(lambda replica: replica.gradients(step))

    def _send(self, of: Callable[[Replica], Array]) -> None:
        if self.size == 1:
            return
        received = {owner: of(self._replicas[owner]) for owner in self._theirs}
        mine = of(self._replicas[self.rank])
        self._copying = Exchange(self._comm, mine, self.holders[self.rank], received, behind=self.reducer.comm)

    def wait(self) -> None:
        """Wait until the gradients of the newest generation have come, and been sent."""
        copying, self._copying = self._copying, None
        if copying is None:
            return
        begin = perf_counter()
        with self.reducer.meter.waiting("copy"):
            seconds = copying.wait()
        exposed = perf_counter() - begin + self._copied
        self.held = self.newest
        self.costs.append((copying.nbytes, seconds + self._copied, exposed))

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
            if self._again:
                dead = tuple(rank for rank in range(self.size) if rank not in living)
                raise ShardsLost(f"{ranks_text(dead)} died before the first step of this fit was made, and parameters or "
                                 "optimizer state had been changed since the last one: no copy has that", dead)  # fmt: skip
            return None
        servers = {rank: living.get(rank, living.get(self.holders[rank], -1)) for rank in range(self.size)}
        if lost := [rank for rank, server in servers.items() if server < 0]:
            raise ShardsLost(f"the optimizer state of {ranks_text(lost)} was lost with its copy: both ranks died", tuple(lost))
        copies = [known[server].held or 0 for rank, server in servers.items() if rank not in living]
        return Plan(min(newest + copies), servers)

    def counts(self, generation: int) -> tuple[list[float], tuple[int, Any]]:
        """The losses up to a generation, and its counts: of updates, and of the loss scale."""
        made = self._made[generation]
        return self.losses[:generation], (made.optimizer.steps, made.scale)

    def hand_over(self, comm: Communicator, plan: Plan, update: Update, steps: int) -> None:
        """Give the planned generation to the update of those that live, which owns other parts. steps: of its optimizer.

        Raises BadGradient, on all ranks, where an update was made from gradients that were not finite.
        """
        mine = {owner: self._state_of(owner, plan) for owner, server in plan.servers.items() if server == comm.rank}
        elements = self._layout.plain[-1]
        for low in range(0, elements, WINDOW):
            vectors = {}
            for number, name in enumerate((PARAMETERS, *self._state)):
                window = numpy.zeros(min(WINDOW, elements - low), self._values.dtype)
                for owner, rows in mine.items():
                    self._fill(window, low, owner, rows[number])
                bits = window.view(f"u{window.itemsize}")  # each element comes from one rank, the others have zero bits
                comm.Allreduce(MPI.IN_PLACE, bits, op=MPI.BOR)
                vectors[name] = window
            self._check(vectors[PARAMETERS], low, steps)
            update.restore(_Window(vectors, low), steps, low, low + WINDOW)

    def _state_of(self, owner: int, plan: Plan) -> list[Array]:
        if self._divided:
            return list(self._replicas[owner].after(plan.generation, self._made))
        return self._vectors()

    def _check(self, window: Array, low: int, steps: int) -> None:
        if (index := first_bad(window)) is not None:
            raise bad_gradient(steps, [self._layout.tensors[bisect(self._layout.plain, low + index) - 1].name])

    def _fill(self, window: Array, low: int, owner: int, row: Array) -> None:
        """Copy what `owner` has of a vector to where it lies in the plain order, from `low` on."""
        for start, bucket in zip(self._starts, self._layout.buckets):
            part = bucket.shard(owner, self.size) if self._divided else slice(bucket.start, bucket.stop)
            for plain, first, size in self._layout.runs(part):
                begin, end = max(plain, low), min(plain + size, low + len(window))
                if begin < end:
                    at = start + first - part.start + begin - plain
                    window[begin - low : end - low] = row[at : at + end - begin]


class ShardsLost(RankFailure):
    """Part of the state was on no rank that lives."""


class _Window:
    """Part of the vectors of a generation, as a checkpoint is read."""

    def __init__(self, vectors: Mapping[str, Array], low: int) -> None:
        self._vectors, self._low = vectors, low

    def read(self, name: str, start: int, stop: int) -> Array:
        """Elements in plain order."""
        return self._vectors[name][start - self._low : stop - self._low]
