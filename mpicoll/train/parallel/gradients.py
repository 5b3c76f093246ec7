"""Where the gradients of a rank lie, and the collectives that sum them over the ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy
from mpi4py import MPI

from ...buffers import Contributions, KeptSums
from ...schedule import bounds
from ...support.arrays import Array, module_of
from ..options import Options
from .buckets import Bucket, BucketLayout
from .feedback import ErrorFeedback
from .in_flight import Collective

if TYPE_CHECKING:
    from ...communicator import Communicator

#: buffers that the buckets of zero2 share: two on their way and one that backward writes; where
#: micro-batches are added up their arrivals need memory too, so one less
SLOTS = 3
SLOTS_ADDING = 2


#: a collective, None where there is nothing to do, and where this rank finds its part of the sums
Reduction: TypeAlias = tuple[Collective | None, Array]


def zeros(size: int, like: Array, comm: Communicator) -> Array:
    """A flat buffer of zeros, of the dtype and module of `like`. Local.

    Other ranks of the node read the host's in place. Raises ArgumentError without such memory.
    """
    module = module_of(like)
    array: Array = (
        comm.zeros(size, like.dtype) if module is numpy else module.zeros(size, like.dtype)
    )
    return array


class GradientStore(ABC):
    """The gradients of a rank, by bucket, and `plans[b]`, the collective that reduces bucket b.

    A plan is started after `prepare`; `arrived` is called when it is done, and then `reduced` is
    this rank's part of the sums. It is None in place on one rank. like: an array of the parameters'
    dtype and module. owned: for each bucket the slice of the flat buffer that this rank updates.
    feedback: is told of sums before they are sent in codes.
    """

    #: whether each micro-batch is reduced, not only their sum
    every_micro_batch = False
    #: elements of neighbouring buckets that start together
    group_limit: int
    #: which of several gradients of a tensor is written now
    row = 0

    def __init__(
        self,
        layout: BucketLayout,
        like: Array,
        comm: Communicator,
        options: Options,
        owned: Sequence[slice],
        feedback: ErrorFeedback | None = None,
    ) -> None:
        self.layout = layout
        self.owned = owned
        self._feedback = feedback
        self._like = like[:0]
        self._comm = comm
        self._rank = comm.Get_rank()
        self._ranks = comm.Get_size()
        self._algorithms = options.algorithms
        self._compression = options.compression
        self._scatters = options.collectives[0] == "reduce_scatter"
        self.group_limit, _ = options.bucket_elements(like.itemsize)
        self._allocate(options)
        reductions = [self._reduction(bucket) for bucket in layout.buckets]
        self.plans = [plan for plan, _ in reductions]
        self._parts = [part for _, part in reductions]

    @abstractmethod
    def _allocate(self, options: Options) -> None:
        """Make the buffers."""

    @abstractmethod
    def _reduction(self, bucket: Bucket) -> Reduction:
        """Make the collective of a bucket."""

    def begin(self, first: bool) -> bool:
        """A micro-batch begins; first: of the step. Whether its gradients overwrite the buffers."""
        return first or self.every_micro_batch

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of all buffers."""

    @abstractmethod
    def buffer(self, bucket: Bucket) -> Array:
        """Where this rank's gradients of a bucket are written."""

    def predecessor(self, number: int) -> int:
        """The bucket that gives its memory to bucket `number` when it is sent; negative: none.

        So memory has one owner at a time, in the order in which buckets are sent.
        """
        return -1

    def reduced_there(self, bucket: Bucket) -> int:
        """The number of the bucket that was last reduced in the memory of this one."""
        return bucket.number

    def prepare(self, bucket: Bucket, first: bool) -> None:
        """The buffer is about to be reduced. first: in the first micro-batch of the step.

        Padding is zero: the last user of the buffer may have been longer, and codes of groups that
        are not finite leave NaNs.
        """
        held = sum(self.layout.tensors[number].size for number in bucket.tensors)
        self.buffer(bucket)[held:] = 0

    def arrived(self, bucket: Bucket) -> None:
        """The reduction is done."""
        if (feedback := self._feedback_of_sums(bucket)) is not None:
            feedback.feed_sum(bucket)

    def reduced(self, bucket: Bucket) -> Array:
        """This rank's part of the sums."""
        return self._parts[bucket.number]

    def _owned_part(self, bucket: Bucket, sums: Array) -> Array:
        """This rank's part of the sums of a whole bucket."""
        owned = self.owned[bucket.number]
        return sums[owned.start - bucket.start : owned.stop - bucket.start]

    def _feedback_of_sums(self, bucket: Bucket) -> ErrorFeedback | None:
        """What notes the loss of the sums, where these are sent in codes, too."""
        return None if self._scatters or bucket.is_exact else self._feedback

    def _allreduce(self, bucket: Bucket, gradients: Any, sums: Array) -> Reduction:
        result: Any = sums
        if (feedback := self._feedback_of_sums(bucket)) is not None:
            result = KeptSums(sums, feedback.room_for_sums(bucket))
        plan = self._comm.Allreduce_init(
            gradients,
            result,
            algorithm=self._algorithms["allreduce"],
            compression=None if bucket.is_exact else self._compression,
        )
        return plan, self._owned_part(bucket, sums)

    def _reduce_scatter(self, bucket: Bucket, gradients: Any, part: Array) -> Collective:
        return self._comm.Reduce_scatter_block_init(
            gradients,
            part,
            algorithm=self._algorithms["reduce_scatter"],
            compression=None if bucket.is_exact else self._compression,
        )


class FullGradients(GradientStore):
    """All gradients in one flat array; what is reduced is the sum of the micro-batches."""

    def _allocate(self, options: Options) -> None:
        self._flat = zeros(self.layout.size, self._like, self._comm)

    @property
    def nbytes(self) -> int:
        return self._flat.nbytes

    def buffer(self, bucket: Bucket) -> Array:
        return self._flat[bucket.start : bucket.stop]

    def _reduction(self, bucket: Bucket) -> Reduction:
        buffer = self.buffer(bucket)
        if self._ranks == 1:
            return None, buffer
        if self._scatters:  # in place, which for MPI means that the result is at the front
            plan = self._reduce_scatter(bucket, MPI.IN_PLACE, buffer)
            return plan, buffer[: bucket.size // self._ranks]
        return self._allreduce(bucket, MPI.IN_PLACE, buffer)


class ServedGradients(GradientStore):
    """Those of all ranks at rank 0, which has memory for each, and sums them in rank order.

    So the sum does not depend on which rank was first. Rank 0 is the bottleneck, which is what a
    parameter server is there to show.
    """

    def _allocate(self, options: Options) -> None:
        module = module_of(self._like)
        rows = 0 if self._rank else self._ranks
        self._flat: Array = module.zeros(self.layout.size, self._like.dtype)
        self._rows: Array = module.empty((rows, self.layout.size), self._like.dtype)

    @property
    def nbytes(self) -> int:
        return self._flat.nbytes + self._rows.nbytes

    def buffer(self, bucket: Bucket) -> Array:
        return self._flat

    def _reduction(self, bucket: Bucket) -> Reduction:
        rows = None if self._rank else self._rows
        gather = partial(self._comm.Gather, self._flat, rows, root=0, algorithm="linear")
        return gather, self._flat[:0] if rows is None else rows[0]

    def arrived(self, bucket: Bucket) -> None:
        for gradients in self._rows[1:]:
            self._rows[0] += gradients


class ShardedGradients(GradientStore):
    """This rank's shard of the summed gradients; buckets are written in few buffers, in turn.

    Every micro-batch is reduced, and added to the shard.
    """

    every_micro_batch = True

    def _allocate(self, options: Options) -> None:
        # a group waits for its last gradient, and buckets in one buffer cannot wait for each other
        self.group_limit = 1
        buckets = self.layout.buckets
        adding = options.accumulate > 1
        largest = max((bucket.size for bucket in buckets), default=0)
        count = min(len(buckets), SLOTS_ADDING if adding else SLOTS)
        sizes = [max(bucket.size for bucket in buckets[slot::count]) for slot in range(count)]
        self._slots = [self._zeros(size) for size in sizes]
        self._arrivals = [self._zeros(largest // self._ranks) for _ in sizes] if adding else []
        self._shards = self._zeros(self.layout.size // self._ranks)
        #: the number of the bucket that was reduced last in each of the slots
        self._reduced_last = list(range(count))
        self._adds = [False] * len(buckets)
        #: whether the reduction writes where the shard is kept
        self._direct = self._scatters and not adding

    def _zeros(self, size: int) -> Array:
        return zeros(size, self._like, self._comm)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (*self._slots, *self._arrivals, self._shards))

    def buffer(self, bucket: Bucket) -> Array:
        return self._slots[bucket.number % len(self._slots)][: bucket.size]

    def predecessor(self, number: int) -> int:
        return number - len(self._slots)

    def reduced_there(self, bucket: Bucket) -> int:
        return self._reduced_last[bucket.number % len(self._slots)]

    def prepare(self, bucket: Bucket, first: bool) -> None:
        super().prepare(bucket, first)
        self._adds[bucket.number] = not first
        self._reduced_last[bucket.number % len(self._slots)] = bucket.number

    def arrived(self, bucket: Bucket) -> None:
        """Keep or add what has come elsewhere than in the shard."""
        super().arrived(bucket)
        if self._direct:
            return
        part = self._parts[bucket.number]
        shard = self._shard(bucket)
        if self._adds[bucket.number]:
            shard += part
        else:
            shard[...] = part

    def reduced(self, bucket: Bucket) -> Array:
        return self._shard(bucket)

    def _shard(self, bucket: Bucket) -> Array:
        return self._shards[bucket.start // self._ranks : bucket.stop // self._ranks]

    def _reduction(self, bucket: Bucket) -> Reduction:
        buffer = self.buffer(bucket)
        if not self._scatters:
            return self._allreduce(bucket, MPI.IN_PLACE, buffer)
        part = self._shard(bucket)
        if not self._direct:
            part = self._arrivals[bucket.number % len(self._arrivals)][: len(part)]
        return self._reduce_scatter(bucket, buffer, part), part


class SeparateGradients(GradientStore):
    """Those of each micro-batch by themselves, one row each: their sum is made in fixed point.

    Every tensor has a scale of its own, so that buckets, strategies and ranks make no difference.
    Memory: a row for each micro-batch of this rank, and the sums, or its shard of them.
    """

    def _allocate(self, options: Options) -> None:
        low, high = bounds(options.micro_batches or 1, self._ranks)[self._rank : self._rank + 2]
        zeros_of = module_of(self._like).zeros  # no other rank reads them
        summed = self.layout.size // (self._ranks if self._scatters else 1)
        self._served = options.served
        self._rows: Array = zeros_of((high - low, self.layout.size), self._like.dtype)
        self._sums: Array = zeros_of(summed, self._like.dtype)

    def begin(self, first: bool) -> bool:
        """The next row."""
        self.row = 0 if first else self.row + 1
        return True

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes + self._sums.nbytes

    def buffer(self, bucket: Bucket) -> Array:
        return self._rows[self.row, bucket.start : bucket.stop]

    def _reduction(self, bucket: Bucket) -> Reduction:
        rows = self._rows[:, bucket.start : bucket.stop]
        mine = Contributions(rows, self.layout.edges(bucket))
        if self._scatters:
            part = self._sums[bucket.start // self._ranks : bucket.stop // self._ranks]
            return self._reduce_scatter(bucket, mine, part), part
        sums = self._sums[bucket.start : bucket.stop]
        if not self._served:
            return self._allreduce(bucket, mine, sums)
        received = None if self._rank else sums
        plan = partial(self._comm.Reduce, mine, received, root=0, algorithm="linear")
        return plan, self._owned_part(bucket, sums)


def gradient_store(
    layout: BucketLayout,
    like: Array,
    comm: Communicator,
    options: Options,
    owned: Sequence[slice],
    feedback: ErrorFeedback | None = None,
) -> GradientStore:
    """The gradients of a rank as its strategy keeps them."""
    store: type[GradientStore] = FullGradients
    if options.micro_batches is not None:
        store = SeparateGradients
    elif options.served:
        store = ServedGradients
    elif options.scattered and comm.Get_size() > 1:  # one rank's shard is everything
        store = ShardedGradients
    return store(layout, like, comm, options, owned, feedback)
