"""Error feedback: what codes lost of a rank's gradients is added to those of the next step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy

from ...buffers import compression_of
from ...schedule import bounds
from ...support.arrays import Array, module_of
from ..options import Options
from .buckets import Bucket, BucketLayout


class ErrorFeedback:
    """The residuals of one rank, a float32 for each element of the flat buffer. Local.

    Of each step the gradients and the residuals together are sent. The residuals after it are
    what the codes lost of this: codes are made here as the schedule makes them, of the same groups
    of elements. The shard that a rank sums itself it never sends, and loses nothing of it; there it
    keeps what is lost of the sum, where that is sent in codes, too.

    Residuals are in units of the gradients without a loss scale. Those of a step count once it is
    `commit`ted: one that is skipped leaves them as they were.

    Algorithms: Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019.
    """

    def __init__(self, layout: BucketLayout, like: Array, rank: int, options: Options) -> None:
        assert options.compression is not None
        self._layout = layout
        self._module = module_of(like)
        self._rank = rank
        self._compression = compression_of(options.compression)
        #: the factor of the loss in this step
        self.scale = 1.0
        #: after the last step that was committed, and after the one under way
        self._kept = self._zeros(layout.size)
        self._pending = self._zeros(layout.size)
        largest = max((bucket.size for bucket in layout.buckets if not bucket.is_exact), default=0)
        # of one bucket: what is wanted, and what the others get
        self._wanted = self._zeros(largest)
        self._sent = self._zeros(largest)
        groups = self._compression.groups(largest)
        self._codes = self._module.zeros(groups * self._compression.nbytes, "uint8")

    def _zeros(self, size: int) -> Array:
        array: Array = self._module.zeros(size, "float32")
        return array

    @property
    def nbytes(self) -> int:
        """Bytes of it all."""
        arrays = (self._kept, self._pending, self._wanted, self._sent, self._codes)
        return sum(array.nbytes for array in arrays)

    def feed(self, bucket: Bucket, gradients: Array, again: bool) -> None:
        """Add the residuals to the gradients of a bucket that is about to be sent.

        again: the bucket was sent in this step before, of another micro-batch.
        """
        part = slice(bucket.start, bucket.stop)
        before = self._pending[part] if again else self._kept[part]
        after = self._pending[part]
        wanted = self._wanted[: bucket.size]
        sent = self._sent[: bucket.size]
        with numpy.errstate(all="ignore"):  # a gradient that is not finite is found later
            self._module.multiply(before, numpy.float32(self.scale), out=wanted)
            wanted += gradients
            gradients[...] = wanted
            sent[...] = gradients
            for shard in self._coded_shards(bucket):
                self._compression.quantise(sent[shard], self._codes, self._module)
            self._module.subtract(wanted, sent, out=after)
            after /= numpy.float32(self.scale)

    def feed_sum(self, bucket: Bucket, sums: Array) -> None:
        """Note what will be lost of the sums of this rank's shard, which are about to be sent."""
        after = self._pending[bucket.shard(self._rank, self._layout.shards)]
        wanted = self._wanted[: len(sums)]
        sent = self._sent[: len(sums)]
        with numpy.errstate(all="ignore"):
            wanted[...] = sums
            sent[...] = wanted
            self._compression.quantise(sent, self._codes, self._module)
            wanted -= sent
            wanted /= numpy.float32(self.scale)
            after += wanted

    def _coded_shards(self, bucket: Bucket) -> Iterator[slice]:
        """The shards of a bucket that other ranks sum: groups begin anew at each."""
        ranks = self._layout.shards
        edges = bounds(bucket.size, ranks)
        for owner in range(ranks):
            if owner != self._rank:
                yield slice(edges[owner], edges[owner + 1])

    def commit(self) -> None:
        """The update of this step was made."""
        self._kept, self._pending = self._pending, self._kept

    def clear(self) -> None:
        """Forget all that was lost."""
        self._kept.fill(0)

    def mend(self) -> None:
        """Forget what gradients that were not finite have left."""
        self._kept[~self._module.isfinite(self._kept)] = 0

    # Checkpoints.

    def vector(self) -> list[tuple[int, Array]]:
        """The residuals in plain order: [(start, array), ...] of each stretch."""
        stretches = self._layout.runs()
        return [(plain, self._kept[first : first + size]) for plain, first, size in stretches]

    def plain(self) -> Array:
        """A copy of the residuals in plain order."""
        copy = self._zeros(self._layout.elements)
        for start, stretch in self.vector():
            copy[start : start + len(stretch)] = stretch
        return copy

    def add(self, values: Any) -> None:
        """Add to the residuals; values: of all elements, in plain order."""
        for plain, first, size in self._layout.runs():
            self._kept[first : first + size] += self._module.asarray(values[plain : plain + size])
