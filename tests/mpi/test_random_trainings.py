"""Trainings beside a reference in plain NumPy; `python -m benchmarks.run.trainings` runs new ones for as long as one likes."""

import numpy
import pytest
from mpi4py import MPI

from mpicoll.errors import ArgumentError
from mpicoll.train import SGD, Dataset, Linear, Model, Trainer
from tests.support.cases import SIZE, WORLD
from tests.support.training import STRATEGIES
from tests.support.trainings import differences, draw, grid
from tests.support.trainings.drawing import BUCKETS, OVERLAPS, PRECISIONS
from tests.support.trainings.models import Scaling

# whose schedules run with the reference in tests of theirs
pytestmark = [pytest.mark.mpi, pytest.mark.interpreters("auto")]

#: for tests of one thing
PLAIN = {"precision": "float64", "accumulate": 1, "clip_norm": None, "loss_scale": None, "reproducible": False,
         "algorithm": None}  # fmt: skip


def compare(configurations):
    for config in configurations:
        assert differences(config, WORLD) == [], config


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_overlap_and_precision(strategy, overlap):
    compare(grid(SIZE, (strategy,), (overlap,), PRECISIONS, (8,)))


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_size_of_buckets_too(strategy):
    compare(grid(SIZE, (strategy,), OVERLAPS, PRECISIONS, BUCKETS))


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("precision", ["float64", "float16"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_function_of_many_arrays(strategy, precision, accumulate):
    """More buckets than buffers that they share."""
    for bucket in (8, 200):
        options = PLAIN | {"precision": precision, "accumulate": accumulate, "loss_scale": 64.0}
        config = draw(7, SIZE, strategy=strategy, bucket_bytes=bucket, reduction=None, **options)
        compare([config | {"kind": "function", "arrays": [[size] for size in range(5, 21)]}])


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_layers_that_a_backward_leaves_out_have_no_gradient(strategy, accumulate):
    """In some steps, micro-batches, and on some ranks; what lies in their buffers from a step before is not theirs."""
    for bucket in (8, 200, 1 << 20):
        config = draw(3, SIZE, strategy=strategy, bucket_bytes=bucket, reduction=None, **PLAIN | {"accumulate": accumulate})
        layers = [[[3], [2, 2]], [[5]], [[2]] * 7]
        compare([config | {"kind": "layers", "layers": layers, "leave_out": 0.5, "shuffle": False}])


@pytest.mark.parametrize("precision", ["float64", "float16"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_layers_that_finish_in_another_order_each_time(strategy, precision):
    for bucket in (8, 200):
        options = PLAIN | {"precision": precision, "loss_scale": 64.0}
        config = draw(5, SIZE, strategy=strategy, bucket_bytes=bucket, reduction=None, **options)
        compare([config | {"kind": "layers", "layers": [[[3]] * 4] * 3, "leave_out": 0.3, "shuffle": True}])


class HalfTrained(Scaling):
    """Writes the first of its gradients only."""

    def backward(self, dy, first=False):
        self.gradients = self.gradients[:1]
        return super().backward(dy, first)


@pytest.mark.parametrize("precision", ["float64", "float16"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_gradient_that_a_layer_does_not_write_is_zero(data, strategy, precision):
    shapes = [[3], [4], [5], [6], [7]]
    model = Model([Linear(7, 6), HalfTrained(6, shapes, 1), Linear(6, 4)], dtype="float64")
    trainer = Trainer(model, SGD(0.1), WORLD, strategy, precision=precision, bucket_bytes=8)
    before = {name: array.copy() for name, array in trainer.params.items()}
    trainer.fit(data, steps=5, batch_size=20)
    moved = [name for name, array in trainer.params.items() if (array != before[name]).any()]
    assert [name for name in moved if "tensor" in name] == [name for name in before if "tensor 0" in name]


class Repeating(Model):
    """Calls the hooks of a layer twice."""

    def backward(self, gradient, hooks):
        super().backward(gradient, hooks)
        hooks.backward(0)
        hooks.ready(0)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_second_gradient_in_one_backward_is_an_error(data, strategy):
    model = Model([Linear(7, 6), Linear(6, 4)], dtype="float64")
    trainer = Trainer(model, SGD(0.1), WORLD, strategy)
    trainer.model.__class__ = Repeating
    text = r"gradient of weights of layer 0, Linear\(7, 6\): expected one for each micro-batch, got a second one"
    with pytest.raises(ArgumentError, match=text):
        trainer.fit(data, steps=1, batch_size=20)
    WORLD.Barrier()


class Doubling:
    """What a layer must have and no more. It stands in front, and changes the width."""

    shapes = ((7,),)

    def initialize(self, random):
        return [numpy.ones(7)]

    def bind(self, parameters, gradients):
        self._bound = parameters, gradients

    def forward(self, x):
        assert x.shape[1] == 7
        self._x = x
        return numpy.concatenate([x, x * self._bound[0][0]], axis=1)

    def backward(self, dy, first=False):
        assert first
        self._bound[1][0][...] = (dy[:, 7:] * self._x).sum(axis=0)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_least_layer_of_ones_own_trains_on_ranks_without_rows_too(data, strategy, accumulate):
    few = Dataset(data.features[: SIZE + 1], data.labels[: SIZE + 1], data.features[:0], data.labels[:0])
    losses = []
    for comm in (WORLD, MPI.COMM_SELF):
        model = Model([Doubling(), Linear(14, 4)], dtype="float64")
        trainer = Trainer(model, SGD(0.1), comm, strategy, accumulate=accumulate)
        trainer.fit(few, epochs=2, batch_size=SIZE)
        losses.append(trainer.losses)
    numpy.testing.assert_allclose(*losses, rtol=1e-12)


def test_all_tensors_of_an_own_layer_are_parameters():
    model = Model([Linear(7, 6), Scaling(6, [[3], [2, 2], []], 1)], dtype="float64")
    assert [tensor.shape for tensor in model.tensors] == [(7, 6), (6,), (3,), (2, 2), ()]
    assert sum(tensor.size for tensor in model.tensors) == len(model.parameters)
    numpy.testing.assert_array_equal(model.parameters[48:51], Scaling(6, [[3], [2, 2], []], 1).initialize(None)[0])
