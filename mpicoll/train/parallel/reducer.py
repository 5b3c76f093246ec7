"""The reducer: parameters and gradients of a rank in flat buffers, and what of them is in flight.

The gradients of each bucket are sent as soon as they are there, its parameters come before they are
needed.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from mpi4py import MPI

from ...codes import codes_of
from ...errors import ArgumentError, MpicollError
from ...support.arrays import Array, module_of
from ..model import Tensor
from ..monitor import Meter
from ..options import Options
from .buckets import Bucket, BucketLayout, exempt, groups
from .feedback import ErrorFeedback, Remainder
from .gradients import gradient_store, zeros
from .in_flight import Collective, InFlight, free

if TYPE_CHECKING:
    from ...communicator import Communicator


#: what remains where an update is not whole
GO_ON = "go on from a checkpoint (resume=True)"


class StaleParameters(MpicollError, RuntimeError):
    """A parameter was read before the values of the last update had come."""


class _Moment(NamedTuple):
    """The micro-batch that a rank is in. last: of its step."""

    step: int
    micro_batch: int
    last: bool


class SendOrder:
    """The order in which several reducers send, the same on all ranks.

    A bucket of zero2 waits for one that was sent before from its memory: of ranks that sent in
    different orders each could wait for what another one would send later.

    turns: the reducer of each group of buckets.
    """

    def __init__(self, turns: Sequence[Reducer]) -> None:
        self._turns = turns
        self._next = 0

    def begin(self) -> None:
        """A micro-batch begins."""
        self._next = 0

    def send_complete(self) -> None:
        """Start the reductions that have all gradients, in order."""
        while self._next < len(self._turns) and self._turns[self._next].send_next():
            self._next += 1


class Reducer:
    """Reduction and allgather bucket by bucket, in flight while this rank computes.

    A step is, for each micro-batch, `begin`, for each layer `wait_for_layer`, then for each tensor
    `lend`, writing to that memory or any other, `ready`, and then `end`; after the last one the
    buckets of `updating`, in order, and `publish` when the owned parameters have their new values.
    A tensor without `ready` has a gradient of zero in that micro-batch.

    order: numbers of the tensors in the order in which backward finishes them. like: an array of
    the dtype and module of the gradients and of `parameters`, a flat array that begins as zeros.
    `owned[b]`: the slice of it that this rank updates in bucket b: all of it, under zero1 and zero2
    its shard; with a parameter server rank 0 updates everything, and nothing is sent beside
    computation. fill: writes the gradients of a bucket to its memory before it is sent, where they
    are not given to `ready`.

    Bytes that a rank sends per step, K ranks, N bytes of parameters with padding: (K-1)/K N for a
    reduce_scatter, as much for the allgather, twice that for an allreduce; zero2 reduces every
    micro-batch. A parameter server receives (K-1) N, and sends about log2(K) N.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        order: Iterable[int],
        like: Array,
        comm: Communicator,
        meter: Meter,
        options: Options,
        fill: Callable[[Bucket], None] | None = None,
    ) -> None:
        self.comm = comm
        self.meter = meter
        self.module = module_of(like)
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()
        gradient_limit, parameter_limit = options.bucket_elements(like.itemsize)
        if options.served:  # one bucket
            self.layout = BucketLayout(tensors, range(len(tensors)), 1, float("inf"))
        else:
            limit = min(gradient_limit, parameter_limit) if options.sharded else gradient_limit
            exact = exempt(tensors) if options.compresses else ()
            group = 1
            sends_sums = options.collectives[0] == "allreduce"
            if options.compression and options.error_feedback and sends_sums:
                # a rank's shard is the block of sums that it codes
                group = codes_of(options.compression).group
            self.layout = BucketLayout(tensors, order, self.size, limit, exact, group)
        self.parameters = zeros(self.layout.size, like, comm)
        #: whether ranks own different parts
        self.divided = options.sharded or options.served
        #: called before the last reduction of a step begins
        self.before_last: Callable[[], object] | None = None
        self._fill = fill
        self._overlaps = options.overlap != "none" and not options.served
        self._gathers_later = options.overlap == "all" and not options.served

        buckets = self.layout.buckets
        self.owned = [self._owned(bucket, options) for bucket in buckets]
        self.feedback: ErrorFeedback | None = None
        if options.error_feedback:
            self.feedback = ErrorFeedback(self.layout, like, self.rank, options)
        #: what codes had lost when this training went on without them, until an update has it
        self.remainder: Remainder | None = None
        self.gradients = gradient_store(self.layout, like, comm, options, self.owned, self.feedback)
        self._gathers = self._publications(options) if self.divided and self.size > 1 else []
        weakref.finalize(self, free, [*self.gradients.plans, *self._gathers])
        self._gradient_groups = groups(buckets, self.gradients.group_limit)
        self._parameter_groups = groups(sorted(buckets, key=self._first_layer), parameter_limit)

        #: number of the update whose parameters are wanted, and of the one that each bucket has
        self.generation = 0
        self._current = [0] * len(buckets)
        self._buckets_of: defaultdict[int, list[int]] = defaultdict(list)  # by layer
        for tensor, bucket in zip(self.layout.tensors, self.layout.bucket_of):
            if bucket not in self._buckets_of[tensor.layer]:
                self._buckets_of[tensor.layer].append(bucket)

        #: whether gradients overwrite what is in their buffers, in this micro-batch
        self._fresh = True
        self._place = _Moment(0, 0, False)
        #: tensors whose gradients backward has not written in this micro-batch
        self._absent: set[int] = set()
        #: memory that backward is writing to, by tensor
        self._lent: dict[int, Array] = {}
        #: gradients whose memory another bucket still has, by tensor
        self._staged: dict[int, Array] = {}
        self._views: dict[tuple[int, int], Array] = {}
        self._in_flight = InFlight(meter)
        #: where other reducers send on the same communicator
        self.send_order: SendOrder | None = None

    def _owned(self, bucket: Bucket, options: Options) -> slice:
        if options.sharded:
            return bucket.shard(self.rank, self.size)
        return slice(bucket.start, bucket.start if options.served and self.rank else bucket.stop)

    def _first_layer(self, bucket: Bucket) -> int:
        return min((self.layout.tensors[number].layer for number in bucket.tensors), default=0)

    def _publications(self, options: Options) -> list[Collective]:
        """What brings the owned parameters of each bucket to all ranks."""
        comm = self.comm
        buckets = self.layout.buckets
        parts = [self.parameters[bucket.start : bucket.stop] for bucket in buckets]
        if options.served:
            return [partial(comm.Bcast, part, root=0, algorithm="binomial") for part in parts]
        algorithm = options.algorithms["allgather"]
        compression = options.parameter_compression
        return [
            comm.Allgather_init(
                MPI.IN_PLACE,
                part,
                algorithm=algorithm,
                compression=None if bucket.is_exact else compression,
            )
            for bucket, part in zip(buckets, parts)
        ]

    @property
    def scratch_bytes(self) -> int:
        """Bytes that the collectives hold beside the buffers that they are bound to."""
        plans = (*self.gradients.plans, *self._gathers)
        return sum(getattr(plan, "scratch", 0) for plan in plans)  # MPI's own request does not say

    @property
    def residual_bytes(self) -> int:
        """Bytes of error feedback."""
        if self.feedback is not None:
            return self.feedback.nbytes
        return 0 if self.remainder is None else self.remainder.values.nbytes

    @property
    def sendings(self) -> int:
        """How many times per micro-batch reductions start."""
        return len(self._gradient_groups)

    @property
    def last_tensors(self) -> list[int]:
        """The number of the tensor that completes each group of buckets that are sent together."""
        return [group[-1].tensors[-1] for group in self._gradient_groups]

    # Gradients.

    def begin(self, first: bool, last: bool) -> None:
        """A micro-batch begins; first, last: of the step."""
        if first and self._in_flight:  # of a backward pass whose gradients were dropped
            self.collect()
        step, micro_batch, _ = self._place
        self._place = _Moment(step + 1, 1, last) if first else _Moment(step, micro_batch + 1, last)
        self._fresh = self.gradients.begin(first)
        self._absent = set(range(len(self.layout.tensors)))
        self._lent.clear()
        self._staged.clear()
        self._first = first
        self._sends = last or self.gradients.every_micro_batch
        self._next = 0  # number of the first group that is not sent
        self._sent = 0  # number of the first bucket that is not sent
        self._missing = [len(bucket.tensors) for bucket in self.layout.buckets]
        if self.send_order is not None:
            self.send_order.begin()

    def gradient(self, number: int) -> Array:
        """The memory of this tensor's gradient, which other tensors may share."""
        key = number, self.gradients.row
        view = self._views.get(key)
        if view is None:
            bucket = self.layout.buckets[self.layout.bucket_of[number]]
            buffer = self.gradients.buffer(bucket)
            view = self._views[key] = self.layout.view(buffer, number, bucket.start)
        return view

    def lend(self, number: int) -> Array | None:
        """The memory of this tensor's gradient, which backward overwrites until `ready`.

        None where it is not free yet.
        """
        if not self._fresh or not self._is_free(number):
            return None
        lent = self._lent[number] = self.gradient(number)
        return lent

    def _is_free(self, number: int) -> bool:
        """Whether backward may write there now; waits for what was reduced there before."""
        bucket = self.layout.bucket_of[number]
        if self.gradients.predecessor(bucket) >= self._sent:
            return False
        self._take_over(self.layout.buckets[bucket])
        return True

    def _take_over(self, bucket: Bucket) -> None:
        """Wait until what was reduced in the memory of this bucket is done."""
        self._collect(self.layout.buckets[self.gradients.reduced_there(bucket)])

    def ready(self, number: int, gradient: Array | None = None) -> None:
        """The gradient of this tensor is complete: in the memory that was lent, or any other.

        Without a gradient `fill` brings it. Raises ArgumentError for a second one in this
        micro-batch: the first may be on its way.
        """
        if gradient is not None:
            self._accept(number, gradient)
        bucket = self.layout.bucket_of[number]
        self._missing[bucket] -= 1
        if not self._missing[bucket] and (self._overlaps or self.gradients.every_micro_batch):
            self._send_complete()

    def _accept(self, number: int, gradient: Array) -> None:
        if number not in self._absent:
            name = self.layout.tensors[number].name
            raise ArgumentError(
                f"gradient of {name}: expected one for each micro-batch, got a second one: "
                "a model calls the hooks of each layer once in a backward"
            )
        self._absent.remove(number)
        if self._lent.pop(number, None) is gradient:
            return
        if self._is_free(number):
            self._put(number, gradient)
        else:
            self._staged[number] = gradient

    def _put(self, number: int, gradient: Array) -> None:
        """Write the gradient to its memory, or add it."""
        target = self.gradient(number)
        if not self._fresh:
            gradient = target.astype(gradient.dtype, copy=False) + gradient
        target[...] = gradient

    def _fill_absent(self, numbers: Iterable[int]) -> None:
        """Of these tensors, those that backward left out have a gradient of zero."""
        if self._fresh:
            for number in self._absent.intersection(numbers):
                self.gradient(number).fill(0)

    def end(self) -> None:
        """The micro-batch is done: what has not been sent is sent."""
        self._missing = [0] * len(self._missing)
        self._send_complete()
        if not self._sends and self._fill is None:
            self._fill_absent(self._absent)

    def _send_complete(self) -> None:
        """Start the reductions that have all gradients, in the order of the buckets.

        The order is the same on all ranks.
        """
        if self.send_order is not None:
            self.send_order.send_complete()
            return
        while self.send_next():
            pass

    def send_next(self) -> bool:
        """Start the reductions of the next group. False where it does not have all gradients."""
        if not self._sends or self._next == len(self._gradient_groups):
            return False
        group = self._gradient_groups[self._next]
        if any(self._missing[bucket.number] for bucket in group):
            return False
        self._next += 1
        for bucket in group:
            self._send(bucket)
            self._sent = bucket.number + 1
        return True

    def _send(self, bucket: Bucket) -> None:
        self._take_over(bucket)
        (self._fill or self._complete)(bucket)
        is_last = self._place.last and bucket.number == len(self.layout.buckets) - 1
        if is_last and self.before_last is not None:
            self.before_last()
        self.gradients.prepare(bucket, self._first)
        again = self.gradients.every_micro_batch and not self._first
        if self.remainder is not None and self.rank == 0 and not again:
            self.remainder.add_to(self.gradients.buffer(bucket), bucket)
        if self.feedback is not None and not bucket.is_exact:
            with self.meter.computing(f"feedback {bucket.number}"):
                self.feedback.feed(bucket, self.gradients.buffer(bucket), again)
        collective = self.gradients.plans[bucket.number]
        if collective is None or not self._in_flight.start(f"reduce {bucket.number}", collective):
            self._arrived(bucket)
        if self.gradients.every_micro_batch and not self._overlaps:
            self._collect(bucket)

    def _complete(self, bucket: Bucket) -> None:
        """Write those gradients of a bucket to its memory that are not there yet."""
        for number in bucket.tensors:
            if number in self._staged:
                self._put(number, self._staged.pop(number))
        self._fill_absent(bucket.tensors)

    def reduced(self, bucket: Bucket) -> Array:
        """This rank's part of the summed gradients of a bucket, when it has come."""
        self._collect(bucket)
        return self.gradients.reduced(bucket)

    def collect(self) -> None:
        """Wait for all reductions of the step."""
        for bucket in self.layout.buckets:
            self._collect(bucket)

    def _collect(self, bucket: Bucket) -> None:
        """Wait for the reduction of a bucket, if it is on its way."""
        if self._in_flight.wait(f"reduce {bucket.number}"):
            self._arrived(bucket)

    def _arrived(self, bucket: Bucket) -> None:
        with self.meter.computing(f"arrived {bucket.number}"):
            self.gradients.arrived(bucket)

    def scaled(self, factor: float) -> None:
        """The loss of the step that begins has this factor."""
        if self.feedback is not None:
            self.feedback.scale = factor
        if self.remainder is not None:
            self.remainder.scale = factor

    def commit(self) -> None:
        """The update of this step was made."""
        if self.feedback is not None:
            self.feedback.commit()
        self.remainder = None

    def abandon(self) -> None:
        """Bring to its end what is under way of a step that an exception has left. Collective.

        All ranks send what any of them has sent: gradients that nobody uses, so that none waits
        for another. No parameter is read.
        """
        if self._place.step:
            self.end()
        furthest = max(self.comm.allgather(self._reached()))
        while self._reached() < furthest:
            self.begin(self._place.step < furthest.step, furthest.last)
            self.end()
        self.collect()
        for bucket in self.layout.buckets:
            if self._in_flight.wait(f"gather {bucket.number}"):
                self._current[bucket.number] = self.generation

    def _reached(self) -> _Moment:
        """The place, comparable between ranks.

        What is reduced once a step may have other numbers of micro-batches on each.
        """
        if self.gradients.every_micro_batch:
            return self._place
        return self._place._replace(micro_batch=0)

    # Parameters.

    def updating(self) -> Iterator[tuple[Bucket, Array]]:
        """Each bucket with this rank's part of the summed gradients, as they come.

        The owned parameters of the bucket are to be updated before the next one is asked for.
        """
        for bucket in self.layout.buckets:
            gradients = self.reduced(bucket)
            if bucket.number == 0:
                self.invalidate()
            yield bucket, gradients

    def invalidate(self) -> None:
        """The owned parameters are about to change: until `publish` none may be read.

        Waits for all of the update before.
        """
        self.wait()
        self.generation += 1

    def publish(self) -> None:
        """The owned parameters are new: bring them to all ranks, in forward order."""
        if not self._gathers:
            self.replaced()
            return
        for group in self._parameter_groups:
            for bucket in group:
                if not self._in_flight.start(
                    f"gather {bucket.number}", self._gathers[bucket.number]
                ):
                    self._current[bucket.number] = self.generation
        if not self._gathers_later:
            self.wait()

    def replaced(self) -> None:
        """All parameters on this rank are those of the last update."""
        self._current = [self.generation] * len(self._current)

    def wait_for_layer(self, layer: int) -> None:
        """Wait for the parameters of this layer. Raises StaleParameters where none are coming."""
        for number in self._buckets_of[layer]:
            self._wait_for_bucket(number)

    def wait(self) -> None:
        """Wait for all parameters."""
        for number in range(len(self.layout.buckets)):
            self._wait_for_bucket(number)

    def _wait_for_bucket(self, number: int) -> None:
        if self._current[number] == self.generation:
            return
        bucket = self.layout.buckets[number]
        if not self._in_flight.wait(f"gather {number}"):
            names = ", ".join(self.layout.tensors[tensor].name for tensor in bucket.tensors)
            raise StaleParameters(
                f"parameters {names} are those of update {self._current[number]}, expected update "
                f"{self.generation}: they were read between an update and its publication; where "
                f"an exception has ended the update, {GO_ON}"
            )
        self._current[number] = self.generation

    def is_current(self) -> bool:
        """Whether all parameters of the last update have come."""
        return all(generation == self.generation for generation in self._current)

    def named(self) -> dict[str, Array]:
        """Views of the parameters that are there."""
        return self.layout.named(self.parameters)

    def plain(self) -> Array:
        """A copy of the parameters in forward order without padding; waits for them."""
        self.wait()
        return self.plain_now()

    def plain_now(self) -> Array:
        """The same of those that are there."""
        return self.layout.in_plain_order(self.parameters)
