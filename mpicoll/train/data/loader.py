"""Loaders: how the samples of each step reach the ranks."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy

from ...schedule import bounds, offsets
from ...support.arrays import Array, module_of
from ...support.checks import agree, check, together
from .dataset import Batch, Dataset
from .prefetch import prefetched
from .sampler import Sampler

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ...communicator import Communicator


#: bytes of features that are copied in about the time in which a thread is woken
_AT_ONCE = 1 << 18
#: bytes of features in memory that are converted once, instead of the rows of each batch
_CONVERTED = 1 << 23
#: samples, and bytes of their features, that are tested at a time
_TEST_ROWS = 4096
_TEST_BYTES = 16 << 20


class Clock(Protocol):
    """What measures the scattering of samples: a `Meter`."""

    def computing(self, name: str) -> AbstractContextManager[None]: ...

    def loading(self) -> AbstractContextManager[None]: ...


def _checked(dataset: Dataset | None, rank: int, where: str) -> Dataset:
    check(f"dataset of rank {rank}", dataset, isinstance(dataset, Dataset), f"a Dataset on {where}")
    assert dataset is not None
    return dataset


class LocalLoader:
    """Every rank has the data set, and reads its share of each batch ahead of time.

    like: an array on the model's device. dtype: of the arithmetic.
    """

    _dataset: Dataset

    def __init__(
        self, comm: Communicator, like: Array, dtype: numpy.dtype[Any], meter: Clock
    ) -> None:
        self.comm = comm
        self.module = module_of(like)
        self.dtype = dtype
        self.meter = meter
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()

    def load(self, dataset: Dataset | None) -> Mapping[str, int]:
        """Take the data set; returns its facts. Collective."""
        data = together(self.comm, lambda: _checked(dataset, self.rank, "every rank"))
        facts = data.facts()
        agree(self.comm, {**facts, "checksum of some features": data.sampled()})
        small = data.in_memory and data.nbytes <= _CONVERTED
        self._dataset = data.in_precision(self.dtype) if small else data
        return facts

    def batches(
        self, sampler: Sampler, batches: Iterable[Array], parts: int
    ) -> Generator[list[Batch], None, None]:
        """For each global batch its micro-batches on this rank.

        A thread reads ahead, into host memory only: what it copied to a device would be in the
        order of its own stream. Rows in memory that take less time to copy than the thread takes to
        be told are copied by the caller.
        """

        def take(batch: Array) -> list[Batch]:
            taken = map(self._dataset.take, sampler.micro(batch, parts))
            return [(numpy.asarray(features, self.dtype), labels) for features, labels in taken]

        small = self._dataset.in_memory and sampler.most * self._dataset.row_bytes <= _AT_ONCE
        ahead = (take(batch) for batch in batches) if small else prefetched(take, batches)
        with closing(ahead) as taken:
            for parts_of_batch in taken:
                yield [self._place(*batch) for batch in parts_of_batch]

    def test(self, parts: int | None = None) -> Iterator[Batch]:
        """This rank's share of the test samples, a block at a time.

        parts: blocks are cut from so many parts, where these are the same for any number of ranks.
        """
        cuts = bounds(self._dataset.tests, parts or self.size)
        mine = bounds(parts or self.size, self.size)[self.rank : self.rank + 2]
        return self._blocks(pairwise(cuts[mine[0] : mine[1] + 1]))

    def _blocks(self, edges: Iterable[tuple[int, int]]) -> Iterator[Batch]:
        """Blocks of the test samples between some edges, at least one of each, maybe empty."""
        rows = max(1, min(_TEST_ROWS, _TEST_BYTES // max(1, self._dataset.row_bytes)))
        for first, last in edges:
            for start in range(first, max(last, first + 1), rows):
                yield self._place(*self._dataset.take_test(slice(start, min(start + rows, last))))

    def _place(self, features: Array, labels: Array) -> Batch:
        """Both on the model's device, in the order of the current stream."""
        return self.module.asarray(features, dtype=self.dtype), self.module.asarray(labels)


class ScatteringLoader(LocalLoader):
    """Rank 0 has the data set, and scatters the samples of each step."""

    def load(self, dataset: Dataset | None) -> Mapping[str, int]:
        data = together(self.comm, lambda: None if self.rank else _checked(dataset, 0, "rank 0"))
        if data:
            self._dataset = data
        facts: Mapping[str, int] = self.comm.bcast(data and data.facts())
        self._width = facts["features"]
        return facts

    def batches(
        self, sampler: Sampler, batches: Iterable[Array], parts: int
    ) -> Generator[list[Batch], None, None]:
        for batch in batches:
            features, labels = self._fetch(sampler, batch)
            edges = pairwise(offsets([len(micro) for micro in sampler.micro(batch, parts)]))
            yield [self._place(features[first:last], labels[first:last]) for first, last in edges]

    def _fetch(self, sampler: Sampler, batch: Array) -> Batch:
        counts = sampler.counts(batch)
        features = numpy.empty((counts[self.rank], self._width), self.dtype)
        labels = numpy.empty(counts[self.rank], "int64")
        sent: tuple[Array | None, Array | None] = (None, None)
        if self.rank == 0:
            with self.meter.computing("take samples"):
                rows = self._dataset.take(batch)
                sent = numpy.ascontiguousarray(rows[0], self.dtype), rows[1]
        with self.meter.loading():
            self._scatter(sent[0], features, [count * self._width for count in counts])
            self._scatter(sent[1], labels, counts)
        return features, labels

    def _scatter(self, rows: Array | None, mine: Array, counts: Sequence[int]) -> None:
        """Deal `rows` of rank 0 (elements per rank: `counts`) out into `mine`."""
        self.comm.Scatterv(None if self.rank else [rows, counts], mine, root=0, algorithm="linear")

    def test(self, parts: int | None = None) -> Iterator[Batch]:
        """All test samples at rank 0, in blocks of so many parts; none elsewhere."""
        if self.rank == 0:
            return self._blocks(pairwise(bounds(self._dataset.tests, parts or 1)))
        return iter(
            [self._place(numpy.empty((0, self._width), self.dtype), numpy.empty(0, "int64"))]
        )
