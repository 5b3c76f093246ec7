"""What ranks of a training must have in common, and how they learn that they have not."""

import re

import numpy
import pytest

import mpicoll
from mpicoll.train import SGD, Trainer, mlp
from mpicoll.train.parallel import ParametersDiffer
from tests.support.cases import RANK, SIZE, WORLD
from tests.support.training import STRATEGIES, raises, same_bits

pytestmark = pytest.mark.mpi

needs_another = pytest.mark.mpi(min_size=2)
LAST = SIZE - 1


def others():
    """How messages call the ranks before the last."""
    return "rank 0" if SIZE == 2 else f"ranks {', '.join(map(str, range(LAST)))}"


def drifts(text, call, *arguments, **named):
    with pytest.raises(ParametersDiffer, match=text):
        call(*arguments, **named)
    WORLD.Barrier()  # all ranks got here


@needs_another
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_write_on_one_rank_between_two_fits(data, strategy):
    trainer = Trainer(mlp([7, 9, 4], dtype="float64"), SGD(0.1), WORLD, strategy)
    trainer.fit(data, steps=2, batch_size=20)
    name = list(trainer.params)[1]
    if RANK == LAST:
        trainer.params[name][0] += 1e-12
    rest = f"got another {name} on rank"
    if SIZE > 2:
        rest += f" {LAST} than on {others()} (1 of 4 differ)"
    drifts(f"before the first step: expected the same parameters on all ranks, {re.escape(rest)}",
           trainer.fit, data, steps=2, batch_size=20)  # fmt: skip


def writes_at(step):
    """A function that changes its parameters on the last rank when it is called for this step."""
    calls = []

    def function(params, batch):
        features, targets = batch
        calls.append(None)
        if len(calls) == step and RANK == LAST:
            params["b"] += 1.0
        error = features @ params["w"] + params["b"] - targets
        return (error @ error) / (2 * len(targets)), {"w": features.T @ error / len(targets), "b": error.mean()}

    return function


FIRST = {"w": numpy.zeros(7), "b": numpy.zeros(())}


@needs_another
def test_always_names_the_step(data, comm):
    watched = mpicoll.Communicator(comm.Dup(), check="always")
    trainer = Trainer(writes_at(3), SGD(0.01), watched, params=FIRST)
    drifts("after step 3: .* got another b on .*they were the same after step 2;", trainer.fit, data, steps=9, batch_size=20)
    watched.Free()


@needs_another
def test_by_default_each_hundred_steps_and_the_end(data):
    trainer = Trainer(writes_at(3), SGD(0.01), WORLD, params=FIRST)
    drifts("after step 100: .* they were the same at the start;", trainer.fit, data, steps=120, batch_size=20)
    trainer = Trainer(writes_at(3), SGD(0.01), WORLD, params=FIRST)
    drifts("after step 9: ", trainer.fit, data, steps=9, batch_size=20)


@needs_another
def test_off_compares_nothing(data, comm):
    unwatched = mpicoll.Communicator(comm.Dup(), check="off")
    Trainer(writes_at(3), SGD(0.01), unwatched, params=FIRST).fit(data, steps=9, batch_size=20)
    unwatched.Free()


@needs_another
def test_no_checkpoint_of_parameters_that_differ(data, mpi_tmp_path):
    trainer = Trainer(writes_at(3), SGD(0.01), WORLD, params=FIRST)
    drifts("after step 4: ", trainer.fit, data, steps=9, batch_size=20, checkpoint=mpi_tmp_path / "kept", checkpoint_every=2)
    assert [path.name for path in (mpi_tmp_path / "kept").iterdir() if "4" in path.name] == []


def differing(step):
    """A schedule that is no function of the step alone."""
    return 1.0 if RANK < LAST else 0.5


@needs_another
def test_a_schedule_of_the_rank(data):
    trainer = Trainer(mlp([7, 9, 4]), SGD(0.1, schedule=differing), WORLD)
    drifts(r"before the first step: .*got another learning rate on rank", trainer.fit, data, steps=2, batch_size=20)


@needs_another
@pytest.mark.parametrize("options", [{"clip_norm": 0.01}, {"loss_scale": "dynamic"}])
def test_ranks_whose_blas_adds_in_another_order(data, options):
    """A norm is the same bits on ranks with other numbers of threads."""
    threadpoolctl = pytest.importorskip("threadpoolctl")
    with threadpoolctl.threadpool_limits(1 + RANK):
        trainer = Trainer(mlp([7, 300, 300, 4], dtype="float64"), SGD(0.1), WORLD, **options)
        trainer.fit(data, steps=10, batch_size=20)
    same_bits(trainer)


# ---- arguments that ranks need not have in common


def test_metrics_on_rank_0_alone(data, mpi_tmp_path):
    path = mpi_tmp_path / "metrics"
    trainer = Trainer(mlp([7, 9, 4]), SGD(0.1), WORLD)
    trainer.fit(data, steps=3, batch_size=20, metrics=path if RANK == 0 else None)
    assert len(path.read_text(encoding="utf-8").splitlines()) == 4  # three steps, and the epoch


@needs_another
def test_metrics_on_another_rank_alone(data, mpi_tmp_path):
    trainer = Trainer(mlp([7, 9, 4]), SGD(0.1), WORLD)
    path = mpi_tmp_path / "metrics" if RANK == LAST else None
    raises(f"metrics: expected a file on rank 0, which writes it, as on rank {LAST}, got None",
           trainer.fit, data, steps=3, batch_size=20, metrics=path)  # fmt: skip
    assert not (mpi_tmp_path / "metrics").exists()


@pytest.mark.thorough
def test_metrics_that_another_package_refuses(data, mpi_tmp_path, monkeypatch):
    """Rank 0 alone asks it; all ranks are told."""
    pytest.importorskip("wandb")
    monkeypatch.chdir(mpi_tmp_path)
    monkeypatch.setenv("HOME", str(mpi_tmp_path))  # where nobody has logged in
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    trainer = Trainer(mlp([7, 9, 4]), SGD(0.1), WORLD)
    raises(r"metrics: cannot write wandb:project \(No API key configured",
           trainer.fit, data, steps=3, batch_size=20, metrics="wandb:project")  # fmt: skip


class Silent(type(mlp([2, 2]))):
    """Cannot tell answers apart, on the last rank."""

    def count_correct(self, *arguments, **named):
        return None if RANK == LAST else super().count_correct(*arguments, **named)


def test_accuracy_that_one_rank_does_not_know(data):
    model = mlp([7, 9, 4])
    model.__class__ = Silent
    trainer = Trainer(model, SGD(0.1), WORLD)
    trainer.fit(data, steps=3, batch_size=20)
    assert trainer.test_accuracy is None
