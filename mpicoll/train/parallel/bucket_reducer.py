"""What moves in a step: the gradients of each bucket as soon as they are there, and its parameters before they are needed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from mpi4py import MPI

from ...support.arrays import Array
from ..model import Tensor
from ..monitor import Mark, Meter
from .buckets import Bucket, BucketLayout, groups
from .gradients import FullGradients, GradientStore, PersistentCollective, SeparateGradients, ShardedGradients
from .options import Options
from .reducer import Reducer

if TYPE_CHECKING:
    from ...communicator import Communicator


def bucket_layout(tensors: Sequence[Tensor], order: Iterable[int], ranks: int, options: Options, itemsize: int) -> BucketLayout:
    """The layout for a `BucketReducer`: buckets small enough for gradients and, where those are gathered, for parameters.

    order: numbers of the tensors in the order in which backward finishes them. itemsize: bytes of an element.
    """
    limits = options.bucket_elements(itemsize)
    return BucketLayout(tensors, order, ranks, min(limits) if options.sharded else limits[0])


class _Started(NamedTuple):
    plan: PersistentCollective
    name: str
    time: float
    given: Mark


class _Place(NamedTuple):
    """The micro-batch that a rank is in. last: of its step."""

    step: int
    micro_batch: int
    last: bool


class BucketReducer(Reducer):
    """Reduction and allgather bucket by bucket, in flight while this rank computes.

    options: of zero1 and zero2 each rank updates its shard of every bucket, else all of it. fill: writes the gradients of a
    bucket to its memory before it is sent, where nobody gives them to `ready`.

    Bytes that a rank sends per step, K ranks, N bytes of parameters with padding: (K-1)/K N for a
    reduce_scatter, as much for the allgather, twice that for an allreduce; zero2 reduces every micro-batch.
    """

    def __init__(self, layout: BucketLayout, parameters: Array, comm: Communicator, meter: Meter, options: Options,
                 fill: Callable[[Bucket], None] | None = None) -> None:  # fmt: skip
        super().__init__(layout, parameters, comm, meter)
        self.divided, self._fill = options.sharded, fill
        self._overlaps, self._gathers_later = options.overlap != "none", options.overlap == "all"
        self.owned = [self._owned(bucket) for bucket in layout.buckets]
        shards = options.scattered and self.size > 1  # the shard of a rank that is alone is everything
        store: type[GradientStore] = ShardedGradients if shards else FullGradients
        if options.micro_batches is not None:
            store = SeparateGradients
        self.gradients = store(layout, parameters, comm, options, self.owned)
        self._gathers = self._gatherings(options.algorithms["allgather"]) if self.divided and self.size > 1 else []
        weakref.finalize(self, _free, [*filter(None, self.gradients.plans), *self._gathers])
        self._views: dict[tuple[int, int], Array] = {}
        self._started: dict[tuple[str, int], _Started] = {}
        #: gradients whose memory another bucket still has, by tensor
        self._staged: dict[int, Array] = {}
        first_layer = lambda bucket: min((layout.tensors[one].layer for one in bucket.tensors), default=0)
        _, limit = options.bucket_elements(parameters.itemsize)
        self._gradient_groups = groups(layout.buckets, self.gradients.group_limit)
        self._parameter_groups = groups(sorted(layout.buckets, key=first_layer), limit)
        self._last = False
        self._place = _Place(0, 0, False)
        self.first = self._parameter_groups[0][0].number

    def _owned(self, bucket: Bucket) -> slice:
        return bucket.shard(self.rank, self.size) if self.divided else slice(bucket.start, bucket.stop)

    # Gradients.

    @property
    def gradient_bytes(self) -> int:
        return self.gradients.nbytes

    @property
    def scratch_bytes(self) -> int:
        plans = (*self.gradients.plans, *self._gathers)
        return sum(getattr(plan, "scratch", 0) for plan in plans)  # of MPI's own request it is not known

    @property
    def sendings(self) -> int:
        return len(self._gradient_groups)

    def begin(self, first: bool, last: bool) -> None:
        if first and self._started:  # reductions of a backward pass whose gradients were dropped may be under way
            self.collect()
        step, micro_batch, _ = self._place
        self._place = _Place(step + 1, 1, last) if first else _Place(step, micro_batch + 1, last)
        super().begin(self.gradients.begin(first), last)
        self._staged.clear()
        self._last = last
        self._first, self._sends = first, last or self.gradients.every_micro_batch
        self._next = self._sent = 0  # number of the first group, and bucket, that is not sent
        self._missing = [len(bucket.tensors) for bucket in self.layout.buckets]

    def gradient(self, number: int) -> Array:
        key = number, self.gradients.row
        view = self._views.get(key)
        if view is None:
            bucket = self.layout.buckets[self.layout.bucket_of[number]]
            view = self._views[key] = self.layout.view(self.gradients.buffer(bucket), number, bucket.start)
        return view

    def _is_free(self, number: int) -> bool:
        bucket = self.layout.bucket_of[number]
        if self.gradients.predecessor(bucket) >= self._sent:
            return False
        self._take_over(self.layout.buckets[bucket])
        return True

    def _take_over(self, bucket: Bucket) -> None:
        """Wait until what was reduced in the memory of this bucket is done."""
        self._collect(self.layout.buckets[self.gradients.reduced_there(bucket)])

    def _put(self, number: int, gradient: Array) -> None:
        if self._is_free(number):
            super()._put(number, gradient)
        else:
            self._staged[number] = gradient

    def ready(self, number: int, gradient: Array | None = None) -> None:
        """As of any reducer; without a gradient `fill` brings it."""
        if gradient is not None:
            super().ready(number, gradient)
        bucket = self.layout.bucket_of[number]
        self._missing[bucket] -= 1
        if not self._missing[bucket] and (self._overlaps or self.gradients.every_micro_batch):
            self._send_complete()

    def end(self) -> None:
        """Send what is left."""
        self._missing = [0] * len(self._missing)
        self._send_complete()
        if not self._sends and self._fill is None:
            self._fill_absent(self._absent)

    def abandon(self) -> None:
        """All ranks send what any of them has sent: gradients that nobody uses, so that none waits for another."""
        if self._place.step:
            self.end()
        furthest = max(self.comm.allgather(self._reached()))
        while self._reached() < furthest:
            self.begin(self._place.step < furthest.step, furthest.last)
            self.end()
        self.collect()
        for bucket in self.layout.buckets:
            if self._wait("gather", bucket):
                self._current[bucket.number] = self.generation

    def _reached(self) -> _Place:
        """The place, comparable between ranks: what is reduced once a step may have other numbers of micro-batches on each."""
        return self._place if self.gradients.every_micro_batch else self._place._replace(micro_batch=0)

    def _send_complete(self) -> None:
        """Start the reductions in the order of the buckets, the same on all ranks, as far as gradients are there."""
        while self._sends and self._next < len(self._gradient_groups):
            group = self._gradient_groups[self._next]
            if any(self._missing[bucket.number] for bucket in group):
                return
            self._next += 1
            for bucket in group:
                self._send(bucket)
                self._sent = bucket.number + 1

    def _complete(self, bucket: Bucket) -> None:
        """Write those gradients of a bucket to its memory that are not there yet."""
        for number in bucket.tensors:
            if number in self._staged:
                super()._put(number, self._staged.pop(number))
        self._fill_absent(bucket.tensors)

    def _send(self, bucket: Bucket) -> None:
        self._take_over(bucket)
        (self._fill or self._complete)(bucket)
        if self._last and bucket.number == len(self.layout.buckets) - 1:
            self.before_last()
        self.gradients.prepare(bucket, self._first)
        if (plan := self.gradients.plans[bucket.number]) is not None:
            self._start("reduce", bucket, plan)
        else:
            self.gradients.arrived(bucket)
        if self.gradients.every_micro_batch and not self._overlaps:
            self._collect(bucket)

    def _collect(self, bucket: Bucket) -> None:
        """Wait for the reduction of a bucket, if it is on its way."""
        if self._wait("reduce", bucket):
            self.gradients.arrived(bucket)

    def reduced(self, bucket: Bucket) -> Array:
        self._collect(bucket)
        return self.gradients.reduced(bucket)

    # Parameters.

    def _gatherings(self, algorithm: Any) -> list[PersistentCollective]:
        parts = [self.parameters[bucket.start : bucket.stop] for bucket in self.layout.buckets]
        return [self.comm.Allgather_init(MPI.IN_PLACE, part, algorithm=algorithm) for part in parts]

    @property
    def heads(self) -> Array:
        bucket = self.layout.buckets[self.first]
        shard = max(1, bucket.size // self.size)
        return self.parameters[bucket.start : bucket.stop : shard] if self.divided else self.parameters[:0]

    def publish(self) -> None:
        """In forward order."""
        if not self.divided or self.size == 1:
            self._all_are_current()
            return
        for group in self._parameter_groups:
            for bucket in group:
                self._start("gather", bucket, self._gathers[bucket.number])
        if not self._gathers_later:
            self.wait()

    def _wait_for_bucket(self, number: int) -> None:
        if self._current[number] == self.generation:
            return
        if self._wait("gather", self.layout.buckets[number]):
            self._current[number] = self.generation
        super()._wait_for_bucket(number)

    # Collectives in flight.

    def _start(self, kind: Literal["reduce", "gather"], bucket: Bucket, plan: PersistentCollective) -> None:
        name, given = f"{kind} {bucket.number}", self.meter.mark()
        self._started[kind, bucket.number] = _Started(plan, name, perf_counter(), given)
        self.meter.count(getattr(plan, "nbytes", 0))
        plan.Start()

    def _wait(self, kind: Literal["reduce", "gather"], bucket: Bucket) -> bool:
        """Whether there was something to wait for."""
        started = self._started.pop((kind, bucket.number), None)
        if started is None:
            return False
        with self.meter.waiting(started.name):
            started.plan.Wait()
        self.meter.in_flight(started.name, *_in_flight(started), after=started.given)
        return True


def _in_flight(started: _Started) -> tuple[float, float]:
    """From when to when; of MPI's own call all that is known is when it was started and awaited."""
    task = getattr(started.plan, "task", None)  # MPI's own request has none
    return (task.begun, task.ended) if task else (started.time, perf_counter())


def _free(plans: Iterable[PersistentCollective]) -> None:
    """Free the plans of a reducer that is no more, or at exit, when those in flight cannot be freed."""
    for plan in plans:
        if plan and not getattr(plan, "in_flight", False):
            plan.Free()
