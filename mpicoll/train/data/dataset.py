"""Data sets: samples in memory or in a mapped file, and their split into training and test samples."""

import zlib
from dataclasses import dataclass
from functools import cached_property

import numpy

from ...errors import BufferError
from ...support.checks import check, check_integer


@dataclass(frozen=True, eq=False)
class Samples:
    """Features (n, width), integer labels (n,) from 0, and which rows of them count: `order`, or all where it is None.

    The rows are taken when they are asked for, so a shuffle or a split never copies the features.
    """

    kind: str
    features: numpy.ndarray
    labels: numpy.ndarray
    order: numpy.ndarray | None = None

    def __post_init__(self):
        x, y = self.features, self.labels
        if x.ndim != 2 or y.shape != x.shape[:1] or x.dtype.kind not in "biuf" or y.dtype.kind not in "iu":
            raise BufferError(
                f"{self.kind} data: expected real features of shape (samples, width) and as many integer labels, "
                f"got shapes {x.shape} and {y.shape}, features of {x.dtype} and labels of {y.dtype}"
            )
        if y.min(initial=0) < 0:
            raise BufferError(f"{self.kind} data: expected labels from 0, got {y.min()}; number the classes 0, 1, 2, …")

    def __len__(self):
        return len(self.labels if self.order is None else self.order)

    def take(self, rows):
        """(features, labels) of `rows`, a slice or an array of sample numbers."""
        return self.rows_of(self.features, rows), self.rows_of(self.labels, rows)

    def rows_of(self, array, rows=slice(None)):
        """Those rows of features or labels, aligned and writable, by default all.

        A slice of a mapped file is neither, which not every user of it can work with: it is copied.
        """
        return numpy.require(array[rows if self.order is None else self.order[rows]], requirements="AW")


class Dataset:
    """Samples on the host: features (samples, width) and labels (samples,), integers from 0; the same for testing.

    The test arrays may have no rows; then there is no test accuracy. order, test_order: which rows of the arrays are meant
    and in which order, by default all. Nothing is copied. Raises BufferError where shapes, dtypes or labels are not usable.
    """

    def __init__(self, features, labels, test_features, test_labels, order=None, test_order=None):
        self._training = Samples("training", features, labels, order)
        self._test = Samples("test", test_features, test_labels, test_order)
        if features.shape[1] != test_features.shape[1]:
            widths = f"{features.shape[1]} and {test_features.shape[1]}"
            raise BufferError(f"expected training and test features of one width, got {widths}")
        if not len(self):
            raise BufferError("training data: expected at least one sample, got none")

    @classmethod
    def split(cls, features, labels, seed=0, test_fraction=0.2):
        """Shuffle by `seed` and keep `test_fraction` of the samples (rounded down) for testing; copies no samples."""
        check_integer("seed", seed, 0)
        check("test_fraction", test_fraction, 0 <= test_fraction < 1, "a number from 0 to below 1")
        order = numpy.random.default_rng(seed).permutation(labels.size)
        test, train = numpy.split(order, [int(test_fraction * labels.size)])
        return cls(features, labels, features, labels, train, test)

    def __len__(self):
        """Training samples."""
        return len(self._training)

    @property
    def tests(self):
        """Number of test samples."""
        return len(self._test)

    def take(self, rows):
        """(features, labels) of training samples: a slice, or an array of numbers from 0 to below len(dataset).

        New arrays, unless `rows` is a slice and the data is neither split nor mapped: read them only. IndexError beyond.
        """
        return self._training.take(rows)

    def take_test(self, rows):
        """(features, labels) of test samples, numbered from 0 to below `tests`, as `take` does for training samples."""
        return self._test.take(rows)

    @cached_property
    def widths(self):
        """(number of features, number of classes): what a model for this data takes and gives."""
        parts = (self._training, self._test)
        return self._training.features.shape[1], 1 + max(int(part.labels.max(initial=-1)) for part in parts)

    def facts(self):
        """What must be equal wherever the same data is loaded: shapes, classes, and a checksum of the labels in order.

        Reads all labels and no features.
        """
        return {
            "training samples": len(self),
            "test samples": self.tests,
            "features": self.widths[0],
            "classes": self.widths[1],
            "checksum of the labels": zlib.crc32(numpy.concatenate([self.labels, self.test_labels]).astype("<i8")),
        }

    @property
    def features(self):
        """Features of all training samples in order; a copy where the data is split or mapped."""
        return self._training.rows_of(self._training.features)

    @property
    def labels(self):
        """Labels of all training samples in order; a copy where the data is split or mapped."""
        return self._training.rows_of(self._training.labels)

    @property
    def test_features(self):
        """Features of all test samples in order; a copy where the data is split or mapped."""
        return self._test.rows_of(self._test.features)

    @property
    def test_labels(self):
        """Labels of all test samples in order; a copy where the data is split or mapped."""
        return self._test.rows_of(self._test.labels)
