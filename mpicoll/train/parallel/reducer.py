"""What moves in a step: the gradients of each bucket as soon as they are there, and its parameters before they are needed."""

import weakref
from collections import defaultdict
from time import perf_counter

from mpi4py import MPI

from ...errors import MpicollError
from ...support.arrays import module_of
from .buckets import groups

#: buffers that the buckets of zero2 share: two on their way and one that backward writes; where micro-batches are added up
#: their arrivals need memory too, so one less
SLOTS, SLOTS_ADDING = 3, 2


class StaleParameters(MpicollError, RuntimeError):
    """A parameter was read before the values of the last update had come."""


class Exchange:
    """Base: the flat parameters and gradients of one rank, who updates which part, and when what is sent.

    parameters: flat array of `layout.size` elements; gradients are of its dtype. `owned[b]`: the slice of the flat buffer
    that this rank updates in bucket b. A step is, for each micro-batch, `begin`, for each layer `need`, then for each tensor
    `acquire`, writing to `gradient`, `ready`, and then `end`; after the last one `reduced` for each bucket, in order, then
    `outdate`, and `publish` when the owned parameters have their new values.
    """

    divided = False  # whether ranks own different parts
    overlaps = False

    def __init__(self, layout, parameters, comm, meter):
        self.layout, self.parameters, self.comm, self.meter = layout, parameters, comm, meter
        self.module, self.rank, self.size = module_of(parameters), comm.Get_rank(), comm.Get_size()
        self.generation, self._current = 0, [0] * len(layout.buckets)
        self.flat = None  # all gradients, where they are kept
        self._by_layer = defaultdict(list)
        for number, tensor in enumerate(layout.tensors):
            if layout.bucket_of[number] not in self._by_layer[tensor.layer]:
                self._by_layer[tensor.layer].append(layout.bucket_of[number])

    def _zeros(self, size):
        return self.module.zeros(size, self.parameters.dtype)

    @property
    def gradient_bytes(self):
        """Bytes of all gradient buffers on this rank."""
        return self.flat.nbytes

    def begin(self, first, last):
        """A micro-batch begins; first, last: of the step."""
        self.fresh = first

    def acquire(self, number):
        """The memory of this tensor's gradient is about to be written."""

    def gradient(self, number):
        """Where the gradient of this tensor is written, or, unless `fresh`, added."""
        return self.layout.view(self.flat, number)

    def ready(self, number):
        """The gradient of this tensor is complete for this micro-batch."""

    def end(self):
        """The micro-batch is done: what has not been sent is sent."""

    def outdate(self):
        """The owned parameters are about to change: all of them must have come, and until `publish` none may be read."""
        self.settle()
        self.generation += 1

    def need(self, layer):
        """Wait until the parameters of this layer are there. Raises StaleParameters where they are not coming."""
        for number in self._by_layer[layer]:
            self._have(number)

    def settle(self):
        """Wait for all parameters."""
        for number in range(len(self.layout.buckets)):
            self._have(number)

    def _have(self, number):
        if self._current[number] != self.generation:
            names = ", ".join(self.layout.tensors[one].name for one in self.layout.buckets[number].tensors)
            raise StaleParameters(
                f"parameters {names} are those of update {self._current[number]}, expected update {self.generation}: they "
                "were read between an update and its publication"
            )

    def plain(self, array=None):
        """A copy of the parameters (or of an array like them) in forward order without padding; waits for them."""
        self.settle()
        array = self.parameters if array is None else array
        copy = self.module.empty(self.layout.plain[-1], array.dtype)
        for plain, first, size in self.layout.runs(slice(0, self.layout.size)):
            copy[plain : plain + size] = array[first : first + size]
        return copy


class Buckets(Exchange):
    """Reduction and allgather bucket by bucket, in flight while this rank computes.

    sharded: each rank updates its shard of every bucket (ZeRO), else all of it. scattered: gradients are kept as shards only
    (zero2), in buckets' buffers that are used again and again. reduction: "allreduce" or "reduce_scatter". words: the
    algorithm of each collective. gradient_limit, parameter_limit: elements that start together. Bytes that a rank sends per
    step, K ranks, N elements with padding: (K-1)/K N for a reduce_scatter, as much for the allgather, twice that for an
    allreduce; zero2 reduces every micro-batch.
    """

    def __init__(self, layout, parameters, comm, meter, *, sharded, scattered, reduction, overlap, words, gradient_limit,
                 parameter_limit, adding):  # fmt: skip
        super().__init__(layout, parameters, comm, meter)
        self.sharded = self.divided = sharded
        self.scattered, self.overlap = scattered, overlap
        self.overlaps = overlap != "none"
        self.fill = None  # called with a bucket before it is sent
        self._adding = adding and scattered
        self._direct = reduction == "reduce_scatter" and not adding  # the reduction writes where the shard is kept
        self._adds = [False] * len(layout.buckets)
        self.owned = [self._owned(bucket) for bucket in layout.buckets]
        self._make_memory()
        self._reduce = [self._reduction(bucket, reduction, words) for bucket in layout.buckets]
        self._gather = [self._gathering(bucket, words) for bucket in layout.buckets] if sharded else []
        weakref.finalize(self, _free, [*(plan for plan, _ in self._reduce), *self._gather])
        # a group waits for its last gradient, and buffers that are used again cannot wait for each other
        self._gradient_groups = groups(layout.buckets, 1 if scattered else gradient_limit)
        self._flying = {}  # (kind, bucket number): (plan, name, when it was started)
        first_layer = lambda bucket: min((layout.tensors[one].layer for one in bucket.tensors), default=0)
        self._parameter_groups = groups(sorted(layout.buckets, key=first_layer), parameter_limit)

    def _owned(self, bucket):
        return bucket.shard(self.rank, self.size) if self.sharded else slice(bucket.start, bucket.stop)

    # Memory.

    def _make_memory(self):
        if not self.scattered:
            self.flat = self._zeros(self.layout.size)
            return
        largest = max((bucket.size for bucket in self.layout.buckets), default=0)
        count = min(len(self.layout.buckets), SLOTS_ADDING if self._adding else SLOTS)
        self._slots = [self._zeros(largest) for _ in range(count)]
        self._arrivals = [self._zeros(largest // self.size) for _ in range(count)] if self._adding else []
        self._shards = self._zeros(self.layout.size // self.size)

    @property
    def gradient_bytes(self):
        if not self.scattered:
            return self.flat.nbytes
        return sum(array.nbytes for array in (*self._slots, *self._arrivals, self._shards))

    def buffer(self, bucket):
        """The gradients of a bucket."""
        if self.scattered:
            return self._slots[bucket.number % len(self._slots)][: bucket.size]
        return self.flat[bucket.start : bucket.stop]

    def gradient(self, number):
        bucket = self.layout.buckets[self.layout.bucket_of[number]]
        return self.layout.view(self.buffer(bucket), number, bucket.start)

    def _shard(self, bucket):
        return self._shards[bucket.start // self.size : bucket.stop // self.size]

    def _arrival(self, bucket):
        return self._arrivals[bucket.number % len(self._slots)][: bucket.size // self.size]

    # Gradients.

    def _reduction(self, bucket, reduction, words):
        """The plan that sums a bucket's gradients over the ranks, and the array in which this rank finds its part."""
        buffer, share = self.buffer(bucket), bucket.size // self.size
        if reduction == "allreduce":
            plan = self.comm.Allreduce_init(MPI.IN_PLACE, buffer, algorithm=words["allreduce"])
            low = self.owned[bucket.number].start - bucket.start
            return plan, buffer[low : low + share] if self.sharded else buffer
        if self.scattered:
            part = self._arrival(bucket) if self._adding else self._shard(bucket)
            return self.comm.Reduce_scatter_block_init(buffer, part, algorithm=words["reduce_scatter"]), part
        plan = self.comm.Reduce_scatter_block_init(MPI.IN_PLACE, buffer, algorithm=words["reduce_scatter"])
        return plan, buffer[:share]  # MPI puts the result of an operation in place at the front

    def begin(self, first, last):
        self.fresh = first or self.scattered
        self._first, self._last, self._next = first, last, 0
        self._missing = [len(bucket.tensors) for bucket in self.layout.buckets]

    def acquire(self, number):
        """Wait until the reduction that still uses this memory is done."""
        if self.scattered:
            bucket = self.layout.bucket_of[number]
            for flying in [one for kind, one in self._flying if kind == "reduce"]:
                if (flying - bucket) % len(self._slots) == 0:
                    self._collect(self.layout.buckets[flying])

    def ready(self, number):
        self._missing[self.layout.bucket_of[number]] -= 1
        if self.overlaps or self.scattered:
            self._send_complete()

    def end(self):
        """Send what is left; a tensor without a gradient in this micro-batch counts as it lies in its buffer."""
        self._missing = [0] * len(self._missing)
        self._send_complete()

    def _send_complete(self):
        """Start the reductions in the order of the buckets, the same on all ranks, as far as gradients are there."""
        if not (self._last or self.scattered):
            return
        while self._next < len(self._gradient_groups):
            group = self._gradient_groups[self._next]
            if any(self._missing[bucket.number] for bucket in group):
                return
            self._next += 1
            for bucket in group:
                if self.fill:
                    self.fill(bucket)
                if self.scattered:  # the last user of the buffer may have been longer
                    held = sum(self.layout.tensors[number].size for number in bucket.tensors)
                    self.buffer(bucket)[held:] = 0
                self._adds[bucket.number] = not self._first
                self._start("reduce", bucket, self._reduce[bucket.number][0])
                if self.scattered and not self.overlaps:
                    self._collect(bucket)

    def _collect(self, bucket):
        """Wait for the reduction of a bucket, if it is on its way; shards that arrive elsewhere are kept or added."""
        if self._wait("reduce", bucket) and self.scattered and not self._direct:
            part, shard = self._reduce[bucket.number][1], self._shard(bucket)
            if self._adds[bucket.number]:
                shard += part
            else:
                shard[...] = part

    def reduced(self, bucket):
        """This rank's part of the summed gradients of a bucket, when it has come."""
        self._collect(bucket)
        return self._shard(bucket) if self.scattered else self._reduce[bucket.number][1]

    # Parameters.

    def _gathering(self, bucket, words):
        whole = self.parameters[bucket.start : bucket.stop]
        return self.comm.Allgather_init(MPI.IN_PLACE, whole, algorithm=words["allgather"])

    def publish(self):
        """The owned parameters are new: bring them to all ranks, in forward order."""
        for group in self._parameter_groups if self.sharded else ():
            for bucket in group:
                self._start("gather", bucket, self._gather[bucket.number])
        if not self.sharded:
            self._current = [self.generation] * len(self._current)
        elif self.overlap != "all":
            self.settle()

    def _have(self, number):
        if self._wait("gather", self.layout.buckets[number]):
            self._current[number] = self.generation
        super()._have(number)

    @property
    def sendings(self):
        """How many times per micro-batch reductions start."""
        return len(self._gradient_groups)

    # Flights.

    def _start(self, kind, bucket, plan):
        name = f"{kind} {bucket.number}"
        self._flying[kind, bucket.number] = plan, name, perf_counter()
        self.meter.count(getattr(plan, "nbytes", 0))
        plan.Start()

    def _wait(self, kind, bucket):
        """Whether there was something to wait for."""
        plan, name, started = self._flying.pop((kind, bucket.number), (None, None, None))
        if plan is None:
            return False
        with self.meter.waiting(name):
            plan.Wait()
        flight = getattr(plan, "flight", None)  # MPI's own call: all that is known is when it was started and awaited
        self.meter.flew(name, *((flight.begun, flight.ended) if flight else (started, perf_counter())))
        return True


def _free(plans):
    """Free the plans of an exchange that is no more, or at exit, when those in flight cannot be freed."""
    for plan in plans:
        if plan and not getattr(plan, "in_flight", False):
            plan.Free()
