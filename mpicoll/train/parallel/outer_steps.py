"""Outer steps: ranks exchange what their own steps have changed, one fragment after the other."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy

from ...schedule import bounds
from ...support.arrays import Array, module_of
from ..model import Tensor
from ..monitor import Meter
from ..optim import SGD, first_bad
from ..options import Options
from .buckets import BucketLayout, exempt
from .gradients import zeros
from .in_flight import InFlight, PersistentCollective, free
from .optimizer_step import PARAMETERS, BadGradient, Readable, Update, bad_gradient

if TYPE_CHECKING:
    from ...communicator import Communicator

#: what a checkpoint has of the outer steps beside the parameters that all ranks have in common:
#: changes whose exchange was on its way
CHANGES = "changes"


def outer_layout(tensors: Sequence[Tensor], options: Options) -> BucketLayout:
    """The flat arrays of outer steps: one bucket, and one of what is never compressed."""
    exact = exempt(tensors) if options.compression is not None else ()
    return BucketLayout(tensors, range(len(tensors)), 1, float("inf"), exact)


class Fragment(NamedTuple):
    """A part of the parameters that is exchanged at one time.

    begin: after how many inner steps of a round. exchanges: name, collective, and slice of the
    flat arrays of outer steps of each; parameters that are never compressed are apart. places:
    pairs of slices, of these arrays and of the rank's own parameters.
    """

    number: int
    begin: int
    exchanges: tuple[tuple[str, PersistentCollective, slice], ...]
    places: tuple[tuple[slice, slice], ...]


class OuterSteps:
    """The parameters that all ranks have in common, and the outer optimizer that changes them.

    A rank's *change* is the difference between the common parameters and its own. Each fragment has
    an outer step once in `inner_steps`: the average change over the ranks is the gradient of an
    SGD with Nesterov momentum, whose result replaces the common parameters and this rank's. With
    overlap it is awaited some inner steps later; what these have changed is kept.

    Algorithms: DiLoCo, Douillard et al. 2023, arXiv 2311.08105; Streaming DiLoCo, 2025, arXiv
    2501.18512.

    update: of the inner steps. comm: of all ranks.
    """

    def __init__(self, update: Update, comm: Communicator, meter: Meter, options: Options) -> None:
        reducer = update.reducer
        self._comm = comm
        self._meter = meter
        self._parameters = reducer.parameters
        #: in which the inner steps compute: float32 masters where parameters have 16 bits
        self._own = update.values
        self.layout = outer_layout(reducer.layout.tensors, options)
        like = self._own[:0]
        self.common = zeros(self.layout.size, like, comm)
        self.changes = zeros(self.layout.size, like, comm)
        self._sums = zeros(self.layout.size, like, comm)
        momentum = options.outer_momentum
        self.optimizer = SGD(options.outer_lr, momentum, nesterov=momentum > 0)
        self.optimizer.allocate(self.layout.size, self.common)
        self._round = options.inner_steps
        self._delay = 0
        if options.overlap != "none":
            self._delay = max(1, options.inner_steps // (2 * options.fragments))
        self.fragments = [
            self._fragment(number, reducer.layout, options) for number in range(options.fragments)
        ]
        exchanges = [each for part in self.fragments for _, each, _ in part.exchanges]
        weakref.finalize(self, free, exchanges)
        self._in_flight = InFlight(meter)
        #: by fragment, in inner steps: when the last exchange began, and that of the last outer
        #: step
        self._begun_at = [0.0] * options.fragments
        self._applied_at = [0.0] * options.fragments
        #: squares of the distances of this rank's fragments from the averages, of the last round
        self._distances = [0.0] * options.fragments
        self._drifts: list[float] = []
        #: whether all ranks have the common parameters, and no steps of their own since
        self.is_synchronized = True
        #: whether an outer step is being made
        self.is_changing = False
        #: how often the exchange of each fragment was sent
        self._sendings = [0] * options.fragments
        #: why this rank has stopped to learn, for all to raise after the next exchange
        self.failure: str | None = None
        self.adopt()

    def _fragment(self, number: int, inner: BucketLayout, options: Options) -> Fragment:
        exchanges = []
        for bucket in self.layout.buckets:
            low, high = bounds(bucket.size, options.fragments)[number : number + 2]
            part = slice(bucket.start + low, bucket.start + high)
            exchange = self._comm.Allreduce_init(
                self.changes[part],
                self._sums[part],
                algorithm=options.algorithms["allreduce"],
                compression=None if bucket.is_exact else options.compression,
            )
            exchanges.append((f"exchange {number}.{bucket.number}", exchange, part))
        places = tuple(place for _, _, part in exchanges for place in self._places(part, inner))
        begin = (number + 1) * self._round // options.fragments
        return Fragment(number, begin, tuple(exchanges), places)

    def _places(self, part: slice, inner: BucketLayout) -> Iterator[tuple[slice, slice]]:
        """Where a part of the flat arrays of outer steps lies in those of inner ones."""
        for tensor, ours, theirs in zip(self.layout.tensors, self.layout.places, inner.places):
            low = max(part.start, ours)
            high = min(part.stop, ours + tensor.size)
            if low < high:
                shift = theirs - ours
                yield slice(low, high), slice(low + shift, high + shift)

    # While the ranks train.

    def adopt(self) -> None:
        """Take this rank's parameters, which all ranks have alike, for the common ones."""
        for fragment in self.fragments:
            for ours, own in fragment.places:
                self.common[ours] = self._own[own]

    def after(self, step: int) -> None:
        """Inner step number `step`, counted from 1, was made: finish and begin what is due.

        A second call for a step does what an exception has left out of the first. Collective.

        Raises BadGradient, on all ranks, where one of them has stopped.
        """
        self.is_synchronized = False
        if self._delay:
            for fragment in self._due(step - self._delay):
                self._finish(fragment)
        for fragment in self._due(step):
            if self._begun_at[fragment.number] < step:
                self._begin(fragment, step)
            if not self._delay:
                self._finish(fragment, at_once=True)

    def meets(self, step: int) -> bool:
        """Whether an exchange is awaited in this step."""
        return bool(self._due(step - self._delay))

    def _due(self, step: int) -> list[Fragment]:
        """The fragments whose exchange begins after a step."""
        if step < 1:
            return []
        return [part for part in self.fragments if (step - part.begin) % self._round == 0]

    def synchronize(self, step: int) -> None:
        """Exchange everything, so that all ranks have the common parameters. Collective."""
        if self.is_synchronized:
            return
        for fragment in self.fragments:
            self._finish(fragment)
        is_done_at_once = not self._delay and len(self.fragments) == 1
        end = step if is_done_at_once else step + 0.5
        left = [part for part in self.fragments if self._applied_at[part.number] < end]
        for fragment in left:
            self._begin(fragment, end)
        for fragment in left:
            self._finish(fragment, at_once=True)
        self.is_synchronized = True

    def _begin(self, fragment: Fragment, step: float) -> None:
        with self._meter.computing(f"change {fragment.number}"):
            for ours, own in fragment.places:
                numpy.subtract(self.common[ours], self._own[own], out=self.changes[ours])
            if self.failure is not None:
                for _, _, part in fragment.exchanges:
                    self.changes[part] = numpy.nan
        self._begun_at[fragment.number] = step
        self._send(fragment)

    def _send(self, fragment: Fragment) -> None:
        self._sendings[fragment.number] += 1
        for name, exchange, _ in fragment.exchanges:
            self._in_flight.start(name, exchange)

    def _wait(self, fragment: Fragment) -> bool:
        """Whether there was an exchange to wait for."""
        is_under_way = self._is_under_way(fragment)
        for name, _, _ in fragment.exchanges:
            self._in_flight.wait(name)
        return is_under_way

    def _finish(self, fragment: Fragment, at_once: bool = False) -> None:
        """Make the outer step of a fragment, if its exchange is on its way.

        at_once: no inner step was made since it began.
        """
        if not self._wait(fragment):
            return
        with self._meter.computing(f"outer step {fragment.number}"):
            for _, _, part in fragment.exchanges:
                self._sums[part] /= self._comm.Get_size()
            self._require_finite(fragment)
            self._note_distance(fragment)
            self.is_changing = True
            self._subtract_common(fragment, at_once)
            self.optimizer.advance()
            for _, _, part in fragment.exchanges:
                self.optimizer.apply(
                    self.common[part], self._sums[part], part.start, self.layout.size
                )
            self._add_common(fragment)
            self.is_changing = False

    def _subtract_common(self, fragment: Fragment, at_once: bool) -> None:
        """Leave the progress of this rank since the exchange began in its parameters.

        at_once: there is none.
        """
        for ours, own in fragment.places:
            if at_once:
                self._own[own] = 0
            else:
                self._own[own] += self.changes[ours]
                self._own[own] -= self.common[ours]

    def _add_common(self, fragment: Fragment) -> None:
        """Add the common parameters to that progress."""
        for ours, own in fragment.places:
            self._own[own] += self.common[ours]
            if self._own is not self._parameters:
                self._parameters[own] = self._own[own]
        self._applied_at[fragment.number] = self._begun_at[fragment.number]

    def _require_finite(self, fragment: Fragment) -> None:
        for _, _, part in fragment.exchanges:
            with numpy.errstate(all="ignore"):
                total = float(self._sums[part].sum())
            if not math.isfinite(total) and (bad := first_bad(self._sums[part])) is not None:
                self.confirm()
                raise bad_gradient(
                    self.optimizer.steps + 1, [self.layout.name_at(part.start + bad)]
                )

    def confirm(self) -> None:
        """Raise BadGradient, on all ranks, where one of them has stopped. Collective."""
        for rank, failure in enumerate(self._comm.allgather(self.failure)):
            if failure is not None:
                raise BadGradient(f"rank {rank}: {failure}")

    def _note_distance(self, fragment: Fragment) -> None:
        square = 0.0
        for _, _, part in fragment.exchanges:
            distance = self.changes[part] - self._sums[part]
            square += float((distance * distance).sum())
        self._distances[fragment.number] = square
        if fragment is self.fragments[-1]:
            whole = float((self.common * self.common).sum())
            self._drifts.append(math.sqrt(sum(self._distances) / whole) if whole else 0.0)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """The common parameters in the place of this rank's, for a time."""
        own = self._parameters.copy()
        for fragment in self.fragments:
            for ours, theirs in fragment.places:
                self._parameters[theirs] = self.common[ours]
        try:
            yield
        finally:
            self._parameters[...] = own

    def drop(self) -> None:
        """Wait for all exchanges and forget them. Collective.

        All ranks send what any of them has sent, so that none waits for another.
        """
        for fragment, sendings in zip(self.fragments, zip(*self._comm.allgather(self._sendings))):
            if self._sendings[fragment.number] < max(sendings):
                self._send(fragment)
            self._wait(fragment)

    def forget_failure(self) -> None:
        """Go on where any rank has stopped, without the exchanges that say so. Collective.

        What the others have changed is in their parameters, and so in their next exchange.
        """
        if any(self._comm.allgather(self.failure is not None)):
            self.drop()
        self.failure = None

    def is_under_way(self) -> bool:
        """Whether any exchange is."""
        return len(self._in_flight) > 0

    def _is_under_way(self, fragment: Fragment) -> bool:
        return any(name in self._in_flight for name, _, _ in fragment.exchanges)

    def report(self) -> dict[str, Any]:
        """Bytes held, and how far this rank's parameters were from the average: see `Trainer`."""
        arrays = (self.common, self.changes, self._sums, *self.optimizer.state.values())
        plans = [plan for fragment in self.fragments for _, plan, _ in fragment.exchanges]
        scratch = sum(getattr(plan, "scratch", 0) for plan in plans)
        return {
            "outer_bytes": sum(array.nbytes for array in arrays) + scratch,
            "drift": median(self._drifts) if self._drifts else None,
        }

    # Checkpoints.

    def vectors(self, rank: int, size: int) -> dict[str, list[tuple[int, Array]]]:
        """What all ranks have alike, by name: the part of one of `size` ranks, in plain order."""
        state = {PARAMETERS: self.common}
        state |= {f"outer {slot}": array for slot, array in self.optimizer.state.items()}
        return {name: self._pieces(array, rank, size) for name, array in state.items()}

    def changes_under_way(self, rank: int, size: int) -> list[tuple[int, Array]]:
        """The same part of the changes whose exchange is on its way, zeros elsewhere."""
        changes = module_of(self.changes).zeros_like(self.changes)
        for fragment in self.fragments:
            if self._is_under_way(fragment):
                for _, _, part in fragment.exchanges:
                    changes[part] = self.changes[part]
        return self._pieces(changes, rank, size)

    def _pieces(self, array: Array, rank: int, size: int) -> list[tuple[int, Array]]:
        low, high = bounds(len(array), size)[rank : rank + 2]
        runs = self.layout.runs(slice(low, high))
        return [(plain, array[first : first + count]) for plain, first, count in runs]

    def restore(self, common: Readable, replica: Readable, step: int) -> None:
        """Take the state after inner step number `step` from a checkpoint. Local.

        replica: what that has of this rank.
        """
        self.failure = None
        self.is_synchronized = False
        self.is_changing = False
        self._read(common, PARAMETERS, self.common)
        for slot, array in self.optimizer.state.items():
            self._read(common, f"outer {slot}", array)
        self._read(replica, CHANGES, self.changes)
        for fragment in self.fragments:
            number = fragment.number
            last = step - (step - fragment.begin) % self._round
            self._applied_at[number] = last if last <= step - self._delay else last - self._round
            self._begun_at[number] = last if CHANGES in replica.totals else 0

    def resume(self, step: int) -> None:
        """Go on after inner step number `step`: send again what was on its way. Collective."""
        for begin in range(step - self._delay, step + 1):
            for fragment in self._due(begin):
                if self._applied_at[fragment.number] >= begin:
                    continue
                if self._begun_at[fragment.number] == begin:
                    self._send(fragment)
                else:
                    self._begin(fragment, begin)
                if begin == step - self._delay:
                    self._finish(fragment, at_once=not self._delay)

    def _read(self, checkpoint: Readable, name: str, array: Array) -> None:
        """Zeros where a checkpoint has none: it may be of another strategy."""
        for plain, first, size in self.layout.runs():
            read: Any = 0.0
            if name in checkpoint.totals:
                read = module_of(array).asarray(checkpoint.read(name, plain, plain + size))
            array[first : first + size] = read

    # When ranks have died.

    def take_over(self, old: OuterSteps, group: Communicator) -> None:
        """Take the state of this rank's former outer steps, and the newest of any. Collective.

        group: the ranks that have one replica, that of the first of them.
        """
        pairs = [(self.common, old.common), (self.changes, old.changes)]
        pairs += zip(self.optimizer.state.values(), old.optimizer.state.values())
        for array, former in pairs:
            array[...] = former
        self.is_synchronized = False
        self._applied_at = list(old._applied_at)
        self._drifts = old._drifts
        group.Bcast(self.changes, root=0)
        self._begun_at, self.failure = group.bcast((old._begun_at, old.failure))
        everyone = self._comm.allgather(self._applied_at)
        for fragment in self.fragments:
            made = [steps[fragment.number] for steps in everyone]
            if min(made) < max(made):
                self._catch_up(fragment, made)

    def _catch_up(self, fragment: Fragment, made: Sequence[float]) -> None:
        """Take the result of an outer step from a rank that has it. made: as on each rank."""
        root = made.index(max(made))
        is_behind = self._applied_at[fragment.number] < max(made)
        if is_behind:
            self._subtract_common(fragment, at_once=False)
        for _, _, part in fragment.exchanges:
            for array in (self.common, *self.optimizer.state.values()):
                self._comm.Bcast(array[part], root=root)
        if is_behind:
            self._add_common(fragment)
