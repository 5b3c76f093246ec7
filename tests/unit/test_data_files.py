"""Data of training in files. No MPI here."""

import tracemalloc

import numpy
import pytest

from mpicoll.errors import ArgumentError, BufferError
from mpicoll.train import Dataset
from mpicoll.train.data.sources import load
from tests.support.samples import everything, samples

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
    ({"y": numpy.arange(13) - 1}, "labels from 0 to below 2.*31, got -1"),
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
