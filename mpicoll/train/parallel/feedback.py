"""Error feedback: what codes lost of a rank's gradients is added to those of the next step.

Where the next step sends no codes, it is added once, and that is all (`Remainder`).
"""

from __future__ import annotations

from typing import Any

import numpy

from ... import engine
from ...buffers import CodingLoss, compression_of
from ...support.arrays import Array, module_of
from ..options import Options
from .buckets import Bucket, BucketLayout


class ErrorFeedback:
    """The residuals of one rank, a float32 for each element of the flat buffer. Local.

    Of each step the gradients and the residuals together are sent, and the residuals after it are
    what the codes lost of this (`CodingLoss`). Those of a step count once it is `commit`ted: one
    that is skipped leaves them as they were.
    """

    def __init__(self, layout: BucketLayout, like: Array, rank: int, options: Options) -> None:
        assert options.compression is not None
        self._layout = layout
        self._module = module_of(like)
        self._rank = rank
        #: the factor of the loss in this step
        self.scale = 1.0
        #: after the last step that was committed, and after the one under way
        self._kept = self._zeros(layout.size)
        self._pending = self._zeros(layout.size)
        #: by bucket, the sums of this rank's shard before they were coded
        self._sums: dict[int, Array] = {}
        #: buckets on their way, of whose sums the loss is not noted yet
        self._due: dict[int, Bucket] = {}
        self._compression = compression_of(options.compression)
        largest = max((bucket.size for bucket in layout.buckets if not bucket.is_exact), default=0)
        self._loss = CodingLoss(
            self._compression, rank, largest, self._module, engine.status().extension
        )

    def _zeros(self, size: int) -> Array:
        array: Array = self._module.zeros(size, "float32")
        return array

    @property
    def nbytes(self) -> int:
        """Bytes of it all."""
        arrays = (self._kept, self._pending, *self._sums.values())
        return sum(array.nbytes for array in arrays) + self._loss.nbytes

    def feed(self, bucket: Bucket, gradients: Array, again: bool) -> None:
        """Add the residuals to the gradients of a bucket that is about to be sent.

        again: the bucket was sent in this step before, of another micro-batch.
        """
        part = slice(bucket.start, bucket.stop)
        before = self._pending[part] if again else self._kept[part]
        self._loss.feed(gradients, before, self._pending[part], self._layout.shards, self.scale)
        if bucket.number in self._sums:
            self._due[bucket.number] = bucket

    def room_for_sums(self, bucket: Bucket) -> Array:
        """Where a collective leaves the sums of this rank's shard, as they were before codes."""
        room = self._zeros(bucket.size // self._layout.shards)
        self._sums[bucket.number] = room
        return room

    def feed_sum(self, bucket: Bucket) -> None:
        """Note what codes have lost of the sums of this rank's shard."""
        del self._due[bucket.number]
        part = bucket.shard(self._rank, self._layout.shards)
        self._loss.feed_sums(self._sums[bucket.number], self._pending[part], self.scale)

    def commit(self) -> None:
        """The update of this step was made."""
        self._kept, self._pending = self._pending, self._kept

    def clear(self) -> None:
        """Forget all that was lost."""
        self._kept.fill(0)

    # Checkpoints and copies.

    def vector(self) -> list[tuple[int, Array]]:
        """The residuals in plain order: [(start, array), ...] of each stretch."""
        stretches = self._layout.runs()
        return [(plain, self._kept[first : first + size]) for plain, first, size in stretches]

    def named(self) -> dict[str, Array]:
        """Views of the residuals, by the names of the tensors."""
        return self._layout.named(self._kept)

    def plain(self, is_committed: bool = True) -> Array:
        """A copy of the residuals in plain order.

        is_committed: else of the step under way, of which others have had all that this rank sent.
        """
        if not is_committed:
            for bucket in list(self._due.values()):
                self.feed_sum(bucket)
        return self._layout.in_plain_order(self._kept if is_committed else self._pending)

    def add(self, values: Any) -> None:
        """Add to the residuals; values: of all elements, in plain order."""
        for plain, first, size in self._layout.runs():
            self._kept[first : first + size] += self._module.asarray(values[plain : plain + size])

    @property
    def code_bytes(self) -> int:
        """Bytes of all residuals in codes."""
        return self._compression.groups(self._layout.size) * self._compression.nbytes

    def encode(self, codes: Array) -> None:
        """Write the codes of the residuals."""
        self._compression.encode(codes, self._kept, self._module)

    def decoded(self, codes: Array) -> Array:
        """In plain order, what is decoded of codes of a rank with the same layout."""
        flat = self._zeros(self._layout.size)
        self._compression.decode(flat, codes, self._module)
        return self._layout.in_plain_order(flat)


class Remainder:
    """The residuals of all ranks together, where a training goes on without codes. Local.

    One rank adds them to its gradients, in each step until an update is made. All ranks have them
    alike, so that another one can do that should this one die.

    Parameters
    ----------
    layout : BucketLayout
        Of the gradients.
    values : array of float32
        The sum of the residuals, in plain order.
    """

    def __init__(self, layout: BucketLayout, values: Array) -> None:
        self._layout = layout
        self.values = values
        #: the factor of the loss in this step
        self.scale = 1.0

    def add_to(self, gradients: Array, bucket: Bucket) -> None:
        """Add them to the gradients of a bucket."""
        module = module_of(gradients)
        for plain, first, size in self._layout.runs(slice(bucket.start, bucket.stop)):
            start = first - bucket.start
            part = gradients[start : start + size]
            part += module.asarray(self.values[plain : plain + size] * numpy.float32(self.scale))
