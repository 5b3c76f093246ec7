"""The data sets that the command line knows: digits, synthetic ones of any size, and files."""

import numpy

from ...errors import ArgumentError, BufferError
from ...support.checks import check_integer
from ...support.optional import require
from .dataset import Dataset
from .npz import Archive

__all__ = ["DATASETS", "digits", "load", "stored", "synthetic"]

#: names of features and labels in a file, and of those for testing: the first pair that is there
TRAINING = (("features", "labels"), ("x", "y"), ("x_train", "y_train"))
TEST = (("test_features", "test_labels"), ("x_test", "y_test"))


def digits(seed=0, test_fraction=0.2):
    """The 1,797 handwritten digits (8 x 8 pixels, 10 classes) that scikit-learn ships, features scaled to [0, 1].

    seed: of the split into training and test samples. Raises LaunchError where scikit-learn is missing.
    """
    images = require("sklearn.datasets").load_digits()
    return Dataset.split(images.data / 16.0, images.target.astype("int64"), seed, test_fraction)


def synthetic(seed=0, samples=65536, features=1024, classes=16):
    """Normal float32 features whose class is the largest output of a hidden random linear map; a fifth is for testing.

    The same `seed` gives the same data everywhere. 4 * samples * features bytes. Raises ArgumentError.
    """
    check_integer("seed", seed, 0)
    for name, value in (("samples", samples), ("features", features), ("classes", classes)):
        check_integer(name, value, 1)
    random = numpy.random.default_rng(seed)
    x, y = random.standard_normal((samples, features), "float32"), numpy.empty(samples, "int64")
    teacher = random.standard_normal((features, classes))
    # in float64, so that a sum in another order (threads, another BLAS) does not turn a close call into another label;
    # in pieces, because the product converts its operand
    rows = max(1, 2**22 // (features + classes))
    for piece in (slice(start, start + rows) for start in range(0, samples, rows)):
        y[piece] = (x[piece] @ teacher).argmax(axis=1)
    return Dataset.split(x, y, seed)


def stored(path, seed=0):
    """The data of an .npz file: arrays `features` (samples, width) and `labels` (samples,), or `x` and `y`, or as TRAINING.

    With `test_features` and `test_labels` (or `x_test` and `y_test`) those are for testing, else a fifth by `seed`. Arrays
    written by `numpy.savez` stay in the file and are read as needed. Raises ArgumentError for a file, BufferError for
    arrays that cannot be used.
    """
    archive = Archive(path)
    train, test = _pair(archive, TRAINING, needed=True), _pair(archive, TEST)
    try:
        return Dataset(*train, *test) if test else Dataset.split(*train, seed)
    except BufferError as error:
        raise BufferError(f"{path}: {error}") from error


def _pair(archive, pairs, needed=False):
    """The arrays of the first pair that is all there; None where no name of any pair is and none is needed."""
    for pair in pairs:
        if set(pair) <= set(archive.names):
            return archive[pair[0]], archive[pair[1]]
    if needed or not set(archive.names).isdisjoint(sum(pairs, ())):
        expected = " or ".join(" and ".join(pair) for pair in pairs)
        raise ArgumentError(f"{archive.path}: expected arrays named {expected}, got {', '.join(archive.names) or 'none'}")
    return None


#: the command line's words
DATASETS = {"digits": digits, "synthetic": synthetic}


def load(text, seed=0):
    """The data set that `--data` names: digits, synthetic, synthetic:SAMPLES,FEATURES,CLASSES, or FILE.npz.

    seed: of the split and of synthetic data. Raises ArgumentError or BufferError where there is no such data, LaunchError
    where a package for it is missing.

    >>> load("synthetic:50,8,3").facts()["training samples"]
    40
    """
    word, colon, sizes = text.partition(":")
    if text.endswith(".npz"):
        return stored(text, seed)
    if word not in DATASETS or (colon and word != "synthetic"):
        words = "digits, synthetic, synthetic:SAMPLES,FEATURES,CLASSES, FILE.npz"
        raise ArgumentError(f"--data: expected one of {words}, got {text!r}")
    return DATASETS[word](seed, *(_sizes(text, sizes) if colon else ()))


def _sizes(text, sizes):
    """The three numbers behind the colon."""
    numbers = sizes.split(",")
    if len(numbers) != 3 or not all(number.isdecimal() and int(number) for number in numbers):
        raise ArgumentError(f"--data: expected synthetic:SAMPLES,FEATURES,CLASSES, numbers from 1 up, got {text!r}")
    return [int(number) for number in numbers]
