"""Feeds: how the samples of each step reach the ranks."""

import numpy

from ...support.arrays import module_of
from ...support.checks import agree, check
from .prefetch import prefetched


class LocalFeed:
    """Every rank has the data set, and takes its share of each batch, ahead of time, from its own memory or disk."""

    def __init__(self, comm, like, dtype, meter):
        self.comm, self.module, self.dtype, self.meter = comm, module_of(like), dtype, meter
        self.rank, self.size = comm.Get_rank(), comm.Get_size()

    def load(self, dataset):
        """Take the data set; returns its facts. Collective."""
        facts = {} if dataset is None else dataset.facts()
        agree(self.comm, facts)
        check("dataset", dataset, dataset is not None, "a Dataset on every rank")
        self._dataset = dataset
        return facts

    def batches(self, sampler, batches, parts):
        """For each global batch its micro-batches on this rank: lists of (features, labels)."""

        def take(batch):
            return [self._place(*self._dataset.take(rows)) for rows in sampler.micro(batch, parts)]

        return prefetched(take, batches)

    def test(self):
        """This rank's share of the test samples."""
        first, last = (rank * self._dataset.tests // self.size for rank in (self.rank, self.rank + 1))
        return self._place(*self._dataset.take_test(slice(first, last)))

    def _place(self, features, labels):
        """Features in the precision of the arithmetic, and labels, on the model's device."""
        return self.module.asarray(features, dtype=self.dtype), self.module.asarray(labels)


class ServerFeed(LocalFeed):
    """Rank 0 has the data and scatters the samples of each step; nobody else's data set is looked at."""

    def load(self, dataset):
        facts = self.comm.bcast(dataset.facts() if self.rank == 0 and dataset is not None else None)
        check("dataset", facts, facts is not None, "a Dataset on rank 0")
        self._dataset, self._width = dataset, facts["features"]
        return facts

    def batches(self, sampler, batches, parts):
        for batch in batches:
            features, labels = self._fetch(sampler, batch)
            yield [self._place(features[rows], labels[rows]) for rows in numpy.array_split(numpy.arange(len(labels)), parts)]

    def _fetch(self, sampler, batch):
        counts = sampler.counts(batch)
        features = numpy.empty((counts[self.rank], self._width), self.dtype)
        labels = numpy.empty(counts[self.rank], "int64")
        sent = (None, None)
        if self.rank == 0:
            with self.meter.computing("take samples"):
                rows = self._dataset.take(batch)
                sent = numpy.ascontiguousarray(rows[0], self.dtype), numpy.ascontiguousarray(rows[1], "int64")
        with self.meter.feeding():
            self._scatter(sent[0], features, [count * self._width for count in counts])
            self._scatter(sent[1], labels, counts)
        return features, labels

    def _scatter(self, rows, mine, counts):
        """Deal `rows` of rank 0 (elements per rank: `counts`) out into `mine`."""
        self.comm.Scatterv(None if self.rank else [rows, counts], mine, root=0, algorithm="linear")

    def test(self):
        """All test samples at rank 0, none elsewhere."""
        if self.rank == 0:
            return self._place(*self._dataset.take_test(slice(0, self._dataset.tests)))
        return self._place(numpy.empty((0, self._width), self.dtype), numpy.empty(0, "int64"))
