"""The state that a training keeps for when ranks die, and its copies on other ranks.

A *generation* is the state after a step: parameters (or their float32 masters), the arrays of the
optimizer, its count of updates, the loss scale, the losses so far. No rank is more than one
generation ahead of another, because an update needs all gradients of all ranks. So whoever lives
has one in common, the newest that all of them have had:

* Where every rank owns everything, a rank that has made an update has the whole generation, and
  gives it to the others.
* Where ranks own shards, each has a *holder*, a rank of another node where there is one. Both keep
  a replica of the shard, one generation behind, and the reduced gradients since, from which they
  make the newest when it is wanted. Only those gradients are sent, while the next step computes:
  they are less than the arrays they change. The holder has them before any rank can complete that
  next step: the last reduction of a step begins when the gradients of the step before have come.
* With error feedback each rank also has residuals, a float32 for each parameter, which no other
  rank can compute. Its holder gets them after each step, in the codes of the gradients, with the
  same message. An older copy would be worse than none: residuals of two steps have little in
  common, and those of the older one have been sent since.

A training may consist of several fits, and between two of them the program may write to the state.
The *base* of a fit is the state with which it begins. It is `open` until it is `secure`, that is
until every rank has brought its replicas to it; no rank completes a step before. Where ranks die
while a base is open, all that live still have that state: parameters (all of them, since ranks own
shards of them only for the update) and their own shards. Of a dead rank's shard the replica is as
its owner left it, unless the program wrote to the optimizer's arrays meanwhile; that cannot be made
good, and is said.
"""

from __future__ import annotations

import weakref
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy
from mpi4py import MPI

from ...buffers import Contributions
from ...communicator import BackgroundExchange, release
from ...errors import RankFailure
from ...support.arrays import Array
from ...support.checks import ranks_text
from ..optim import first_bad
from ..options import Options
from .buckets import within
from .feedback import ErrorFeedback, Remainder
from .optimizer_step import PARAMETERS, Update, bad_gradient
from .replica import Made, Replica

if TYPE_CHECKING:
    from ...communicator import Communicator

#: elements of one vector that are handed over at a time
WINDOW = 1 << 22


def holders(nodes: Sequence[int]) -> list[int]:
    """Who keeps the copy of each rank's shard: a rank of another node where there is one.

    nodes: of each rank.

    >>> holders([0, 0, 1, 1]), holders([0, 0, 0])
    ([2, 3, 0, 1], [1, 2, 0])
    """
    size = len(nodes)
    chosen = []
    for rank, node in enumerate(nodes):
        others = [other for other in range(size) if nodes[other] != node]
        others.sort(key=lambda other: ((nodes[other] - node) % size, other))
        if others:
            chosen.append(others[nodes[:rank].count(node) % len(others)])
        else:
            chosen.append((rank + 1) % size)
    return chosen


class BackupStatus(NamedTuple):
    """What a rank tells of its generations when others have died."""

    rank: int
    #: number of the newest generation
    newest: int
    #: of its replicas of others
    held: int
    #: whether this rank has secured the base of the present fit
    secure: bool
    #: whether its state is whole: not where a checkpoint was being read, or was to be
    whole: bool
    #: whether its shard is, until its base is secure, that of which its holder has the replica
    copied: bool


class RecoveryPlan(NamedTuple):
    """Where the living take up."""

    #: which generation
    generation: int
    #: who has the shard of each former rank, by rank now
    servers: Mapping[int, int]
    #: whether that is a base which is still open: what the living have now
    is_open: bool = False


class Backup:
    """The generations of one rank, and its replicas of others.

    Collective: all ranks of `update.reducer.comm` make it, and call its methods, together.
    """

    def __init__(self, update: Update, options: Options) -> None:
        self.update = update
        self.reducer = update.reducer
        self.reducer.before_last = self.wait
        self.rank = self.reducer.rank
        self.size = self.reducer.size
        self._layout = self.reducer.layout
        self._starts = update.starts
        # when ranks have died, the optimizer gets other arrays before these are handed over
        self._state = update.optimizer.state
        self._values = update.values
        self._divided = self.reducer.divided
        self._feedback = self.reducer.feedback
        #: whether ranks keep copies of what another one alone has
        self._copies = self._divided or self._feedback is not None
        self._separate = options.micro_batches is not None
        #: number of the base of the present fit, and of the newest generation; numbers go on from
        #: fit to fit
        self.first = self.newest = 0
        #: losses of all steps so far, the same on all ranks
        self.losses: list[float] = []
        #: whether the state was whole when it was made or has been completed since
        self.whole = True
        #: those of more ranks, until all of these ranks have secured a base of their own
        self.before: Backup | None = None
        #: of each step: bytes sent, seconds that takes, seconds in which nothing else is done
        self.costs: list[tuple[int, float, float]] = []
        #: of each time that ranks were lost: `ranks` left, last completed `step`, `seconds` taken
        self.recoveries: list[dict[str, Any]] = []
        self.holders = holders(self.reducer.comm._context.topology.nodes)
        self._secure = False
        self._base = self._note(None)
        self._made: dict[int, Made] = {0: self._base}
        #: number of the generation of which all copies have come; -1: they are being replaced
        self._held = 0
        self._copying: BackgroundExchange | None = None
        self._copied = 0.0
        self._replicas: dict[int, Replica] = {}  # of the shards of these ranks
        #: what the generation `_added` has of codes that are not sent any more, and those before it
        #: do not; kept as long as one of these may be wanted
        self._remainder: Remainder | None = None
        self._added = 0
        if self._copies:
            self._allocate()

    def _allocate(self) -> None:
        self._theirs = [
            owner
            for owner in range(self.size)
            if self.size > 1 and self.holders[owner] == self.rank
        ]
        for owner in (self.rank, *self._theirs):
            replica = Replica(
                list(self._state) if self._divided else (),
                self.update.total if self._divided else 0,
                self._values.dtype,
                self.reducer.parameters.dtype,
                0 if self._feedback is None else self._feedback.code_bytes,
            )
            if self._divided:
                self._shard(owner, replica.vectors[0])
            if self._feedback is not None:  # zeros, as everywhere
                self._feedback.encode(replica.residuals(0))
            self._replicas[owner] = replica
        # copies do not wait for the buckets, nor buckets for them
        self._comm: Communicator = self.reducer.comm.Dup()
        weakref.finalize(self, release, self._comm)

    def _shard(self, owner: int, row: Array | None = None) -> Array:
        """A rank's part of the parameters, in memory of its own, or in `row`."""
        parts = [bucket.shard(owner, self.size) for bucket in self._layout.buckets]
        shard: Array = numpy.concatenate(
            [self.reducer.parameters[part] for part in parts], out=row, casting="same_kind"
        )
        return shard

    # While all is well.

    def open(self, losses: Sequence[float]) -> None:
        """A fit begins: the state now is its base. losses: of the steps that led to it. Local."""
        self.losses = list(losses)
        self.before = None
        self._base = self._note(None)
        self._secure = False

    def secure(self, losses: Sequence[float]) -> None:
        """Bring all replicas to the state now, which is the base of the fit.

        losses: see `open`. Collective.
        """
        self.wait()
        self.reducer.wait()
        if self._divided:
            changed = self.reducer.comm.allreduce(self._changed(), MPI.LOR)
            for owner, replica in self._replicas.items():
                replica.follow(self.newest, self._made)
                if self.update.masters is None:  # with the parameters that there are now
                    self._shard(owner, replica.vectors[0])
            if changed:
                self._replace()
        if self._feedback is not None:
            self._secure_residuals(self._feedback)
        self.losses = list(losses)
        self.first = self.newest
        self.whole = True
        self._base = self._note(None)
        self._made = {self.first: self._base}
        self._secure = True

    def _changed(self) -> bool:
        """Whether this rank's shard differs from its replica: the program wrote to it.

        Or it was restored.

        Parameters only count where there are masters of them: a holder has all others itself.
        """
        replica = self._replicas[self.rank]
        replica.follow(self.newest, self._made)
        arrays = list(self._state.values()) if self.update.masters is None else self._vectors()
        bits = f"u{self._values.itemsize}"
        rows = replica.vectors[-len(arrays) :] if arrays else ()
        return not all(
            numpy.array_equal(array.view(bits), row.view(bits)) for array, row in zip(arrays, rows)
        )

    def _replace(self) -> None:
        """Exchange the replicas as a whole."""
        for row, vector in zip(self._replicas[self.rank].vectors, self._vectors()):
            row[...] = vector
        self._held = -1
        self._exchange(lambda replica: replica.vectors)
        self._held = self.newest

    def _secure_residuals(self, feedback: ErrorFeedback) -> None:
        """Bring the copies of residuals to those now: they are others after a death, say."""
        codes = self._replicas[self.rank].residuals(self.newest)
        before = codes.copy()
        feedback.encode(codes)
        changed = not numpy.array_equal(codes, before)
        if self.reducer.comm.allreduce(changed, MPI.LOR):
            self._exchange(lambda replica: replica.residuals(self.newest))

    def _exchange(self, of: Callable[[Replica], Array]) -> None:
        """Send part of the replicas to their holders, and wait."""
        self._send(of)
        if self._copying is not None:
            self._copying.wait()
            self._copying = None

    def record(self, loss: float, factor: float | None) -> None:
        """An update was made, and its parameters are not sent yet.

        loss: of the step, the same on all ranks.

        factor: of its gradients, None where it was skipped.
        """
        self.losses.append(loss)
        # the update needed all ranks, which therefore have secured a base of their own
        self.before = None
        step = self.newest + 1
        if step > self._added:
            self._remainder = None
        self._made[step] = self._note(factor)
        self._made.pop(step - 2, None)
        if self._copies:
            begin = perf_counter()
            with self.reducer.meter.computing("copy"):
                self._copy(self._replicas[self.rank], step)
            self._copied += perf_counter() - begin
        self.newest = step

    def _note(self, factor: float | None) -> Made:
        """How the last update was made. factor: see `record`."""
        scale = None if self.update.scale is None else self.update.scale.state()
        return Made.by(self.update.optimizer, factor, scale)

    def _vectors(self) -> list[Array]:
        """This rank's part now: parameters, or their masters, then the optimizer's arrays."""
        values = self._values
        if self._divided and self.update.masters is None:
            values = self._shard(self.rank)
        return [values, *self._state.values()]

    def _copy(self, replica: Replica, step: int) -> None:
        """Note what makes a generation of the one before."""
        if self._divided:
            self._copy_gradients(replica.gradients(step))
        if self._feedback is not None:
            self._feedback.encode(replica.residuals(step))

    def _copy_gradients(self, row: Array) -> None:
        for start, bucket in zip(self._starts, self._layout.buckets):
            part = self.reducer.reduced(bucket)
            row[start : start + len(part)] = part

    def complete(self, losses: Sequence[float]) -> float:
        """The loss of the batch, when all gradients have come.

        Every rank has them then, or raises RankFailure: it makes all of the update or nothing.
        losses: of this rank's micro-batches.
        """
        total = numpy.zeros(1)
        own: Array | Contributions = numpy.array([sum(losses)])
        if self._separate:  # the same sum whichever rank has which micro-batch
            own = Contributions(numpy.array(losses, "f8").reshape(-1, 1))
        request = self.reducer.comm.Iallreduce(own, total, algorithm="recursive_doubling")
        self._follow()
        self.reducer.collect()
        with self.reducer.meter.waiting("loss"):
            request.Wait()
        return float(total[0])

    def _follow(self) -> None:
        """Bring the replicas to the generation before the newest.

        For the end of backward: parameters of the newest have come, so all ranks made it, with all
        copies of the one before. There the last reductions are on their way, so this costs least.
        """
        step = self.newest
        begin = perf_counter()
        self._copied = 0.0
        if not self._divided or step == self.first:
            return
        with self.reducer.meter.computing("copy"):
            for replica in self._replicas.values():
                replica.follow(step - 1, self._made)
        self._copied = perf_counter() - begin

    def send(self) -> None:
        """Send what makes the newest generation to the holder, after the parameters."""
        if self._copies:
            self._send(lambda replica: replica.message(self.newest))

    def _send(self, of: Callable[[Replica], Array]) -> None:
        if self.size == 1:
            return
        received = {owner: of(self._replicas[owner]) for owner in self._theirs}
        mine = of(self._replicas[self.rank])
        self._copying = BackgroundExchange(
            self._comm, mine, self.holders[self.rank], received, behind=self.reducer.comm
        )

    def wait(self) -> None:
        """Wait until the copies of the newest generation have come, and been sent."""
        copying = self._copying
        if copying is None:
            return
        begin = perf_counter()
        with self.reducer.meter.waiting("copy"):
            seconds = copying.wait()
        self._copying = None
        exposed = perf_counter() - begin + self._copied
        self._held = self.newest
        self.costs.append((copying.nbytes, seconds + self._copied, exposed))

    def report(self) -> dict[str, Any]:
        """Medians of `costs`, memory, and `recoveries`."""
        costs = self.costs or [(0, 0.0, 0.0)]
        nbytes, seconds, exposed = (median(values) for values in zip(*costs))
        return {
            "copy_bytes_per_step": int(nbytes),
            "copy_s": seconds,
            "copy_exposed_s": exposed,
            "copy_bytes_held": sum(replica.nbytes for replica in self._replicas.values()),
            "recoveries": self.recoveries,
        }

    # When ranks have died.

    def known(self) -> BackupStatus:
        """What the others must know of this rank."""
        copied = not self._divided or self._secure
        if not copied:  # unless the replicas are those of the former fit's end, with all parameters
            complete = self._has_come == self.newest and self.reducer.is_current()
            copied = complete and not self._changed()
        held = self._has_come
        return BackupStatus(self.rank, self.newest, held, self._secure, self.whole, copied)

    @property
    def _has_come(self) -> int:
        """Number of the generation of which all copies have come, awaited or not; or -1."""
        arrived = self._copying is not None and self._copying.is_done
        return self.newest if arrived else self._held

    def plan(self, statuses: Sequence[BackupStatus]) -> RecoveryPlan | None:
        """Where the survivors continue; None if that is for the backup before this to say.

        Raises ShardsLost where part of the state was lost.
        """
        living = {status.rank: number for number, status in enumerate(statuses)}
        newest = [status.newest for status in statuses]
        is_open = not all(status.secure for status in statuses)
        if is_open and self.before is not None:
            return None
        self._require_base(statuses, living)
        if not self._divided:
            server = newest.index(max(newest))
            return RecoveryPlan(max(newest), {statuses[server].rank: server}, is_open)
        servers = {
            rank: living.get(rank, living.get(self.holders[rank], -1)) for rank in range(self.size)
        }
        if lost := [rank for rank, server in servers.items() if server < 0]:
            raise ShardsLost(
                f"the optimizer state of {ranks_text(lost)} was lost with its copy: both ranks "
                "died",
                tuple(lost),
            )
        copies = [statuses[server].held for rank, server in servers.items() if rank not in living]
        return RecoveryPlan(min(newest + ([] if is_open else copies)), servers, is_open)

    def _require_base(self, statuses: Sequence[BackupStatus], living: Mapping[int, int]) -> None:
        """Raise ShardsLost if part of the base of the fit died before it was secure."""
        dead = tuple(rank for rank in range(self.size) if rank not in living)
        begin = f"{ranks_text(dead)} died before the first step of this fit was made, and"
        if not all(status.whole for status in statuses):
            raise ShardsLost(f"{begin} its state was still to come from a checkpoint", dead)
        holders = [
            statuses[living[self.holders[rank]]] for rank in dead if self.holders[rank] in living
        ]
        if not all(status.secure for status in holders) and not all(
            status.copied for status in statuses
        ):
            raise ShardsLost(
                f"{begin} optimizer state had been changed since the last one: no copy has that",
                dead,
            )

    def counts(self, plan: RecoveryPlan) -> tuple[list[float], tuple[int, Any]]:
        """The losses up to a generation, and its counts: of updates, and of the loss scale."""
        from_base = plan.is_open or plan.generation == self.first
        made = self._base if from_base else self._made[plan.generation]
        losses = self.losses[: len(self.losses) - self.newest + plan.generation]
        return losses, (made.optimizer.steps, made.scale)

    def add(self, remainder: Remainder | None) -> None:
        """The update that is under way has what codes have lost that are not sent any more."""
        if remainder is not None:
            self._remainder = remainder
            self._added = self.newest + 1

    def owed(self, plan: RecoveryPlan, updates: int, living: Sequence[int]) -> Iterator[Array]:
        """What codes have lost up to a generation, in plain order, as far as it is for this rank.

        That is its own, and that of the ranks that died and have their copies here. Nothing of one
        whose copy of that generation had not come: the one before would only add an error.

        updates: made up to the generation. living: those of the former ranks that live.
        """
        feedback = self._feedback
        # a rank that is a step behind has sent all of that step
        has_sent = (
            self.newest < plan.generation
            and updates > self._made[self.newest].optimizer.steps
        )
        if feedback is None:  # all have the same
            remainder = self.reducer.remainder
            if remainder is None and plan.generation < self._added:
                remainder = self._remainder
            if remainder is not None and not has_sent and self.rank == living[0]:
                yield remainder.values
            return
        if self.newest > plan.generation:
            yield feedback.decoded(self._replicas[self.rank].residuals(plan.generation))
        else:
            yield feedback.plain(is_committed=not has_sent)
        for owner in self._theirs:
            if owner not in living and self._has_come >= plan.generation:
                yield feedback.decoded(self._replicas[owner].residuals(plan.generation))

    def hand_over(self, comm: Communicator, plan: RecoveryPlan, update: Update, steps: int) -> None:
        """Give the planned generation to the update of those that live, which owns other parts.

        steps: of its optimizer.

        Raises BadGradient, on all ranks, where an update was made from gradients that were not
        finite.
        """
        mine = {
            owner: self._state_of(owner, plan)
            for owner, server in plan.servers.items()
            if server == comm.rank
        }
        elements = self._layout.elements
        for low in range(0, elements, WINDOW):
            vectors = {}
            for number, name in enumerate((PARAMETERS, *self._state)):
                window = numpy.zeros(min(WINDOW, elements - low), self._values.dtype)
                for owner, rows in mine.items():
                    self._fill(window, low, owner, rows[number])
                # each element comes from one rank, the others have zero bits
                bits = window.view(f"u{window.itemsize}")
                comm.Allreduce(MPI.IN_PLACE, bits, op=MPI.BOR)
                vectors[name] = window
            self._check(vectors[PARAMETERS], low, steps)
            update.restore(Window(vectors, low), steps, low, low + WINDOW)

    def _state_of(self, owner: int, plan: RecoveryPlan) -> list[Array]:
        if not self._divided or plan.is_open and owner == self.rank:
            return self._vectors()
        rows = list(self._replicas[owner].after(plan.generation, self._made))
        if plan.is_open and self.update.masters is None:
            rows[0] = self._shard(owner)
        return rows

    def _check(self, window: Array, low: int, steps: int) -> None:
        if (index := first_bad(window)) is not None:
            number = bisect(self._layout.plain, low + index) - 1
            raise bad_gradient(steps, [self._layout.tensors[number].name])

    def _fill(self, window: Array, low: int, owner: int, row: Array) -> None:
        """Copy what `owner` has of a vector to where it lies in the plain order, from `low` on."""
        for start, bucket in zip(self._starts, self._layout.buckets):
            part = slice(bucket.start, bucket.stop)
            if self._divided:
                part = bucket.shard(owner, self.size)
            for plain, first, size in within(self._layout.runs(part), low, low + len(window)):
                at = start + first - part.start
                window[plain - low : plain - low + size] = row[at : at + size]


class ShardsLost(RankFailure):
    """Part of the state was on no rank that lives."""


class Window:
    """Vectors in plain order from element `low` on, as a checkpoint is read."""

    def __init__(self, vectors: Mapping[str, Array], low: int) -> None:
        self._vectors = vectors
        self._low = low

    @property
    def totals(self) -> Mapping[str, int]:
        """Elements by name."""
        return {name: len(vector) for name, vector in self._vectors.items()}

    def read(self, name: str, start: int, stop: int) -> Array:
        """Elements in plain order."""
        return self._vectors[name][start - self._low : stop - self._low]
