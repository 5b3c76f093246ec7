"""A `fit` that an exception ended, on all ranks, anywhere in a step: the next one goes on from the last completed step."""

import numpy
import pytest

from mpicoll.train import SGD, Adam, Linear, Model, ReLU, Trainer
from mpicoll.train.monitor import Meter
from mpicoll.train.parallel.reducer import StaleParameters
from tests.support.cases import RANK, WORLD
from tests.support.training import STRATEGIES, blobs

pytestmark = pytest.mark.mpi

#: steps before the exception, in which every rank has samples of each micro-batch, and afterwards; samples of a step
BEFORE, AFTER, BATCH = 3, 9, 20


class Interrupted(RuntimeError):
    """What the user's code raises."""


class Faulty(ReLU):
    """A layer whose backward raises once, in the last of the calls that are `left`."""

    left = 0

    def backward(self, dy, first=False):
        self.left -= 1
        if self.left == 0:
            raise Interrupted
        return super().backward(dy, first)


def trainer_of(strategy, first=0, last=0, **options):
    """first, last: in which call the layers raise, 0: never. Backward sends the last layer's gradients before the others'."""
    layers = [Linear(12, 16), Faulty(), Linear(16, 9), Faulty(), Linear(9, 4)]
    model = Model(layers, seed=3, dtype="float64")
    trainer = Trainer(model, SGD(0.05, 0.9), WORLD, strategy, precision="float64", bucket_bytes=200, **options)
    layers[1].left, layers[3].left = first, last
    return trainer


def interrupted(trainer, **options):
    with pytest.raises(Interrupted):
        trainer.fit(blobs(), **{"epochs": 40, "batch_size": BATCH, **options})


def same(trainer, reference):
    assert len(trainer.losses) == len(reference.losses)
    numpy.testing.assert_allclose(trainer.losses, reference.losses, rtol=1e-10)
    for ours, theirs in zip(trainer.params.values(), reference.params.values(), strict=True):
        numpy.testing.assert_allclose(ours, theirs, rtol=1e-8)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("overlap", ["all", "none"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_next_fit_goes_on(comm, strategy, overlap, accumulate):
    reference = trainer_of(strategy, overlap=overlap, accumulate=accumulate)
    reference.fit(blobs(), steps=BEFORE, batch_size=BATCH)
    reference.fit(blobs(), steps=AFTER, batch_size=BATCH)
    # with overlap ranks leave the step at different layers: some have sent gradients that others have not
    fails = accumulate * (BEFORE + 1)  # in the last micro-batch of the step
    first, last = (0, fails) if RANK == 0 or overlap == "none" else (fails, 0)
    trainer = trainer_of(strategy, first, last, overlap=overlap, accumulate=accumulate)
    interrupted(trainer)
    trainer.fit(blobs(), steps=AFTER, batch_size=BATCH)
    same(trainer, reference)


def interrupt(monkeypatch, named, call):
    """The wait of that name ends with an exception, as of a signal handler, the call-th time."""
    waiting, left = Meter.waiting, [call]

    def interrupted_waiting(meter, name):
        left[0] -= name == named
        if name == named and left[0] == 0:
            raise Interrupted
        return waiting(meter, name)

    monkeypatch.setattr(Meter, "waiting", interrupted_waiting)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("strategy, named", [
    ("allreduce", "reduce 0"), ("zero1", "reduce 0"), ("zero2", "reduce 0"), ("zero1", "gather 1"), ("zero2", "gather 0"),
])  # fmt: skip
def test_a_wait_that_was_interrupted_is_made_again(monkeypatch, strategy, named):
    reference = trainer_of(strategy)
    reference.fit(blobs(), steps=BEFORE, batch_size=BATCH)
    reference.fit(blobs(), steps=AFTER, batch_size=BATCH)
    trainer = trainer_of(strategy)
    # of gradients in the step after, of parameters before it
    interrupt(monkeypatch, named, BEFORE + named.startswith("reduce"))
    interrupted(trainer)
    trainer.fit(blobs(), steps=AFTER, batch_size=BATCH)
    same(trainer, reference)


class Halting(SGD):
    """Its third update ends within the first tensor."""

    halts = True

    def _formula(self, *arrays):
        super()._formula(*arrays)
        if self.halts and self.steps == BEFORE:
            raise Interrupted


@pytest.mark.parametrize("strategy", ["allreduce", "zero1", "zero2", "diloco"])
def test_half_an_update_is_refused_but_for_a_checkpoint(mpi_tmp_path, strategy):
    options = {"batch_size": BATCH, "checkpoint": mpi_tmp_path / "checkpoints", "checkpoint_every": 2}
    model = Model([Linear(12, 9), ReLU(), Linear(9, 4)], dtype="float64")
    trainer = Trainer(model, Halting(0.05), WORLD, strategy, bucket_bytes=200)
    interrupted(trainer, **options)
    trainer.optimizer.halts = False
    with pytest.raises(StaleParameters, match=r"expected a whole update 3, got half of it.*\(resume=True\)"):
        trainer.fit(blobs(), steps=8, batch_size=BATCH)
    trainer.fit(blobs(), steps=8, resume=True, **options)
    assert len(trainer.losses) == trainer.optimizer.steps == 8
    assert all(numpy.isfinite(array).all() for array in trainer.params.values())


@pytest.mark.parametrize("precision", ["float64", "float16"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_model_computes_with_the_last_parameters(strategy, precision):
    layers = [Linear(12, 16), Faulty(), Linear(16, 4)]
    trainer = Trainer(Model(layers, dtype="float64"), Adam(0.1), WORLD, strategy, precision=precision, bucket_bytes=64)
    layers[1].left = BEFORE + 1
    interrupted(trainer)
    features = blobs().features
    logits = trainer.model.forward(features)
    first, bias, last, offset = (array.astype(layers[0].parameters[0].dtype) for array in trainer.params.values())
    expected = numpy.maximum(features @ first + bias, 0) @ last + offset
    numpy.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("strategy", [*STRATEGIES, "diloco"])
def test_a_schedule_that_raises_leaves_the_step_before(strategy):
    rates = [1.0] * BEFORE
    trainers = []
    for schedule in (lambda step: rates[step - 1], lambda step: 1.0):
        optimizer = SGD(0.05, 0.9)
        model = Model([Linear(12, 9), ReLU(), Linear(9, 4)], seed=3, dtype="float64")
        trainers.append(Trainer(model, optimizer, WORLD, strategy, bucket_bytes=200))
        optimizer.schedule = schedule
    trainer, reference = trainers
    with pytest.raises(IndexError):
        trainer.fit(blobs(), steps=AFTER, batch_size=BATCH)
    rates += [1.0] * AFTER
    for one in trainers:
        one.fit(blobs(), steps=AFTER if one is trainer else BEFORE, batch_size=BATCH)
    if strategy == "diloco":  # whose fits end with an exchange
        assert len(trainer.losses) == BEFORE + AFTER
    else:
        reference.fit(blobs(), steps=AFTER, batch_size=BATCH)
        same(trainer, reference)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_resumed_fit_has_each_loss_once(mpi_tmp_path, strategy):
    options = {"batch_size": BATCH, "checkpoint": mpi_tmp_path / "checkpoints", "checkpoint_every": 4}
    reference = trainer_of(strategy)
    reference.fit(blobs(), epochs=3, batch_size=BATCH)
    trainer = trainer_of(strategy, first=7)
    interrupted(trainer, **options)
    for _ in range(2):  # the second one finds nothing left to do, and the same losses in the checkpoint
        trainer.fit(blobs(), epochs=3, resume=True, **options)
        same(trainer, reference)
        assert [epoch["epoch"] for epoch in trainer.epochs] == [1, 2, 3]
        expected = [epoch["loss"] for epoch in reference.epochs]
        numpy.testing.assert_allclose([epoch["loss"] for epoch in trainer.epochs], expected, rtol=1e-10)
    fresh = trainer_of(strategy)
    fresh.fit(blobs(), epochs=3, resume=True, **options)
    same(fresh, reference)
    assert fresh.epochs == trainer.epochs


@pytest.mark.parametrize("strategy", ["allreduce", "zero1"])
def test_an_epoch_that_is_resumed_is_listed_once(mpi_tmp_path, strategy):
    options = {"batch_size": BATCH, "checkpoint": mpi_tmp_path / "checkpoints"}
    reference = trainer_of(strategy)
    reference.fit(blobs(), steps=15, batch_size=BATCH)
    assert len(reference.epochs) == 3
    for steps in (7, 7, 8, 15, 15):  # 5 steps are an epoch
        trainer = trainer_of(strategy)
        trainer.fit(blobs(), steps=steps, resume=True, **options)
        assert [epoch["epoch"] for epoch in trainer.epochs] == list(range(1, -(-steps // 5) + 1))
    same(trainer, reference)
    expected = [epoch["loss"] for epoch in reference.epochs]
    numpy.testing.assert_allclose([epoch["loss"] for epoch in trainer.epochs], expected, rtol=1e-10)


def test_a_second_fit_keeps_the_epoch_that_was_cut_short(comm):
    trainer = trainer_of("allreduce")
    trainer.fit(blobs(), steps=7, batch_size=BATCH)
    trainer.fit(blobs(), steps=5, batch_size=BATCH)
    assert len(trainer.epochs) == 3 and len(trainer.losses) == 12


def test_a_model_belongs_to_the_last_trainer_made_with_it(comm):
    first = trainer_of("zero1")
    first.fit(blobs(), steps=3, batch_size=BATCH)
    values = {name: array.copy() for name, array in first.params.items()}
    second = Trainer(first.model, Adam(), WORLD, "allreduce", precision="float64")
    for name, array in second.params.items():
        numpy.testing.assert_array_equal(array, values[name])
    with pytest.raises(ValueError, match="a model belongs to the last Trainer"):
        first.fit(blobs(), steps=3, batch_size=BATCH)
    second.fit(blobs(), steps=3, batch_size=BATCH)
    for name, array in first.params.items():  # its own, as they were
        numpy.testing.assert_array_equal(array, values[name])


def test_an_optimizer_belongs_to_one_trainer(comm):
    first = trainer_of("allreduce")
    with pytest.raises(ValueError, match="optimizer: expected one of its own"):
        Trainer(trainer_of("allreduce").model, first.optimizer, WORLD)
