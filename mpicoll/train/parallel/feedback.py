"""Error feedback: what codes lost of a rank's gradients is added to those of the next step."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy

from ...buffers import compression_of
from ...schedule import bounds
from ...support.arrays import Array, module_of
from ..options import Options
from .buckets import Bucket, BucketLayout

#: elements of a piece, whole groups: what is computed of it stays in the cache
_PIECE = 1 << 15


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
        largest = min(largest, _PIECE if self._module is numpy else largest)
        # of one piece: what is wanted, what the others get, and its codes
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
        scale = numpy.float32(self.scale)
        with numpy.errstate(all="ignore"):  # a gradient that is not finite is found later
            for owner, piece in self._pieces(bucket):
                wanted = self._wanted[: piece.stop - piece.start]
                sent = self._sent[: piece.stop - piece.start]
                self._module.multiply(before[piece], scale, out=wanted)
                wanted += gradients[piece]
                gradients[piece] = wanted
                sent[...] = gradients[piece]
                if owner != self._rank:
                    self._compression.quantise(sent, self._codes, self._module)
                wanted -= sent
                self._module.divide(wanted, scale, out=after[piece])

    def feed_sum(self, bucket: Bucket, sums: Array) -> None:
        """Note what will be lost of the sums of this rank's shard, which are about to be sent."""
        after = self._pending[bucket.shard(self._rank, self._layout.shards)]
        scale = numpy.float32(self.scale)
        with numpy.errstate(all="ignore"):
            for start in range(0, len(sums), len(self._wanted)):
                part = sums[start : start + len(self._wanted)]
                wanted = self._wanted[: len(part)]
                sent = self._sent[: len(part)]
                wanted[...] = part
                sent[...] = wanted
                self._compression.quantise(sent, self._codes, self._module)
                wanted -= sent
                wanted /= scale
                after[start : start + len(part)] += wanted

    def _pieces(self, bucket: Bucket) -> Iterator[tuple[int, slice]]:
        """The pieces of a bucket, each with the rank that sums it.

        Each begins with a group: groups begin anew with the shard of each rank.
        """
        for owner, (first, last) in enumerate(pairwise(bounds(bucket.size, self._layout.shards))):
            for start in range(first, last, len(self._wanted)):
                yield owner, slice(start, min(start + len(self._wanted), last))

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
