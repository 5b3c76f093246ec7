"""The parts of the trainer that need no MPI: layers, optimizers, data, sampler, command-line options."""

import argparse
import subprocess
import sys
import types

import numpy
import pytest

from mpicoll.cli import train as command
from mpicoll.errors import ArgumentError
from mpicoll.train import SGD, Adam, AdamW, mlp
from mpicoll.train.data import shares
from mpicoll.train.optimizers import OPTIMIZERS


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


@pytest.mark.parametrize("parts", [1, 2, 3, 20])
def test_losses_and_gradients_of_the_parts_add_up(parts):
    model, (x, y) = mlp([5, 7, 4], dtype="float64"), batch()
    whole, gradients = model.learn(x, y, len(y)), model.gradients.copy()
    ends = numpy.cumsum(shares(len(y), parts))[:-1]
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


# ---- optimizers


def reference(kind, options, parameter, gradients):
    """The published formulas for one parameter, in plain Python."""
    lr, decay = options["lr"], options.get("weight_decay", 0.0)
    first, second = options.get("betas", (0.9, 0.999))
    momentum = velocity = mean = square = 0.0
    momentum = options.get("momentum", 0.0)
    for step, gradient in enumerate(gradients, 1):
        if kind is AdamW:
            parameter -= lr * decay * parameter
        else:
            gradient += decay * parameter
        if kind is SGD:
            velocity = momentum * velocity + gradient
            parameter -= lr * (gradient + momentum * velocity if options.get("nesterov") else velocity)
        else:
            mean = first * mean + (1 - first) * gradient
            square = second * square + (1 - second) * gradient**2
            parameter -= lr * (mean / (1 - first**step)) / ((square / (1 - second**step)) ** 0.5 + 1e-8)
    return parameter


CASES = [
    (SGD, {"lr": 0.1}),
    (SGD, {"lr": 0.1, "weight_decay": 0.02}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.02}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.02}),
    (Adam, {"lr": 0.01}),
    (Adam, {"lr": 0.01, "betas": (0.8, 0.99), "weight_decay": 0.1}),
    (AdamW, {"lr": 0.01, "weight_decay": 0.1}),
]


@pytest.mark.parametrize("kind, options", CASES)
@pytest.mark.parametrize("length", [1, 40_000])  # the second is updated in two pieces
def test_optimizers_against_their_formulas(kind, options, length):
    random = numpy.random.default_rng(0)
    parameters, gradients = random.standard_normal(length), random.standard_normal((5, length))
    picked = [0, length // 2, length - 1]
    expected = [reference(kind, options, parameters[i], gradients[:, i].copy()) for i in picked]
    optimizer, kept = kind(**options), gradients.copy()
    for gradient in gradients:
        optimizer.update(parameters, gradient)
    numpy.testing.assert_allclose(parameters[picked], expected, rtol=1e-12)
    assert (gradients == kept).all()
    assert optimizer.nbytes == len(optimizer.slots) * parameters.nbytes


def test_closed_forms():
    x = numpy.array([2.0])
    optimizer = SGD(lr=0.1)
    for _ in range(10):
        optimizer.update(x, x.copy())  # gradient of x**2 / 2
    assert x[0] == pytest.approx(2 * 0.9**10, rel=1e-14)
    x, g = numpy.zeros(3), numpy.array([1e-3, -5.0, 40.0])
    Adam(lr=0.01).update(x, g)
    numpy.testing.assert_allclose(x, -0.01 * numpy.sign(g), rtol=1e-4)  # a first step is lr long, whatever the gradient


@pytest.mark.parametrize("kind, options", CASES)
def test_slices_can_be_updated_apart(kind, options):
    random = numpy.random.default_rng(0)
    whole, gradient = random.standard_normal(10), random.standard_normal(10)
    parts, slices = whole.copy(), (slice(0, 3), slice(3, 10))
    optimizer, shards = kind(**options), [kind(**options), kind(**options)]
    for _ in range(3):
        optimizer.update(whole, gradient)
        for shard, part in zip(shards, slices):
            shard.update(parts[part], gradient[part])
    assert (parts == whole).all()


@pytest.mark.parametrize("make, name", [
    (lambda: SGD(lr=0), "lr"), (lambda: SGD(lr=float("nan")), "lr"), (lambda: SGD(momentum=1), "momentum"),
    (lambda: SGD(nesterov=True), "nesterov"), (lambda: Adam(betas=(0.9,)), "betas"), (lambda: Adam(eps=0), "eps"),
    (lambda: AdamW(weight_decay=-1), "weight_decay"),
])
def test_wrong_hyperparameters(make, name):
    with pytest.raises(ArgumentError, match=f"^{name}: expected"):
        make()


# ---- command line


def parse(*words):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(words)


def test_config_holds_what_will_be_used():
    assert command._config(parse())["epochs"] == 15
    config = command._config(parse("--steps", "7", "--hidden", "32, 16"))
    assert (config["epochs"], config["steps"], config["hidden"]) == (None, 7, [32, 16])
    assert command._config(parse("--hidden", ""))["hidden"] == []


@pytest.mark.parametrize("text", ["a", "512,,512", "1.5", "-3", "512;512"])
def test_hidden_must_be_numbers(text):
    with pytest.raises(ArgumentError, match="--hidden: expected widths such as 512,512"):
        command._config(parse(f"--hidden={text}"))


def test_epochs_and_steps_exclude_each_other(capsys):
    with pytest.raises(SystemExit):
        parse("--epochs", "1", "--steps", "1")
    assert "not allowed with" in capsys.readouterr().err


def test_everything_but_the_trainer_works_without_mpi():
    code = "import sys, mpicoll.train, mpicoll.cli.train; assert 'mpi4py' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
