"""Functions as models: trained as by hand, and one error where ranks differ."""

import numpy
import pytest

from mpicoll.train import SGD, Trainer
from tests.support.cases import RANK, SIZE, WORLD
from tests.support.training import STRATEGIES, raises

pytestmark = pytest.mark.mpi


def squares(params, batch):
    """Linear regression: half the mean squared error, and its gradient in closed form."""
    features, targets = batch
    error = features @ params["w"] + params["b"] - targets
    return (error @ error) / (2 * len(targets)), {"w": features.T @ error / len(targets), "b": error.mean()}


def descend(data, lr, steps, batch_size):
    """The same by hand, on the whole batch in one process."""
    from mpicoll.train.data.sampler import Sampler

    params, losses = {"w": numpy.zeros(7), "b": numpy.zeros(())}, []
    sampler = Sampler(len(data), batch_size, 3)
    for batches in sampler.epochs(steps):
        for batch in batches:
            loss, gradients = squares(params, data.take(batch))
            losses.append(loss)
            params = {name: value - lr * gradients[name] for name, value in params.items()}
    return losses, params


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_function_is_trained(data, strategy, accumulate):
    losses, params = descend(data, 0.02, 9, 13)
    first = {"w": numpy.zeros(7), "b": numpy.zeros(())}
    trainer = Trainer(squares, SGD(0.02), WORLD, strategy, params=first, accumulate=accumulate)
    trainer.fit(data, steps=9, batch_size=13, seed=3)
    numpy.testing.assert_allclose(trainer.losses, losses, rtol=1e-10)
    for name, value in params.items():
        numpy.testing.assert_allclose(trainer.params[name], value, rtol=1e-10)
    assert trainer.test_accuracy is None and not first["w"].any()


def test_a_function_of_a_sequence(data):
    def listed(params, batch):
        loss, gradients = squares(dict(zip("wb", params)), batch)
        return loss, tuple(gradients.values())

    trainer = Trainer(listed, SGD(0.02), WORLD, params=[numpy.zeros(7), numpy.zeros(())])
    trainer.fit(data, steps=9, batch_size=13, seed=3)
    numpy.testing.assert_allclose(trainer.losses, descend(data, 0.02, 9, 13)[0], rtol=1e-10)
    assert list(trainer.params) == ["array 0", "array 1"]


@pytest.mark.parametrize("function, text", [
    (lambda p, b: (0.0, [numpy.zeros(3), numpy.zeros(())]), r"gradient of array 0: expected the shape \(7,\), got \(3,\)"),
    (lambda p, b: (numpy.zeros(2), p), "loss: expected one number, got"),
    (lambda p, b: (0.0, p[:1]), "gradients: expected one for each of array 0, array 1, got 1"),
])
def test_functions_that_give_something_else(data, function, text):
    raises(text, Trainer(function, SGD(), WORLD, params=[numpy.zeros(7), numpy.zeros(())]).fit, data, steps=1)


def test_params_that_cannot_be_trained(data):
    raises("params: expected the arrays that the function trains, got None", Trainer, squares, SGD(), WORLD)
    raises("params: expected at least one array", Trainer, squares, SGD(), WORLD, params={})
    numbered = {0: numpy.zeros(7), "b": numpy.zeros(())}
    raises("params: expected texts as the keys of a dict", Trainer, squares, SGD(), WORLD, params=numbered)
    mixed = {"w": numpy.zeros(7), "b": numpy.zeros((), "float32")}
    raises("params: expected arrays of one floating dtype", Trainer, squares, SGD(), WORLD, params=mixed)
    raises("params: expected arrays of one floating dtype", Trainer, squares, SGD(), WORLD, params=[numpy.arange(3)])


@pytest.mark.mpi(min_size=2)
def test_different_functions_are_found_at_construction():
    shape = 8 if RANK == SIZE - 1 else 7
    raises(r"layer 0 of the model: ranks? 0.*: w \(7,\); rank \d+: w \(8,\)", Trainer, squares, SGD(), WORLD,
           params={"w": numpy.zeros(shape), "b": numpy.zeros(())})  # fmt: skip
