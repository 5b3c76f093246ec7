"""Buckets: where each parameter lies in one flat buffer, and what is sent together.

Pure: no arrays, no MPI.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from ...schedule import bounds
from ...support.arrays import Array, module_of
from ...support.checks import check
from ..model import Tensor


class Bucket(NamedTuple):
    """Elements start to stop of the flat buffer: whole tensors (by number), then padding.

    Padding makes all shards equal. is_exact: its tensors are never compressed.
    """

    number: int
    start: int
    stop: int
    tensors: tuple[int, ...]
    is_exact: bool = False

    @property
    def size(self) -> int:
        """Elements, padding included."""
        return self.stop - self.start

    def shard(self, rank: int, ranks: int) -> slice:
        """The slice of the flat buffer that belongs to `rank`."""
        low, high = bounds(self.size, ranks)[rank : rank + 2]
        return slice(self.start + low, self.start + high)


class BucketLayout:
    """Buckets of about `limit` elements in the order in which gradients become ready.

    A bucket ends where the next tensor would exceed the limit, but not before it is half full:
    small tensors go with a large neighbour instead of alone.

    Tensors that are never compressed (`exact`) have buckets of their own.

    tensors: in forward order. order: their numbers in the order in which backward finishes them.
    shards: how many equal parts a bucket has. group: elements that codes have one scale for; shards
    consist of whole groups, but for those that are never compressed. `tensors` and `places` (first
    element in the flat buffer) are by number; `size` counts the padding. The *plain* order of the
    elements, in which checkpoints keep them, is forward order without padding.

    >>> tensors = [Tensor("w", (2, 3), 0), Tensor("b", (3,), 0), Tensor("v", (4,), 1)]
    >>> layout = BucketLayout(tensors, [2, 1, 0], 2, 7)
    >>> [(bucket.start, bucket.stop, bucket.tensors) for bucket in layout.buckets]
    [(0, 8, (2, 1)), (8, 14, (0,))]
    """

    def __init__(
        self,
        tensors: Iterable[Tensor],
        order: Iterable[int],
        shards: int,
        limit: float,
        exact: Container[int] = (),
        group: int = 1,
    ) -> None:
        self.tensors = list(tensors)
        self.shards = shards
        self._group = group
        self.places = [0] * len(self.tensors)
        self.bucket_of = [0] * len(self.tensors)
        self.buckets: list[Bucket] = []
        order = list(order)
        numbers = range(len(self.tensors))
        check("order", order, sorted(order) == list(numbers), f"each of {numbers} once")
        together = self._together([number for number in order if number not in exact], limit)
        apart = self._together([number for number in order if number in exact], limit)
        place = {number: at for at, number in enumerate(order)}
        # as their last gradients come
        for held in sorted(together + apart, key=lambda held: place[held[-1]]):
            self._close(held, held[-1] in exact)
        if not self.buckets:
            self._close([], False)
        self.plain = [0, *accumulate(tensor.size for tensor in self.tensors)]

    def _together(self, order: Iterable[int], limit: float) -> list[list[int]]:
        """The tensors of each bucket."""
        buckets: list[list[int]] = []
        size = 0
        for number in order:
            more = self.tensors[number].size
            if not buckets or (2 * size >= limit and size + more > limit):
                buckets.append([])
                size = 0
            buckets[-1].append(number)
            size += more
        return buckets

    def _close(self, held: Sequence[int], is_exact: bool) -> None:
        start = end = self.size
        for number in held:
            self.places[number] = end
            end = end + self.tensors[number].size
            self.bucket_of[number] = len(self.buckets)
        unit = self.shards * (1 if is_exact else self._group)
        stop = start + -(-(end - start) // unit) * unit
        self.buckets.append(Bucket(len(self.buckets), start, stop, tuple(held), is_exact))

    @property
    def size(self) -> int:
        """Elements of the flat buffer."""
        return self.buckets[-1].stop if self.buckets else 0

    @property
    def elements(self) -> int:
        """Elements of all tensors, without padding."""
        return self.plain[-1]

    def view(self, flat: Array, number: int, start: int = 0) -> Array:
        """The tensor's shaped view of an array that holds the flat buffer from `start` on."""
        first = self.places[number] - start
        return flat[first : first + self.tensors[number].size].reshape(self.tensors[number].shape)

    def named(self, flat: Array) -> dict[str, Array]:
        """The shaped views of an array that holds the flat buffer, by the names of tensors."""
        return {tensor.name: self.view(flat, number) for number, tensor in enumerate(self.tensors)}

    def in_plain_order(self, flat: Array) -> Array:
        """A copy of such an array in plain order, without padding."""
        copy: Array = module_of(flat).empty(self.elements, flat.dtype)
        for plain, first, size in self.runs():
            copy[plain : plain + size] = flat[first : first + size]
        return copy

    def edges(self, bucket: Bucket) -> list[int]:
        """Where the tensors of a bucket begin in it, and its end, padding included."""
        return [*(self.places[number] - bucket.start for number in bucket.tensors), bucket.size]

    def runs(self, part: slice | None = None) -> Iterator[tuple[int, int, int]]:
        """What a slice of the flat buffer, by default all, holds without padding.

        (First in plain order, first in the buffer, elements) of each run.
        """
        part = part or slice(0, self.size)
        for bucket in self.buckets:
            if bucket.start < part.stop and part.start < bucket.stop:
                for number in bucket.tensors:
                    place = self.places[number]
                    size = self.tensors[number].size
                    low = max(part.start, place)
                    high = min(part.stop, place + size)
                    if low < high:
                        yield self.plain[number] + low - place, low, high - low

    def name_at(self, element: int) -> str:
        """The tensor that holds this element of the flat buffer."""
        for number, place in enumerate(self.places):
            if place <= element < place + self.tensors[number].size:
                return self.tensors[number].name
        return "padding"


def exempt(tensors: Sequence[Tensor]) -> set[int]:
    """The numbers of the tensors that are never compressed: of one dimension at most.

    Biases and the weights of norms are a small part of the bytes, and sensitive to errors.
    """
    return {number for number, tensor in enumerate(tensors) if len(tensor.shape) < 2}


def groups(buckets: Iterable[Bucket], limit: int) -> list[list[Bucket]]:
    """Neighbouring buckets that start together: as many as fit into `limit` elements.

    At least one.

    >>> buckets = [Bucket(number, 4 * number, 4 * number + 4, ()) for number in range(5)]
    >>> [[bucket.number for bucket in group] for group in groups(buckets, 9)]
    [[0, 1], [2, 3], [4]]
    """
    grouped: list[list[Bucket]] = []
    for bucket in buckets:
        if not grouped or sum(other.size for other in grouped[-1]) + bucket.size > limit:
            grouped.append([])
        grouped[-1].append(bucket)
    return grouped


def within(
    runs: Iterable[tuple[int, int, int]], low: int, high: int
) -> Iterator[tuple[int, int, int]]:
    """The parts of some runs between two places of the plain order.

    Runs are (first in plain order, first elsewhere, elements).
    """
    for plain, first, size in runs:
        begin = max(plain, low)
        end = min(plain + size, high)
        if begin < end:
            yield begin, first + begin - plain, end - begin
