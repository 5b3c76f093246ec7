"""Data sets: samples in memory or in a mapped file, for training and for testing."""

from __future__ import annotations

import mmap
import zlib
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy
from numpy.typing import DTypeLike, NDArray

from ... import errors
from ...support.arrays import Array
from ...support.checks import check, check_integer, number_of

#: features (rows, width) and labels (rows,) of int64
Batch: TypeAlias = tuple[Array, Array]
#: which samples: a slice, or an array of their numbers
Rows: TypeAlias = slice | NDArray[numpy.integer]
#: what labels are below: a larger one is a -1 that was stored without its sign
_CLASSES = 2**31


@dataclass(frozen=True, eq=False)
class Samples:
    """Features (n, width), integer labels (n,) from 0, and the `order` of the rows (None: all).

    The rows are taken when they are asked for, so a shuffle or a split never copies the features.
    Labels of every integer type come out as int64: files have uint8, in which arithmetic wraps
    around.
    """

    kind: str
    features: Array
    labels: Array
    order: NDArray[numpy.integer] | None = None

    def __post_init__(self) -> None:
        x = self.features
        y = self.labels
        if (
            x.ndim != 2
            or y.shape != x.shape[:1]
            or x.dtype.kind not in "biuf"
            or y.dtype.kind not in "biu"
        ):
            raise errors.BufferError(
                f"{self.kind} data: expected real features of shape (samples, width) and as many "
                f"integer labels, got shapes {x.shape} and {y.shape}, features of {x.dtype} and "
                f"labels of {y.dtype}"
            )
        for extreme in (y.min(initial=0), y.max(initial=0)):
            if not 0 <= extreme < _CLASSES:
                raise errors.BufferError(
                    f"{self.kind} data: expected labels from 0 to below 2**31, got {extreme}; "
                    "number the classes 0, 1, 2, …"
                )

    def __len__(self) -> int:
        return len(self.labels if self.order is None else self.order)

    def take(self, rows: Rows) -> Batch:
        """(features, labels) of `rows`, a slice or an array of sample numbers."""
        return self.take_features(rows), self.take_labels(rows)

    def take_features(self, rows: Rows = slice(None)) -> Array:
        """Those rows of the features, by default all."""
        return self._rows_of(self.features, rows)

    def take_labels(self, rows: Rows = slice(None)) -> Array:
        """Those rows of the labels, by default all."""
        return self._rows_of(self.labels, rows, "int64")

    def _rows_of(self, array: Array, rows: Rows, dtype: str | None = None) -> Array:
        """Rows of an array, aligned and writable: those of a mapped file are copied."""
        found = array[rows if self.order is None else self.order[rows]]
        if isinstance(rows, numpy.ndarray) and dtype in (None, found.dtype.name):
            return found  # new, and so both
        return numpy.require(found, dtype, ["A", "W"])


def _is_mapped(array: object) -> bool:
    """Whether an array, or what it is a view of, is a map of a file."""
    while isinstance(array, numpy.ndarray):
        array = array.base
    return isinstance(array, mmap.mmap)


class Dataset:
    """Samples on the host, for training and for testing.

    Nothing is copied; ``len(dataset)`` counts the training samples.

    Parameters
    ----------
    features : ndarray of real numbers, shape (samples, width)
        In memory or mapped from a file.
    labels : ndarray of integers of any type, or bool, shape (samples,)
        The class of each sample, from 0.
    test_features, test_labels : ndarray
        As `features` and `labels`, of the same width; they may have no rows: then there is no test
        accuracy.
    order, test_order : ndarray of integers, optional
        Which rows of the arrays are meant and in which order, by default all.

    Raises
    ------
    BufferError
        Where shapes, dtypes or labels are not usable, or there is no training sample.

    Examples
    --------
    >>> x, y = numpy.zeros((10, 3), "float32"), numpy.arange(10) % 2
    >>> dataset = Dataset.split(x, y, seed=1, test_fraction=0.2)
    >>> len(dataset), dataset.tests, dataset.widths
    (8, 2, (3, 2))
    """

    def __init__(
        self,
        features: Array,
        labels: Array,
        test_features: Array,
        test_labels: Array,
        order: NDArray[numpy.integer] | None = None,
        test_order: NDArray[numpy.integer] | None = None,
    ) -> None:
        self._training = Samples("training", features, labels, order)
        self._test = Samples("test", test_features, test_labels, test_order)
        if features.shape[1] != test_features.shape[1]:
            widths = f"{features.shape[1]} and {test_features.shape[1]}"
            raise errors.BufferError(
                f"expected training and test features of one width, got {widths}"
            )
        if not len(self):
            raise errors.BufferError("training data: expected at least one sample, got none")

    @classmethod
    def split(
        cls, features: Array, labels: Array, seed: int = 0, test_fraction: float = 0.2
    ) -> Dataset:
        """Keep some of the samples for testing; copies no samples.

        Parameters
        ----------
        features, labels : ndarray
            Shapes (samples, width) and (samples,).
        seed : int
            Of the shuffle before the split.
        test_fraction : float
            From 0 to below 1; the number of test samples is rounded down.

        Returns
        -------
        Dataset

        Raises
        ------
        ArgumentError, BufferError
            Where a value, or an array, is not usable.
        """
        check_integer("seed", seed, 0)
        check(
            "test_fraction",
            test_fraction,
            0 <= number_of(test_fraction) < 1,
            "a number from 0 to below 1",
        )
        order = numpy.random.default_rng(seed).permutation(labels.size)
        test, train = numpy.split(order, [int(test_fraction * labels.size)])
        return cls(features, labels, features, labels, train, test)

    def __len__(self) -> int:
        """Training samples."""
        return len(self._training)

    @property
    def tests(self) -> int:
        """Number of test samples."""
        return len(self._test)

    @property
    def in_memory(self) -> bool:
        """Whether the training samples lie in memory, not in a mapped file."""
        return not _is_mapped(self._training.features)

    @property
    def nbytes(self) -> int:
        """Bytes of the array in which the training features are."""
        return self._training.features.nbytes

    @property
    def row_bytes(self) -> int:
        """Bytes of the features of a sample."""
        features = self._training.features
        return int(features.shape[1] * features.itemsize)

    def in_precision(self, dtype: DTypeLike) -> Dataset:
        """The same data set with training features of this type.

        A subclass, which may take rows in its own way, is returned as it is.
        """
        if type(self) is not Dataset:
            return self
        twin = copy(self)
        twin._training = replace(
            self._training, features=numpy.asarray(self._training.features, dtype)
        )
        return twin

    def take(self, rows: Rows) -> Batch:
        """Some of the training samples.

        Parameters
        ----------
        rows : slice or ndarray of integers
            Numbers from 0 to below ``len(dataset)``.

        Returns
        -------
        features : ndarray, shape (rows, width)
        labels : ndarray of int64, shape (rows,)
            New arrays, unless `rows` is a slice and the data is neither split nor mapped: read them
            only.

        Raises
        ------
        IndexError
            For a number beyond the samples.
        """
        return self._training.take(rows)

    def take_test(self, rows: Rows) -> Batch:
        """Some of the test samples, by numbers below `tests`, as `take` gives training samples."""
        return self._test.take(rows)

    @cached_property
    def widths(self) -> tuple[int, int]:
        """Number of features and number of classes: what a model for this data takes and gives."""
        parts = (self._training, self._test)
        return self._training.features.shape[1], 1 + max(
            int(part.labels.max(initial=0)) for part in parts
        )

    def facts(self) -> dict[str, int]:
        """What must be equal on all ranks: shapes, classes, a checksum of the labels in order.

        Reads all labels and no features.
        """
        return {
            "training samples": len(self),
            "test samples": self.tests,
            "features": self.widths[0],
            "classes": self.widths[1],
            "checksum of the labels": zlib.crc32(
                numpy.concatenate([self.labels, self.test_labels]).astype("<i8").data
            ),
        }

    def sampled(self) -> int:
        """A checksum of a few rows of the features, in float32.

        It tells other data, or data scaled otherwise.
        """
        rows = numpy.unique(numpy.linspace(0, len(self) - 1, 16).astype("int64"))
        with numpy.errstate(all="ignore"):
            return zlib.crc32(numpy.ascontiguousarray(self.take(rows)[0], "<f4").data)

    @property
    def features(self) -> Array:
        """All training features in order, (samples, width); a copy if split or mapped."""
        return self._training.take_features()

    @property
    def labels(self) -> Array:
        """Labels of all training samples in order, (samples,), of int64; read them only."""
        return self._training.take_labels()

    @property
    def test_features(self) -> Array:
        """All test features in order, (tests, width); a copy if split or mapped."""
        return self._test.take_features()

    @property
    def test_labels(self) -> Array:
        """Labels of all test samples in order, (tests,), of int64; read them only."""
        return self._test.take_labels()
