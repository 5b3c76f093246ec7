"""Data for training: sets, their split, and files. No MPI here."""

import doctest
import sys
import tracemalloc
from importlib import import_module

import numpy
import pytest

from mpicoll.errors import ArgumentError, BufferError, LaunchError
from mpicoll.train import Dataset, digits
from mpicoll.train.data.sources import load, synthetic


def samples(count=13, width=5, classes=4, seed=0):
    random = numpy.random.default_rng(seed)
    return random.standard_normal((count, width)), random.integers(0, classes, count)


def everything(data):
    """(features, labels) of all samples, the training samples first."""
    parts = data.take(numpy.arange(len(data))), data.take_test(slice(None))
    return tuple(numpy.concatenate(arrays) for arrays in zip(*parts))


# ---- data sets


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
    ({1: numpy.arange(13) - 1}, "expected labels from 0, got -1; number the classes"),
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


# ---- files

SAVES = (numpy.savez, numpy.savez_compressed)
NAMES = [("features", "labels"), ("x", "y"), ("x_train", "y_train")]


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("convert", [
    numpy.ascontiguousarray, numpy.asfortranarray, lambda x: x.astype(">f4"), lambda x: (9 * x).astype("int8"),
])
def test_file_gives_what_the_arrays_do(tmp_path, save, names, convert):
    x, y = samples(40)
    x = convert(x)
    save(tmp_path / "data.npz", **dict(zip(names, (x, y))))
    data, expected = load(str(tmp_path / "data.npz"), 5), Dataset.split(x, y, 5)
    assert data.facts() == expected.facts()
    for one, other in zip(everything(data), everything(expected)):
        assert (one == other).all() and one.dtype == other.dtype


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("names", [("test_features", "test_labels"), ("x_test", "y_test")])
@pytest.mark.parametrize("tests", [0, 6])
def test_file_with_its_own_test_data(tmp_path, save, names, tests):
    x, y = samples(30)
    save(tmp_path / "data.npz", features=x, labels=y, **dict(zip(names, (x[:tests], y[:tests]))))
    data = load(str(tmp_path / "data.npz"))
    assert (len(data), data.tests) == (30, tests)
    assert (data.features == x).all() and (data.take_test(slice(2, 4))[1] == y[:tests][2:4]).all()


@pytest.mark.parametrize("own_tests", [True, False])
def test_uncompressed_features_stay_in_the_file(tmp_path, own_tests):
    x, y = numpy.ones((1024, 2048), "float32"), numpy.arange(1024)
    rest = {"x_test": x[:9], "y_test": y[:9]} if own_tests else {}
    numpy.savez(tmp_path / "data.npz", x=x, y=y, **rest)
    tracemalloc.start()
    data = load(str(tmp_path / "data.npz"))
    data.facts()
    taken = [data.take(numpy.arange(8)), data.take(slice(8)), data.take_test(slice(8))]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < x.nbytes / 8
    for features, labels in taken:  # what is taken can be used by anything: no part of the file any more
        assert features.flags.aligned and features.flags.writeable and features.shape == (8, 2048)
        features[:], labels[:] = 0, 0
    assert (data.take(slice(8))[0] == 1).all()


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "data.npz")


def refuses(path, text, error=ArgumentError):
    with pytest.raises(error, match=text) as raised:
        load(path)
    assert str(raised.value).startswith(f"{path}: ")


def test_missing_file(path, tmp_path):
    refuses(path, r"cannot be read \(No such file or directory\)")
    (tmp_path / "folder.npz").mkdir()
    refuses(str(tmp_path / "folder.npz"), r"cannot be read \(Is a directory\)")


@pytest.mark.parametrize("arrays, found", [
    ({"features": 0, "y": 0}, "features, y"),
    ({"data": 0}, "data"),
    ({}, "none"),
    ({"labels": 0, "x_test": 0, "y_test": 0}, "labels, x_test, y_test"),
])
def test_missing_arrays_are_named_with_those_found(path, arrays, found):
    numpy.savez(path, **arrays)
    refuses(path, f"expected arrays named features and labels or x and y .*, got {found}$")


def test_half_a_pair_of_test_arrays(path):
    x, y = samples()
    numpy.savez(path, x=x, y=y, x_test=x)
    refuses(path, "test_features and test_labels or x_test and y_test, got x, y, x_test")


@pytest.mark.parametrize("change, text", [
    ({"y": numpy.zeros(3, int)}, r"training data: expected .* \(13, 5\) and \(3,\)"),
    ({"x": numpy.zeros((13, 2, 2))}, r"got shapes \(13, 2, 2\)"),
    ({"y": numpy.zeros(13)}, "labels of float64"),
    ({"y": numpy.arange(13) - 1}, "labels from 0, got -1"),
    ({"x": numpy.zeros((0, 5)), "y": numpy.zeros(0, int)}, "at least one sample"),
    ({"x": numpy.array(3.0)}, r"got shapes \(\)"),
])
def test_arrays_that_do_not_fit(path, change, text):
    numpy.savez(path, **{**dict(zip("xy", samples())), **change})
    refuses(path, text, BufferError)


@pytest.mark.parametrize("save", SAVES)
def test_objects_are_never_unpickled(path, save):
    save(path, x=samples()[0], y=numpy.array([print] * 13, dtype=object))
    refuses(path, "its array 'y': Python objects")


@pytest.mark.parametrize("content", [b"", b"text", b"\x93NUMPY\x01\x00v\x00", b"PK\x05\x06"])
def test_other_files(path, content):
    with open(path, "wb") as file:
        file.write(content)
    refuses(path, r"cannot be read \(File is not a zip file\); expected a whole file that numpy.savez wrote")


@pytest.mark.parametrize("save", SAVES)
def test_truncated_at_any_length(path, save):
    save(path, **dict(zip("xy", samples(3, 2))))
    with open(path, "rb") as file:
        whole = file.read()
    for length in range(len(whole)):
        with open(path, "wb") as file:
            file.write(whole[:length])
        refuses(path, "cannot be read")


@pytest.mark.filterwarnings("ignore::UserWarning")  # NumPy's, about a header that an old Python wrote
@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("flip", [0x01, 0xFF])
def test_any_wrong_byte_is_found_or_does_no_harm(path, save, flip):
    save(path, **dict(zip("xy", samples(3, 2))))
    with open(path, "rb") as file:
        whole = file.read()
    found = 0
    for index in range(len(whole)):
        with open(path, "wb") as file:
            file.write(whole[:index] + bytes([whole[index] ^ flip]) + whole[index + 1:])
        try:
            everything(load(path))
        except (ArgumentError, BufferError) as error:
            assert str(error).startswith(f"{path}: ")
            found += 1
    assert found > len(whole) / 4  # the rest are dates, attributes, and numbers that look as good as others


@pytest.mark.parametrize("name", ["data.sources", "data.prefetch", "data.sampler"])
def test_examples_in_docstrings(name):
    failed, attempted = doctest.testmod(import_module(f"mpicoll.train.{name}"))
    assert attempted and not failed
