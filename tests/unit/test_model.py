"""Models of layers: gradients, precision, other array modules."""

import sys
import types

import numpy
import pytest

from mpicoll.errors import ArgumentError
from mpicoll.schedule import bounds
from mpicoll.train import Linear, Model, ReLU, mlp
from mpicoll.train.optim.optimizers import OPTIMIZERS


def batch(samples=13, width=5, classes=4, seed=0):
    random = numpy.random.default_rng(seed)
    return random.standard_normal((samples, width)), random.integers(0, classes, samples)


# ---- model


def test_gradients_are_those_of_finite_differences():
    model, (x, y) = mlp([5, 7, 6, 4], seed=3, dtype="float64"), batch()
    model.parameters += 0.01  # away from zero biases
    model.learn(x, y, len(y))
    gradients, step = model.gradients.copy(), 1e-6
    for index in range(len(model.parameters)):
        kept = model.parameters[index]
        model.parameters[index] = kept + step
        above = model.learn(x, y, len(y))
        model.parameters[index] = kept - step
        below = model.learn(x, y, len(y))
        model.parameters[index] = kept
        assert gradients[index] == pytest.approx((above - below) / (2 * step), rel=1e-6, abs=1e-9)


def test_loss_of_equal_logits_is_the_logarithm_of_the_classes():
    model, (x, y) = mlp([5, 4], dtype="float64"), batch()
    model.parameters[:] = 0
    assert model.learn(x, y, len(y)) == pytest.approx(numpy.log(4), rel=1e-14)


def test_loss_is_finite_for_huge_logits():
    model, (x, y) = mlp([5, 4], dtype="float64"), batch()
    model.parameters *= 1e5
    assert numpy.isfinite(model.learn(x, y, len(y))) and numpy.isfinite(model.gradients).all()


@pytest.mark.parametrize("layer", [ReLU(), Linear(5, 5)])
def test_a_layer_has_one_place(layer):
    with pytest.raises(ArgumentError, match="layers: expected an object of its own in each place"):
        Model([layer, Linear(5, 5), layer])


@pytest.mark.parametrize("parts", [1, 2, 3, 20])
def test_losses_and_gradients_of_the_parts_add_up(parts):
    model, (x, y) = mlp([5, 7, 4], dtype="float64"), batch()
    whole, gradients = model.learn(x, y, len(y)), model.gradients.copy()
    ends = bounds(len(y), parts)[1:-1]
    loss, total = 0.0, numpy.zeros_like(gradients)
    for features, labels in zip(numpy.split(x, ends), numpy.split(y, ends)):
        loss += model.learn(features, labels, len(y))
        total += model.gradients
    assert loss == pytest.approx(whole, rel=1e-13)
    numpy.testing.assert_allclose(total, gradients, rtol=1e-11, atol=1e-15)


def test_layers_are_views_into_the_flat_arrays():
    model = mlp([5, 7, 4])
    for layer in (model.layers[0], model.layers[2]):
        assert numpy.shares_memory(layer.parameters[0], model.parameters)
        assert numpy.shares_memory(layer.gradients[1], model.gradients)
    assert model.parameters.size == 5 * 7 + 7 + 7 * 4 + 4
    model.to(dtype="float64")
    assert model.layers[0].parameters[0].dtype == model.gradients.dtype == "float64"
    assert numpy.shares_memory(model.layers[2].parameters[0], model.parameters)


def test_precision_is_kept_throughout():
    model, (x, _) = mlp([5, 7, 4]), batch()
    assert model.forward(x.astype("float32")).dtype == "float32"
    for kind in OPTIMIZERS.values():
        optimizer = kind()
        optimizer.update(model.parameters, model.gradients)
        assert {array.dtype.name for array in [model.parameters, *optimizer.state.values()]} == {"float32"}


def test_first_weights_depend_on_the_seed_alone():
    assert (mlp([5, 4], seed=1).parameters == mlp([5, 4], seed=1).parameters).all()
    assert (mlp([5, 4], seed=1).parameters != mlp([5, 4], seed=2).parameters).any()


def test_count_correct_in_pieces():
    model, (x, y) = mlp([5, 4], dtype="float64"), batch(50)
    expected = int((model.forward(x).argmax(axis=1) == y).sum())
    assert model.count_correct(x, y, rows=7) == model.count_correct(x, y) == expected
    assert model.count_correct(x[:0], y[:0]) == 0


@pytest.mark.parametrize("widths", [[], [64], [64, 0, 10], [64, 1.5, 10], [64, -1]])
def test_wrong_widths(widths):
    with pytest.raises(ArgumentError, match="widths"):
        mlp(widths)


# ---- another array module


class OtherArray(numpy.ndarray):
    """Refuses to meet NumPy arrays and NumPy's functions, as a CuPy array does."""

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
        arrays = [array for array in (*inputs, *(out or ())) if isinstance(array, numpy.ndarray) and array.ndim]
        assert all(isinstance(array, OtherArray) for array in arrays), f"{ufunc} on NumPy and other arrays"
        plain = [array.view(numpy.ndarray) if isinstance(array, OtherArray) else array for array in inputs]
        if out:
            options["out"] = tuple(array.view(numpy.ndarray) for array in out)
        result = getattr(ufunc, method)(*plain, **options)
        return out[0] if out else other(result)

    def __array_function__(self, function, *rest):
        raise TypeError(f"numpy.{function.__name__} of an array that is not NumPy's")


def other(result):
    return result.view(OtherArray) if isinstance(result, numpy.ndarray) else result


def plain(value):
    return value.view(numpy.ndarray) if isinstance(value, OtherArray) else value


@pytest.fixture
def other_module(monkeypatch):
    def function(name):
        return lambda *values, **options: other(getattr(numpy, name)(*map(plain, values), **options))

    module = types.ModuleType("othermodule")
    for name in ("array", "asarray", "zeros_like", "arange", "exp", "log", "sqrt"):
        setattr(module, name, function(name))
    module.matmul = numpy.matmul
    monkeypatch.setattr(OtherArray, "__module__", "othermodule")
    monkeypatch.setitem(sys.modules, "othermodule", module)
    return module


@pytest.mark.parametrize("kind", OPTIMIZERS.values())
def test_other_array_modules_give_the_same(other_module, kind):
    (x, y), models = batch(), [mlp([5, 7, 4], dtype="float64"), mlp([5, 7, 4], dtype="float64").to(other_module)]
    assert type(models[1].layers[0].parameters[0]) is OtherArray
    losses = []
    for model, convert in zip(models, (numpy.asarray, other_module.asarray)):
        optimizer = kind(weight_decay=0.01)
        losses.append([])
        for _ in range(3):
            losses[-1].append(model.learn(convert(x), convert(y), len(y)))
            optimizer.update(model.parameters, model.gradients)
        losses[-1].append(model.count_correct(convert(x), convert(y)))
    assert losses[0] == losses[1]
