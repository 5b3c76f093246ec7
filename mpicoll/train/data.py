"""Data sets, their split into training and test samples, and the sampler that deals them out to ranks."""

import zlib
from dataclasses import dataclass

import numpy

from ..errors import BufferError
from .checks import check, check_integer
from .extras import require


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples in host memory: features (samples, width) and labels (samples,), integers from 0; the same for testing.

    The test arrays may have no rows; then there is no test accuracy. Raises BufferError where shapes do not fit.
    """

    features: numpy.ndarray
    labels: numpy.ndarray
    test_features: numpy.ndarray
    test_labels: numpy.ndarray

    def __post_init__(self):
        for kind, x, y in (("training", self.features, self.labels), ("test", self.test_features, self.test_labels)):
            if x.ndim != 2 or y.shape != x.shape[:1] or y.dtype.kind not in "iu":
                raise BufferError(
                    f"{kind} data: expected features of shape (samples, width) and as many integer labels, "
                    f"got shapes {x.shape} and {y.shape} and labels of {y.dtype}"
                )
        if self.features.shape[1] != self.test_features.shape[1]:
            widths = f"{self.features.shape[1]} and {self.test_features.shape[1]}"
            raise BufferError(f"expected training and test features of one width, got {widths}")

    @classmethod
    def split(cls, features, labels, seed=0, test_fraction=0.2):
        """Shuffle by `seed` and keep `test_fraction` of the samples (rounded down) for testing."""
        check_integer("seed", seed, 0)
        check("test_fraction", test_fraction, 0 <= test_fraction < 1, "a number from 0 to below 1")
        order = numpy.random.default_rng(seed).permutation(len(labels))
        test, train = numpy.split(order, [int(test_fraction * len(labels))])
        return cls(features[train], labels[train], features[test], labels[test])

    @property
    def widths(self):
        """(number of features, number of classes): what a model for this data takes and gives."""
        return self.features.shape[1], 1 + max(int(y.max(initial=-1)) for y in (self.labels, self.test_labels))

    def facts(self):
        """What must be equal wherever the same data is loaded: shapes, classes, and a checksum of the labels."""
        return {
            "training samples": len(self.labels),
            "test samples": len(self.test_labels),
            "features": self.widths[0],
            "classes": self.widths[1],
            "checksum of the labels": zlib.crc32(numpy.concatenate([self.labels, self.test_labels]).astype("<i8")),
        }


def digits(seed=0, test_fraction=0.2):
    """The 1,797 handwritten digits (8 x 8 pixels, 10 classes) that scikit-learn ships, features scaled to [0, 1].

    seed: of the split into training and test samples. Raises LaunchError where scikit-learn is missing.
    """
    images = require("sklearn.datasets").load_digits()
    return Dataset.split(images.data / 16.0, images.target.astype("int64"), seed, test_fraction)


#: the command line's words
DATASETS = {"digits": digits}


def shares(count, parts):
    """`count` things dealt out to `parts` as evenly as possible, the larger shares first.

    >>> shares(10, 4)
    [3, 3, 2, 2]
    """
    quotient, remainder = divmod(count, parts)
    return [quotient + (part < remainder) for part in range(parts)]


class Sampler:
    """Which samples each rank takes in each step: every sample once per epoch, for any number of ranks.

    The global batches depend on (samples, batch_size, seed, epoch) alone, so training does not depend on the number
    of ranks. The last batch of an epoch holds the rest; with fewer samples than ranks some ranks get none.
    """

    def __init__(self, samples, batch_size, seed=0, rank=0, size=1):
        check_integer("samples", samples, 1)
        check_integer("batch_size", batch_size, 1)
        check_integer("seed", seed, 0)
        self.samples, self.batch_size, self.seed, self.rank, self.size = samples, batch_size, seed, rank, size

    def __len__(self):
        """Steps per epoch."""
        return -(-self.samples // self.batch_size)

    def batches(self, epoch):
        """The epoch's global batches: arrays of sample numbers, a new order in each epoch (counted from 0)."""
        order = numpy.random.default_rng([self.seed, epoch]).permutation(self.samples)
        for start in range(0, self.samples, self.batch_size):
            yield order[start : start + self.batch_size]

    def epochs(self, steps):
        """For `steps` steps in all: lists of batches, one list per epoch, the last one possibly cut short."""
        for epoch in range(-(-steps // len(self))):
            left = steps - epoch * len(self)
            yield [batch for batch, _ in zip(self.batches(epoch), range(left))]

    def total(self, steps):
        """Samples in the first `steps` steps."""
        whole, rest = divmod(steps, len(self))
        return whole * self.samples + min(rest * self.batch_size, self.samples)

    def counts(self, batch):
        """How many samples of the batch each rank takes."""
        return shares(len(batch), self.size)

    def share(self, batch):
        """This rank's part of the batch; the parts in rank order are the batch."""
        counts = self.counts(batch)
        start = sum(counts[: self.rank])
        return batch[start : start + counts[self.rank]]
