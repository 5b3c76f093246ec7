"""Where the gradients of a rank lie, and the collectives that sum them over the ranks: whole, or as shards only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from mpi4py import MPI

from ...buffers import Contributions
from ...schedule import bounds
from ...support.arrays import Array, module_of
from .buckets import Bucket, BucketLayout
from .memory import zeros
from .options import Options

if TYPE_CHECKING:
    from ...communicator import Communicator

#: buffers that the buckets of zero2 share: two on their way and one that backward writes; where micro-batches are added up
#: their arrivals need memory too, so one less
SLOTS, SLOTS_ADDING = 3, 2


class PersistentCollective(Protocol):
    """What `Allreduce_init` and its like return."""

    def Start(self) -> object: ...

    def Wait(self) -> object: ...

    def Free(self) -> object: ...


class GradientStore(ABC):
    """The gradients of a rank, by bucket, and `plans[b]`, the collective that reduces bucket b.

    A plan is started after `prepare`; `arrived` is called when it is done, and then `reduced` is this rank's part of the
    sums. It is None where there is nothing to do: in place, on one rank. parameters: an array of their dtype and module.
    owned: for each bucket the slice of the flat buffer that this rank updates.
    """

    #: whether each micro-batch is reduced, not only their sum
    every_micro_batch: bool
    #: elements of neighbouring buckets that start together
    group_limit: int
    #: which of several gradients of a tensor is written now
    row = 0

    def __init__(self, layout: BucketLayout, parameters: Array, comm: Communicator, options: Options,
                 owned: Sequence[slice]) -> None:  # fmt: skip
        self.layout, self.owned, self._comm, self._algorithms = layout, owned, comm, options.algorithms
        self._like, self._alone = parameters[:0], comm.Get_size() == 1
        self._allocate(options)
        reduce = self._allreduce if options.collectives[0] == "allreduce" else self._reduce_scatter
        made = [reduce(bucket) for bucket in layout.buckets]
        self.plans: list[PersistentCollective | None] = [plan for plan, _ in made]
        self._parts = [part for _, part in made]

    @abstractmethod
    def _allocate(self, options: Options) -> None:
        """Make the buffers."""

    def _zeros(self, size: int) -> Array:
        return zeros(size, self._like, self._comm)

    def begin(self, first: bool) -> bool:
        """A micro-batch begins; returns whether its gradients overwrite what is in their buffers. first: of the step."""
        return first or self.every_micro_batch

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of all buffers."""

    @abstractmethod
    def buffer(self, bucket: Bucket) -> Array:
        """Where this rank's gradients of a bucket are written."""

    def predecessor(self, number: int) -> int:
        """The bucket that has the memory of bucket `number` before it, and gives it up when it is sent; negative: none.

        So memory has one owner at a time, and goes from one to the next in the order in which buckets are sent.
        """
        return -1

    def reduced_there(self, bucket: Bucket) -> int:
        """The number of the bucket that was last reduced in the memory of this one."""
        return bucket.number

    def prepare(self, bucket: Bucket, first: bool) -> None:
        """The buffer is about to be reduced. first: in the first micro-batch of the step."""

    def arrived(self, bucket: Bucket) -> None:
        """The reduction is done."""

    def reduced(self, bucket: Bucket) -> Array:
        """This rank's part of the sums."""
        return self._parts[bucket.number]

    # The reductions: the plan, and the array in which this rank finds its part.

    def _allreduce(self, bucket: Bucket) -> tuple[PersistentCollective | None, Array]:
        buffer, owned = self.buffer(bucket), self.owned[bucket.number]
        part = buffer[owned.start - bucket.start : owned.stop - bucket.start]
        if self._alone:
            return None, part
        return self._comm.Allreduce_init(MPI.IN_PLACE, buffer, algorithm=self._algorithms["allreduce"]), part

    @abstractmethod
    def _reduce_scatter(self, bucket: Bucket) -> tuple[PersistentCollective | None, Array]: ...


class FullGradients(GradientStore):
    """All gradients in one flat array; what is reduced is the sum of the micro-batches, bucket by bucket."""

    every_micro_batch = False

    def _allocate(self, options: Options) -> None:
        self._flat = self._zeros(self.layout.size)
        self.group_limit, _ = options.bucket_elements(self._flat.itemsize)

    @property
    def nbytes(self) -> int:
        return self._flat.nbytes

    def buffer(self, bucket: Bucket) -> Array:
        return self._flat[bucket.start : bucket.stop]

    def _reduce_scatter(self, bucket: Bucket) -> tuple[PersistentCollective | None, Array]:
        """In place, which for MPI means that the result is at the front."""
        buffer = self.buffer(bucket)
        if self._alone:
            return None, buffer
        plan = self._comm.Reduce_scatter_block_init(MPI.IN_PLACE, buffer, algorithm=self._algorithms["reduce_scatter"])
        return plan, buffer[: bucket.size // self._comm.Get_size()]


class ShardedGradients(GradientStore):
    """This rank's shard of the summed gradients; buckets are written in few buffers, which are used again and again.

    Every micro-batch is reduced, and added to the shard.
    """

    every_micro_batch = True
    group_limit = 1  # a group waits for its last gradient, and buckets in one buffer cannot wait for each other

    def _allocate(self, options: Options) -> None:
        buckets, ranks = self.layout.buckets, self._comm.Get_size()
        adding, largest = options.accumulate > 1, max((bucket.size for bucket in buckets), default=0)
        count = min(len(buckets), SLOTS_ADDING if adding else SLOTS)
        self._slots = [self._zeros(max(bucket.size for bucket in buckets[slot::count])) for slot in range(count)]
        self._arrivals = [self._zeros(largest // ranks) for _ in range(count)] if adding else []
        self._shards = self._zeros(self.layout.size // ranks)
        self._reduced_last = list(range(count))  # in each of the slots, the number of a bucket
        self._adds = [False] * len(buckets)
        # whether the reduction writes where the shard is kept
        self._direct = options.collectives[0] == "reduce_scatter" and not adding

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
        """Padding is zero: the last user of the buffer may have been longer."""
        held = sum(self.layout.tensors[number].size for number in bucket.tensors)
        self.buffer(bucket)[held:] = 0
        self._adds[bucket.number] = not first
        self._reduced_last[bucket.number % len(self._slots)] = bucket.number

    def arrived(self, bucket: Bucket) -> None:
        """Keep or add what has come elsewhere than in the shard."""
        if self._direct:
            return
        part, shard = self._parts[bucket.number], self._shard(bucket)
        if self._adds[bucket.number]:
            shard += part
        else:
            shard[...] = part

    def reduced(self, bucket: Bucket) -> Array:
        return self._shard(bucket)

    def _shard(self, bucket: Bucket) -> Array:
        ranks = self._comm.Get_size()
        return self._shards[bucket.start // ranks : bucket.stop // ranks]

    def _reduce_scatter(self, bucket: Bucket) -> tuple[PersistentCollective, Array]:
        part = self._shard(bucket)
        if not self._direct:
            part = self._arrivals[bucket.number % len(self._arrivals)][: len(part)]
        algorithm = self._algorithms["reduce_scatter"]
        return self._comm.Reduce_scatter_block_init(self.buffer(bucket), part, algorithm=algorithm), part


class SeparateGradients(GradientStore):
    """Those of each micro-batch by themselves, one row each: what is reduced is their sum over all ranks, in fixed point.

    Every tensor has a scale of its own, so that buckets, strategies and ranks make no difference. Memory: a row for each
    micro-batch of this rank, and the sums, or its shard of them.
    """

    every_micro_batch = False

    def _allocate(self, options: Options) -> None:
        rank, ranks, whole = self._comm.Get_rank(), self._comm.Get_size(), options.collectives[0] == "allreduce"
        low, high = bounds(options.micro_batches or 1, ranks)[rank : rank + 2]
        zeros_of = module_of(self._like).zeros  # nobody else reads them
        self._rows: Array = zeros_of((high - low, self.layout.size), self._like.dtype)
        self._sums: Array = zeros_of(self.layout.size // (1 if whole else ranks), self._like.dtype)
        self.group_limit, _ = options.bucket_elements(self._rows.itemsize)

    def begin(self, first: bool) -> bool:
        """The next row."""
        self.row = 0 if first else self.row + 1
        return True

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes + self._sums.nbytes

    def buffer(self, bucket: Bucket) -> Array:
        return self._rows[self.row, bucket.start : bucket.stop]

    def _contributions(self, bucket: Bucket) -> Contributions:
        return Contributions(self._rows[:, bucket.start : bucket.stop], self.layout.edges(bucket))

    def _allreduce(self, bucket: Bucket) -> tuple[PersistentCollective, Array]:
        total, owned = self._sums[bucket.start : bucket.stop], self.owned[bucket.number]
        plan = self._comm.Allreduce_init(self._contributions(bucket), total, algorithm=self._algorithms["allreduce"])
        return plan, total[owned.start - bucket.start : owned.stop - bucket.start]

    def _reduce_scatter(self, bucket: Bucket) -> tuple[PersistentCollective, Array]:
        ranks, algorithm = self._comm.Get_size(), self._algorithms["reduce_scatter"]
        part = self._sums[bucket.start // ranks : bucket.stop // ranks]
        return self._comm.Reduce_scatter_block_init(self._contributions(bucket), part, algorithm=algorithm), part
