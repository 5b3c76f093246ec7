"""One loss curve, bit for bit, at any number of ranks and with every strategy."""

import itertools
import json

import numpy
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll.train import SGD, Adam, Trainer, mlp
from mpicoll.train.optim import square_of_words, whole_squares
from tests.support.cases import RANK, SIZE, WORLD
from tests.support.exact import ALL
from tests.support.training import (
    STRATEGIES,
    WIDTHS,
    alone,
    fitted,
    raises,
    same_bits,
    train_command,
)

pytestmark = pytest.mark.mpi

SETTINGS = {
    "float64": {"precision": "float64"},
    "float32": {"precision": "float32", "optimizer": lambda: SGD(0.1, 0.9)},
    "float16, scaled": {"precision": "float16", "loss_scale": "dynamic"},
    "clipped": {"precision": "float32", "clip_norm": 0.2, "optimizer": lambda: SGD(0.3)},
}


def bits(trainer):
    same_bits(trainer)
    parameters = b"".join(array.tobytes() for array in trainer.params.values())
    return numpy.array(trainer.losses).tobytes(), parameters, trainer.test_accuracy


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_the_same_bits_as_one_process(data, setting):
    one = WORLD.bcast(bits_alone(data, setting) if RANK == 0 else None)
    overlaps = ("none", "gradients", "all") if ALL else ("none", "all")
    for strategy, overlap in itertools.product(STRATEGIES, overlaps):
        more = {"overlap": overlap, "bucket_bytes": 300 if overlap == "all" else None, "reproducible": 6}
        if strategy == "zero1" and overlap == "all":
            more["reduction"] = "allreduce"
        assert bits(fitted(WORLD, data, strategy, **{**setting, **more})) == one, (strategy, overlap)


def bits_alone(data, setting):
    trainer = fitted(MPI.COMM_SELF, data, "allreduce", reproducible=6, **setting)
    return (numpy.array(trainer.losses).tobytes(), b"".join(array.tobytes() for array in trainer.params.values()),
            trainer.test_accuracy)  # fmt: skip


def test_it_is_the_ordinary_training_but_for_rounding(data):
    losses, parameters = alone(data)
    trainer = fitted(WORLD, data, "zero2", reproducible=5)
    numpy.testing.assert_allclose(trainer.losses, losses, rtol=1e-9)
    for name, array in trainer.params.items():
        numpy.testing.assert_allclose(array, parameters[name], rtol=1e-7, atol=1e-12)


def test_going_on_with_another_number_of_ranks(data, directory):
    """From a checkpoint of one rank; the losses are those of a run that was never interrupted."""
    whole = fitted(WORLD, data, "zero1", reproducible=6, length={"epochs": 4})
    if RANK == 0:
        fitted(MPI.COMM_SELF, data, "allreduce", reproducible=6, length={"checkpoint": directory})
    WORLD.Barrier()
    later = fitted(WORLD, data, "zero1", reproducible=6, length={"epochs": 4, "checkpoint": directory, "resume": True})
    assert later.losses == whole.losses and bits(later)[1] == bits(whole)[1]


def test_gradients_that_are_not_finite_are_found_alike(data):
    for strategy in STRATEGIES:
        trainer = fitted(WORLD, data, strategy, precision="float16", loss_scale="dynamic", reproducible=6, length={"epochs": 1})
        skipped = trainer.strategy.update.scale.skipped
        assert set(WORLD.allgather(skipped)) == {skipped}


def test_the_communicator_of_the_user_stays_as_it_is(comm, data):
    trainer = fitted(comm, data, reproducible=True)
    assert trainer.comm.reproducible and not comm.reproducible
    comm.Allreduce(MPI.IN_PLACE, numpy.ones(3), algorithm="native")


def test_what_is_refused():
    def make(**options):
        return Trainer(mlp(WIDTHS), Adam(), WORLD, reproducible=options.pop("reproducible", 8), **options)

    raises("accumulate: expected 1", make, accumulate=2)
    raises("algorithm: expected one that has a schedule", make, algorithm="native")
    raises("reproducible: expected an integer of at least 1", make, reproducible=-1)
    if SIZE > 1:
        raises(f"at least {SIZE} micro-batches", make, reproducible=SIZE - 1)


def test_a_deterministic_communicator_trains(data):
    comm = mpicoll.Communicator(WORLD.Dup(), deterministic=True)
    first = fitted(comm, data, "allreduce", precision="float32")
    other = fitted(comm, data, "allreduce", precision="float32", bucket_bytes=200, algorithm="recursive_doubling")
    assert first.losses == other.losses and bits(first) == bits(other)
    comm.Free()


def test_squares_are_summed_alike_in_any_parts():
    values = numpy.random.default_rng(2).standard_normal(70_000).astype("f4")
    exponent = 4
    whole = whole_squares(values, exponent)
    parts = [whole_squares(part, exponent) for part in numpy.split(values, [1, 900, 33_000])]
    assert tuple(map(sum, zip(*parts))) == whole
    assert square_of_words(whole, exponent) == pytest.approx(float((values.astype("f8") ** 2).sum()), rel=1e-13)


def test_the_command(directory, excepthooks):
    words = ["--reproducible", "6", "--hidden", "16", "--steps", "4", "--data", "synthetic:96,8,3", "--strategy", "zero1"]
    train_command(*words, "--json", str(directory / "run.json"))
    WORLD.Barrier()
    document = json.loads((directory / "run.json").read_text())
    assert document["config"]["reproducible"] == 6 and len(document["losses"]) == 4
