"""Loaders: how the samples of each step reach the ranks."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
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


class Clock(Protocol):
    """What measures the scattering of samples: a `Meter`."""

    def computing(self, name: str) -> AbstractContextManager[None]: ...

    def loading(self) -> AbstractContextManager[None]: ...


def _checked(dataset: Dataset | None, rank: int, where: str) -> Dataset:
    check(f"dataset of rank {rank}", dataset, isinstance(dataset, Dataset), f"a Dataset on {where}")
    assert dataset is not None
    return dataset


class LocalLoader:
    """Every rank has the data set, and takes its share of each batch, ahead of time, from its own memory or disk.

    like: an array on the model's device. dtype: of the arithmetic.
    """

    _dataset: Dataset

    def __init__(self, comm: Communicator, like: Array, dtype: numpy.dtype[Any], meter: Clock) -> None:
        self.comm, self.module, self.dtype, self.meter = comm, module_of(like), dtype, meter
        self.rank, self.size = comm.Get_rank(), comm.Get_size()

    def load(self, dataset: Dataset | None) -> Mapping[str, int]:
        """Take the data set; returns its facts. Collective."""
        self._dataset = together(self.comm, lambda: _checked(dataset, self.rank, "every rank"))
        facts = self._dataset.facts()
        agree(self.comm, {**facts, "checksum of some features": self._dataset.sampled()})
        return facts

    def batches(self, sampler: Sampler, batches: Iterable[Array], parts: int) -> Generator[list[Batch], None, None]:
        """For each global batch its micro-batches on this rank.

        A thread reads ahead, into host memory only: what it copied to a device would be in the order of its own stream.
        """

        def take(batch: Array) -> list[Batch]:
            return [self._on_host(*self._dataset.take(rows)) for rows in sampler.micro(batch, parts)]

        with closing(prefetched(take, batches)) as taken:
            for parts_of_batch in taken:
                yield [self._place(*one) for one in parts_of_batch]

    def test(self, parts: int | None = None) -> list[Batch]:
        """This rank's share of the test samples; some of so many parts, where these are the same for any number of ranks."""
        cuts = bounds(self._dataset.tests, parts or self.size)
        mine = bounds(parts or self.size, self.size)[self.rank : self.rank + 2]
        edges = pairwise(cuts[mine[0] : mine[1] + 1])
        return [self._place(*self._dataset.take_test(slice(first, last))) for first, last in edges]

    def _on_host(self, features: Array, labels: Array) -> Batch:
        """Features in the precision of the arithmetic, and labels."""
        return numpy.asarray(features, self.dtype), labels

    def _place(self, features: Array, labels: Array) -> Batch:
        """The same on the model's device, in the order of the current stream."""
        return self.module.asarray(features, dtype=self.dtype), self.module.asarray(labels)


class ScatteringLoader(LocalLoader):
    """Rank 0 has the data and scatters the samples of each step; nobody else's data set is looked at."""

    def load(self, dataset: Dataset | None) -> Mapping[str, int]:
        used = together(self.comm, lambda: None if self.rank else _checked(dataset, 0, "rank 0"))
        if used:
            self._dataset = used
        facts: Mapping[str, int] = self.comm.bcast(used and used.facts())
        self._width = facts["features"]
        return facts

    def batches(self, sampler: Sampler, batches: Iterable[Array], parts: int) -> Generator[list[Batch], None, None]:
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

    def test(self, parts: int | None = None) -> list[Batch]:
        """All test samples at rank 0, in so many parts; none elsewhere."""
        if self.rank == 0:
            edges = pairwise(bounds(self._dataset.tests, parts or 1))
            return [self._place(*self._dataset.take_test(slice(first, last))) for first, last in edges]
        return [self._place(numpy.empty((0, self._width), self.dtype), numpy.empty(0, "int64"))]
