"""Loaders: how the samples of each step reach the ranks."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy

from ...schedule import bounds
from ...support.arrays import Array, module_of
from ...support.checks import agree, check
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
        facts = {} if dataset is None else dataset.facts()
        agree(self.comm, facts)
        check("dataset", dataset, dataset is not None, "a Dataset on every rank")
        assert dataset is not None
        self._dataset = dataset
        return facts

    def batches(self, sampler: Sampler, batches: Iterable[Array], parts: int) -> Generator[list[Batch], None, None]:
        """For each global batch its micro-batches on this rank."""

        def take(batch: Array) -> list[Batch]:
            return [self._place(*self._dataset.take(rows)) for rows in sampler.micro(batch, parts)]

        return prefetched(take, batches)

    def test(self) -> Batch:
        """This rank's share of the test samples."""
        first, last = bounds(self._dataset.tests, self.size)[self.rank : self.rank + 2]
        return self._place(*self._dataset.take_test(slice(first, last)))

    def _place(self, features: Array, labels: Array) -> Batch:
        """Features in the precision of the arithmetic, and labels, on the model's device."""
        return self.module.asarray(features, dtype=self.dtype), self.module.asarray(labels)


class ScatteringLoader(LocalLoader):
    """Rank 0 has the data and scatters the samples of each step; nobody else's data set is looked at."""

    def load(self, dataset: Dataset | None) -> Mapping[str, int]:
        facts: Mapping[str, int] | None = dataset.facts() if self.rank == 0 and dataset is not None else None
        facts = self.comm.bcast(facts)
        check("dataset", facts, facts is not None, "a Dataset on rank 0")
        assert facts is not None
        if dataset is not None:
            self._dataset = dataset
        self._width = facts["features"]
        return facts

    def batches(self, sampler: Sampler, batches: Iterable[Array], parts: int) -> Generator[list[Batch], None, None]:
        for batch in batches:
            features, labels = self._fetch(sampler, batch)
            edges = pairwise(bounds(len(labels), parts))
            yield [self._place(features[first:last], labels[first:last]) for first, last in edges]

    def _fetch(self, sampler: Sampler, batch: Array) -> Batch:
        counts = sampler.counts(batch)
        features = numpy.empty((counts[self.rank], self._width), self.dtype)
        labels = numpy.empty(counts[self.rank], "int64")
        sent: tuple[Array | None, Array | None] = (None, None)
        if self.rank == 0:
            with self.meter.computing("take samples"):
                rows = self._dataset.take(batch)
                sent = numpy.ascontiguousarray(rows[0], self.dtype), numpy.ascontiguousarray(rows[1], "int64")
        with self.meter.loading():
            self._scatter(sent[0], features, [count * self._width for count in counts])
            self._scatter(sent[1], labels, counts)
        return features, labels

    def _scatter(self, rows: Array | None, mine: Array, counts: Sequence[int]) -> None:
        """Deal `rows` of rank 0 (elements per rank: `counts`) out into `mine`."""
        self.comm.Scatterv(None if self.rank else [rows, counts], mine, root=0, algorithm="linear")

    def test(self) -> Batch:
        """All test samples at rank 0, none elsewhere."""
        if self.rank == 0:
            return self._place(*self._dataset.take_test(slice(0, self._dataset.tests)))
        return self._place(numpy.empty((0, self._width), self.dtype), numpy.empty(0, "int64"))
