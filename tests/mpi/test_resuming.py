"""Trainings that go on from a checkpoint: the losses of a whole run, on other ranks and with other strategies too."""

import json
from pathlib import Path

import numpy
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll.train import SGD, Adam, Trainer, mlp
from mpicoll.train.checkpoint import Checkpoints
from tests.support.cases import RANK, SIZE, WORLD
from tests.support.training import STRATEGIES, WIDTHS, alone, fitted, raises, same_bits

pytestmark = pytest.mark.mpi


@pytest.fixture
def shared(mpi_tmp_path):
    return str(mpi_tmp_path / "checkpoints")


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("precision", ["float64", "float16"])
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_a_resumed_run_has_the_same_losses(data, shared, strategy, precision):
    options = {"precision": precision, "loss_scale": "dynamic" if precision == "float16" else None, "bucket_bytes": 500}
    whole = fitted(WORLD, data, strategy, length={"epochs": 3}, **options)
    first = fitted(WORLD, data, strategy, length={"epochs": None, "steps": 7, "checkpoint": shared}, **options)
    assert first.losses == whole.losses[:7]  # within the second epoch, of 5 steps each
    rest = fitted(WORLD, data, strategy, length={"epochs": 3, "checkpoint": shared, "resume": True}, **options)
    assert rest.losses == whole.losses and same_bits(rest) == same_bits(whole)
    assert [epoch["loss"] for epoch in rest.epochs][-2:] == [epoch["loss"] for epoch in whole.epochs][-2:]
    assert rest.test_accuracy == whole.test_accuracy and len(rest.strategy.meter.steps) == 8


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("before, after", [("zero2", "zero2"), ("zero1", "allreduce"), ("parameter_server", "zero2")])
def test_resume_on_another_number_of_ranks_and_with_another_strategy(data, shared, before, after):
    losses, _ = alone(data, length={"epochs": 3})
    fewer = mpicoll.Communicator(WORLD).Split(RANK < SIZE - 1)
    options = {"bucket_bytes": 500}
    if RANK < SIZE - 1:
        fitted(fewer, data, before, length={"epochs": None, "steps": 7, "checkpoint": shared}, **options)
    fewer.Free()
    WORLD.Barrier()
    more = fitted(WORLD, data, after, length={"epochs": None, "steps": 11, "checkpoint": shared, "resume": True}, **options)
    numpy.testing.assert_allclose(more.losses, losses[:11], rtol=1e-10)
    last = WORLD.bcast(shared)
    if RANK == 0:  # and from all ranks to one
        one = fitted(MPI.COMM_SELF, data, after, length={"epochs": 3, "checkpoint": last, "resume": True}, **options)
        numpy.testing.assert_allclose(one.losses, losses, rtol=1e-10)


def test_checkpoints_of_something_else(data, shared):
    fitted(WORLD, data, length={"epochs": None, "steps": 2, "checkpoint": shared})
    length = {"steps": 4, "batch_size": 13, "seed": 3, "checkpoint": shared}
    raises("checkpoint: expected an empty directory, or resume=True", Trainer(mlp(WIDTHS), Adam(), WORLD).fit, data, **length)
    length["resume"] = True
    raises("checkpoint: layers: expected .*this run's .*Linear.7, 5.* use another directory, got .*Linear.7, 12",
           Trainer(mlp([7, 5, 4]), Adam(), WORLD).fit, data, **length)  # fmt: skip
    raises("checkpoint: optimizer: expected this run's SGD", Trainer(mlp(WIDTHS), SGD(), WORLD).fit, data, **length)
    raises("checkpoint: data: expected this run's", Trainer(mlp(WIDTHS), Adam(), WORLD).fit, data, **{**length, "seed": 4})


@pytest.mark.parametrize(("name", "value"), [
    ("updates", None), ("updates", -1), ("losses", {}), ("losses", ["much"]), ("epochs", [{}]), ("scale", {"value": 1}),
])  # fmt: skip
def test_a_checkpoint_that_was_written_by_hand(data, shared, name, value):
    """Its checksums fit, and what it says does not."""
    options = {"precision": "float16", "loss_scale": "dynamic", "bucket_bytes": 500}
    before = fitted(WORLD, data, length={"epochs": None, "steps": 2, "checkpoint": shared}, **options)
    saved = before.strategy.update.vectors(), before.strategy.reducer.layout.plain[-1]
    found = Checkpoints(shared, before.strategy.comm, 9).load()
    meta = {key: item for key, item in found.meta.items() if key != name} | ({} if value is None else {name: value})
    Checkpoints(shared, before.strategy.comm, 9).save(3, saved[0], dict.fromkeys(saved[0], saved[1]), meta)
    length = {"steps": 4, "batch_size": 13, "seed": 3, "checkpoint": shared, "resume": True}
    raises(f"checkpoint: {name}: expected", Trainer(mlp(WIDTHS, seed=1), Adam(), WORLD, **options).fit, data, **length)


def test_manifests_do_not_grow_with_the_steps_made(data, shared):
    """They are read whole to look at a checkpoint; of a long training the losses alone would be megabytes."""
    fitted(WORLD, data, length={"epochs": None, "steps": 4, "checkpoint": shared, "checkpoint_every": 4, "keep": 9})
    manifests = {}
    for steps in (8, 80):
        length = {"epochs": None, "steps": steps, "checkpoint": shared, "checkpoint_every": steps, "keep": 9, "resume": True}
        fitted(WORLD, data, length=length)
        if RANK == 0:
            document = json.loads((Path(shared) / f"step-{steps:010d}" / "manifest.json").read_text())
            del document["meta"]["epochs"]  # one for each epoch
            manifests[steps] = len(json.dumps(document))
    assert RANK > 0 or manifests[80] < manifests[8] + 20


def test_a_checkpoint_of_an_earlier_version(data, shared):
    """It has the losses in its manifest."""
    before = fitted(WORLD, data, length={"epochs": None, "steps": 7, "checkpoint": shared})
    vectors = before.strategy.update.vectors()
    checkpoints = Checkpoints(shared, before.strategy.comm, 9)
    meta = checkpoints.load().meta | {"losses": before.losses}
    checkpoints.save(7, vectors, dict.fromkeys(vectors, before.strategy.reducer.layout.plain[-1]), meta)
    rest = fitted(WORLD, data, length={"epochs": 3, "checkpoint": shared, "resume": True})
    assert rest.losses == fitted(WORLD, data, length={"epochs": 3}).losses


def test_numbers_of_numpy(data, shared):
    length = {"epochs": None, "steps": 2, "checkpoint_every": 1, "keep": 1, "batch_size": 13, "seed": 3}
    numbers = {name: number and numpy.int64(number) for name, number in length.items()}
    fitted(WORLD, data, length={**numbers, "checkpoint": shared})
    rest = fitted(WORLD, data, length={**length, "steps": 3, "checkpoint": shared, "resume": True})
    assert len(rest.losses) == 3


def test_resume_where_nothing_is_left_to_do(data, shared):
    done = fitted(WORLD, data, "zero2", length={"checkpoint": shared})
    again = fitted(WORLD, data, "zero2", length={"checkpoint": shared, "resume": True})
    assert again.losses == done.losses and same_bits(again) == same_bits(done)
    assert [epoch["loss"] for epoch in again.epochs] == [epoch["loss"] for epoch in done.epochs]  # the seconds are rank 0's
    raises("at least one step", again.report)


def test_a_second_fit_writes_its_own_checkpoints(data, mpi_tmp_path):
    trainer = fitted(WORLD, data, "zero1", length={"epochs": 1, "checkpoint": str(mpi_tmp_path / "one")})
    trainer.fit(data, epochs=1, batch_size=13, checkpoint=str(mpi_tmp_path / "two"))
    WORLD.Barrier()
    assert [path.name for path in (mpi_tmp_path / "two").glob("step-*")] == ["step-0000000005"]
