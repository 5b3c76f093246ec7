"""The data sets that the command line knows: digits, synthetic ones of any size, and files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import numpy

from ... import errors
from ...errors import ArgumentError
from ...support.arrays import Array
from ...support.checks import check_integer
from ...support.optional import require
from .dataset import Dataset
from .npz import Archive

__all__ = ["DATASETS", "digits", "load", "stored", "synthetic"]

#: names of features and labels in a file, and of those for testing: the first pair that is there
TRAINING = (("features", "labels"), ("x", "y"), ("x_train", "y_train"))
TEST = (("test_features", "test_labels"), ("x_test", "y_test"))


def digits(seed: int = 0, test_fraction: float = 0.2) -> Dataset:
    """The handwritten digits that scikit-learn ships: 1,797 samples of 8 x 8 pixels, 10 classes.

    Parameters
    ----------
    seed : int
        Of the split into training and test samples.
    test_fraction : float
        The part that is for testing, from 0 to below 1.

    Returns
    -------
    Dataset
        Features (samples, 64) of float64 from 0 to 1.

    Raises
    ------
    LaunchError
        Where scikit-learn is missing.
    """
    images = require("sklearn.datasets").load_digits()
    return Dataset.split(images.data / 16.0, images.target.astype("int64"), seed, test_fraction)


def synthetic(
    seed: int = 0, samples: int = 65536, features: int = 1024, classes: int = 16
) -> Dataset:
    """Normal features, labelled by a hidden random linear map; a fifth is for testing.

    Parameters
    ----------
    seed : int
        The same one gives the same data everywhere.
    samples, features, classes : int
        At least 1. The features take 4 * samples * features bytes.

    Returns
    -------
    Dataset
        Features (samples, features) of float32.

    Raises
    ------
    ArgumentError
        Where a number cannot be used.
    """
    check_integer("seed", seed, 0)
    for name, value in (("samples", samples), ("features", features), ("classes", classes)):
        check_integer(name, value, 1)
    random = numpy.random.default_rng(seed)
    x = random.standard_normal((samples, features), "float32")
    y = numpy.empty(samples, "int64")
    teacher = random.standard_normal((features, classes))
    # in float64, so that a sum in another order (threads, another BLAS) does not turn a close call
    # into another label; in pieces, because the product converts its operand
    rows = max(1, 2**22 // (features + classes))
    for piece in (slice(start, start + rows) for start in range(0, samples, rows)):
        y[piece] = (x[piece] @ teacher).argmax(axis=1)
    return Dataset.split(x, y, seed)


def stored(path: str | os.PathLike[str], seed: int = 0) -> Dataset:
    """The data of an .npz file: arrays `features` (samples, width) and `labels` (samples,).

    Other names are those of TRAINING, such as `x` and `y`.

    With `test_features` and `test_labels` (or `x_test` and `y_test`) those are for testing, else a
    fifth by `seed`. Arrays written by `numpy.savez` stay in the file and are read as needed. Raises
    ArgumentError for a file, BufferError for arrays that cannot be used.
    """
    archive = Archive(path)
    train = _pair(archive, TRAINING, needed=True)
    test = _pair(archive, TEST)
    assert train is not None  # it is needed
    try:
        return Dataset(*train, *test) if test else Dataset.split(*train, seed)
    except errors.BufferError as error:
        raise errors.BufferError(f"{path}: {error}") from error


def _pair(
    archive: Archive, pairs: Iterable[tuple[str, str]], needed: bool = False
) -> tuple[Array, Array] | None:
    """The arrays of the first pair that is complete; None if no name is there nor needed."""
    for features, labels in pairs:
        if {features, labels} <= set(archive.names):
            return archive[features], archive[labels]
    if needed or any(name in archive.names for pair in pairs for name in pair):
        expected = " or ".join(" and ".join(pair) for pair in pairs)
        raise ArgumentError(
            f"{archive.path}: expected arrays named {expected}, got "
            f"{', '.join(archive.names) or 'none'}"
        )
    return None


#: by their names on the command line
DATASETS: dict[str, Callable[..., Dataset]] = {"digits": digits, "synthetic": synthetic}


def load(text: str, seed: int = 0) -> Dataset:
    """The data set that the command line's ``--data`` names.

    Parameters
    ----------
    text : str
        ``digits``, ``synthetic``, ``synthetic:SAMPLES,FEATURES,CLASSES`` or ``FILE.npz`` with the
        arrays `features` (samples, width) and `labels` (samples,), or `x` and `y`; arrays written
        by `numpy.savez` stay in the file.
    seed : int
        Of the split, and of synthetic data.

    Returns
    -------
    Dataset

    Raises
    ------
    ArgumentError, BufferError
        Where there is no such data, or it cannot be used.
    LaunchError
        Where a package for it is missing.

    Examples
    --------
    >>> load("synthetic:50,8,3").facts()["training samples"]
    40
    """
    name, colon, sizes = text.partition(":")
    if text.endswith(".npz"):
        return stored(text, seed)
    if name not in DATASETS or (colon and name != "synthetic"):
        forms = "digits, synthetic, synthetic:SAMPLES,FEATURES,CLASSES, FILE.npz"
        raise ArgumentError(f"--data: expected one of {forms}, got {text!r}")
    return DATASETS[name](seed, *(_sizes(text, sizes) if colon else ()))


def _sizes(text: str, sizes: str) -> list[int]:
    """The three numbers behind the colon."""
    numbers = sizes.split(",")
    if len(numbers) != 3 or not all(number.isdecimal() and int(number) for number in numbers):
        raise ArgumentError(
            f"--data: expected synthetic:SAMPLES,FEATURES,CLASSES, numbers from 1 up, got {text!r}"
        )
    return [int(number) for number in numbers]
