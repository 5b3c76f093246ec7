"""What is wrong on one rank alone, in the trainer: one error on all ranks, and nobody waits for the one that gave up."""

import sys

import numpy
import pytest

from mpicoll.errors import ArgumentError, LaunchError
from mpicoll.train import SGD, Adam, Dataset, Trainer, mlp
from tests.support.cases import RANK, SIZE, WORLD
from tests.support.training import STRATEGIES, WIDTHS, fitted

pytestmark = pytest.mark.mpi(min_size=2)

LAST = RANK == SIZE - 1
EACH = pytest.mark.parametrize("strategy", STRATEGIES)


def everywhere(text, call, *arguments, error=ArgumentError, **options):
    """The same error on all ranks."""
    with pytest.raises(error, match=text) as raised:
        call(*arguments, **options)
    assert len(set(WORLD.allgather(str(raised.value)))) == 1


@EACH
def test_an_option_that_does_not_exist(strategy):
    everywhere("options: expected some of .*, got 'buckets'", Trainer, mlp(WIDTHS), SGD(), WORLD, strategy,
               **({"buckets": 3} if LAST else {}))  # fmt: skip


@EACH
def test_a_function_without_params(strategy):
    params = {} if LAST else {"params": [numpy.zeros(3)]}
    everywhere("params: expected the arrays that the function trains",
               Trainer, lambda *_: None, SGD(), WORLD, strategy, **params)  # fmt: skip


@EACH
def test_a_missing_package(strategy, monkeypatch, data):
    if LAST:
        monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    everywhere("ml_dtypes", Trainer, mlp(WIDTHS), SGD(), WORLD, strategy, precision="bfloat16", error=LaunchError)
    if LAST:
        monkeypatch.setitem(sys.modules, "tqdm", None)
    everywhere("tqdm", Trainer(mlp(WIDTHS), SGD(), WORLD, strategy).fit, data, epochs=1, progress=True, error=LaunchError)


@EACH
def test_an_optimizer_with_the_state_of_another_model(strategy):
    used = Adam()
    if LAST or strategy == "parameter_server" and RANK == 0:
        used.allocate(5, numpy.zeros(5))
    everywhere("total: expected 5 elements", Trainer, mlp(WIDTHS), used, WORLD, strategy)


@EACH
@pytest.mark.parametrize("what", ["arrays", "nothing"])
def test_something_else_than_a_data_set(strategy, what, data):
    bad = RANK == 0 if strategy == "parameter_server" else LAST
    given = {"arrays": (data.features, data.labels), "nothing": None}[what] if bad else data
    everywhere(r"dataset of rank \d: expected a Dataset on (every rank|rank 0), got ",
               Trainer(mlp(WIDTHS), SGD(), WORLD, strategy).fit, given, epochs=1)  # fmt: skip


@pytest.mark.parametrize("strategy", ["allreduce", "zero1", "zero2"])
@pytest.mark.parametrize("change", ["labels", "features", "one more", "width"])
def test_other_data(strategy, change, data):
    x, y = data.features.copy(), data.labels.copy()
    if LAST:
        x, y = {"labels": (x, y[::-1]), "features": (x / 255, y), "one more": (x[:-1], y[:-1]), "width": (x[:, 1:], y)}[change]
    everywhere("ranks disagree about (checksum of|features|training samples)",
               Trainer(mlp(WIDTHS), SGD(), WORLD, strategy).fit, Dataset(x, y, x[:0], y[:0]), epochs=1)  # fmt: skip


@EACH
def test_a_checkpoint_that_cannot_be_used(strategy, data, mpi_tmp_path):
    shared = str(mpi_tmp_path / "checkpoints")
    fitted(WORLD, data, strategy, SGD, length={"epochs": 1, "checkpoint": shared})
    everywhere("vector: expected one of parameters, losses, got 'velocity'", fitted, WORLD, data, strategy,
               lambda: SGD(momentum=0.9),
               length={"epochs": 2, "checkpoint": shared, "resume": True})  # fmt: skip


@EACH
def test_metrics_on_a_disk_that_is_full(strategy, data, capfd):
    """The training goes on: its metrics are not worth its end."""
    trainer = Trainer(mlp(WIDTHS), SGD(), WORLD, strategy)
    trainer.fit(data, epochs=1, batch_size=13, metrics="/dev/full")
    assert len(trainer.losses) == 5
    said = capfd.readouterr().err
    assert said.count("metrics: cannot write /dev/full any more (No space left on device)") == (RANK == 0), said
