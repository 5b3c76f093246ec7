"""Data for training: sets, their split, synthetic ones. No MPI here."""

import sys

import numpy
import pytest

from mpicoll.errors import ArgumentError, BufferError, LaunchError
from mpicoll.train import Dataset, digits
from mpicoll.train.data.sources import load, synthetic
from tests.support.samples import everything, samples


# ---- data sets


@pytest.mark.slow
def test_digits():
    pytest.importorskip("sklearn")
    data, again, another = digits(seed=1), load("digits", 1), digits(seed=2)
    assert data.facts() == again.facts() != another.facts()
    assert (len(data), data.tests, data.widths) == (1438, 359, (64, 10))
    x, y = everything(data)
    assert x.min() == 0 and x.max() == 1
    assert sorted(map(bytes, x)) == sorted(map(bytes, everything(another)[0]))
    assert (data.features == x[:1438]).all() and (data.test_labels == y[1438:]).all()


def test_missing_package_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(LaunchError, match=r'scikit-learn .* pip install "mpicoll\[train\]"'):
        digits()


@pytest.mark.parametrize("count", [1, 4, 5, 13])
def test_split_keeps_every_sample_with_its_label(count):
    x, y = samples(count)
    data = Dataset.split(x, y, seed=3)
    assert (len(data), data.tests) == (count - count // 5, count // 5)
    pairs = sorted((bytes(row), label) for row, label in zip(*everything(data)))
    assert pairs == sorted((bytes(row), label) for row, label in zip(x, y))


@pytest.mark.parametrize("split", [True, False])
def test_rows_are_taken_in_the_order_asked_for(split):
    x, y = samples(20)
    data = Dataset.split(x, y, seed=3) if split else Dataset(x, y, x[:7], y[:7])
    rows = numpy.array([5, 0, 5])
    training, test = (data.take, data.features, data.labels), (data.take_test, data.test_features, data.test_labels)
    for take, whole, labels in (training, test):
        count = len(labels)
        for part in (slice(1, 3), rows % count, rows[:0]):
            assert (take(part)[0] == whole[part]).all() and (take(part)[1] == labels[part]).all()
            assert len(take(part)[0]) == len(take(part)[1]) == len(labels[part])
        with pytest.raises(IndexError):
            take(numpy.array([count]))


def test_facts_depend_on_the_order_of_the_labels():
    x, y = samples(20)
    whole = Dataset(x, y, x[:0], y[:0])
    assert whole.facts() == Dataset(x, y.astype("int8"), x[:0], y[:0]).facts()
    assert whole.facts() != Dataset(x, y[::-1], x[:0], y[:0]).facts()
    assert Dataset.split(x, y, 1).facts() != Dataset.split(x, y, 2).facts()


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "uint16", "uint32", "int32", "uint64", ">u2"])
@pytest.mark.parametrize("split", [True, False])
def test_labels_of_any_integer_type_are_those_of_int64(dtype, split):
    x, y = samples(20, classes=2 if dtype == "bool" else 4)
    make = Dataset.split if split else lambda x, y: Dataset(x, y, x[:7], y[:7])
    data, expected = make(x, y.astype(dtype)), make(x, y)
    assert data.facts() == expected.facts() and data.widths == expected.widths
    for rows in (slice(1, 9), numpy.array([3, 0])):
        assert (data.take(rows)[1] - 5).tolist() == (expected.take(rows)[1] - 5).tolist()  # no type that wraps around
    for name in ("labels", "test_labels"):
        assert getattr(data, name).dtype == "int64" and (getattr(data, name) == getattr(expected, name)).all()


def test_classes_are_counted_over_training_and_test_data():
    x, y = samples(4)
    assert Dataset(x, y * 0, x, y * 0 + 6).widths == (5, 7)


@pytest.mark.parametrize("change, text", [
    ({1: numpy.zeros(3, int)}, r"training data: expected real features of shape \(samples, width\) .* \(13, 5\) and \(3,\)"),
    ({3: numpy.zeros(3, int)}, "test data: expected"),
    ({1: numpy.zeros(13)}, "labels of float64"),
    ({0: numpy.zeros(13)}, r"got shapes \(13,\)"),
    ({0: numpy.zeros((13, 5), complex)}, "features of complex128"),
    ({0: numpy.zeros((13, 5), "S3")}, r"features of \|S3"),
    ({1: numpy.arange(13) - 1}, "training data: expected labels from 0 to below 2.*31, got -1; number the classes"),
    ({3: numpy.full(13, 255, "uint8").view("int8")}, "test data: expected labels from 0 to below 2.*31, got -1"),
    ({1: numpy.full(13, 2**64 - 1, "uint64")}, "expected labels from 0 to below 2.*31, got 18446744073709551615"),
    ({1: numpy.full(13, 2**31)}, "expected labels from 0 to below 2.*31, got 2147483648"),
    ({2: numpy.zeros((13, 2))}, "one width, got 5 and 2"),
    ({0: numpy.zeros((0, 5)), 1: numpy.zeros(0, int)}, "at least one sample, got none"),
])
def test_wrong_data(change, text):
    x, y = samples()
    arrays = [x, y, x, y]
    Dataset(*arrays)
    for index, array in change.items():
        arrays[index] = array
    with pytest.raises(BufferError, match=text):
        Dataset(*arrays)


@pytest.mark.parametrize("options, name", [({"test_fraction": 1}, "test_fraction"), ({"seed": -1}, "seed")])
def test_wrong_split(options, name):
    with pytest.raises(ArgumentError, match=f"^{name}: expected"):
        Dataset.split(*samples(), **options)


# ---- synthetic data


def test_synthetic_has_the_size_asked_for_and_depends_on_the_seed_alone():
    data = load("synthetic:50,8,3", 1)
    assert (len(data), data.tests, data.widths) == (40, 10, (8, 3))
    assert data.take(slice(3))[0].dtype == "float32" and data.labels.dtype == "int64"
    for one, other in zip(everything(data), everything(synthetic(1, 50, 8, 3))):
        assert (one == other).all()
    assert data.facts() != load("synthetic:50,8,3", 2).facts()


def test_synthetic_made_in_pieces_is_labelled_throughout():
    x, y = everything(synthetic(0, 2_500_000, 1, 3))  # labelled a million at a time: with one feature, by its sign
    above, below = set(y[x[:, 0] > 0]), set(y[x[:, 0] < 0])
    assert len(above) == len(below) == 1 and above != below


def test_synthetic_can_be_learned():
    data = synthetic(0, 4000, 16, 4)
    x, y = data.take(slice(None))
    weights = numpy.linalg.lstsq(x, numpy.eye(4)[y], rcond=None)[0]
    x, y = data.take_test(slice(None))
    assert ((x @ weights).argmax(axis=1) == y).mean() > 0.9


@pytest.mark.parametrize("text", ["letters", "", "digits:1", "digits:", "data.npy", "Synthetic"])
def test_unknown_data(text):
    with pytest.raises(ArgumentError, match="--data: expected one of digits, synthetic, .*FILE.npz, got"):
        load(text)


@pytest.mark.parametrize("sizes", ["", "5", "5,5", "5,5,0", "-5,5,5", "5,5,5,5", "5,5,x", "1e3,5,5"])
def test_wrong_sizes(sizes):
    with pytest.raises(ArgumentError, match="--data: expected synthetic:SAMPLES,FEATURES,CLASSES"):
        load(f"synthetic:{sizes}")
