"""What users give to a trainer by mistake: one clear error on every rank. And what is no mistake, though it looks unusual."""

import functools
import json
import socket
import subprocess
import sys

import numpy
import pytest

from mpicoll import LaunchError
from mpicoll.train import SGD, Dataset, Linear, Model, ReLU, Trainer, mlp
from mpicoll.train.parallel.optimizer_step import BadGradient
from tests.support.cases import RANK, WORLD
from tests.support.training import STRATEGIES, blobs, raises

pytestmark = pytest.mark.mpi


# ---- values of other kinds


def squares(params, batch):
    weights = params[0]
    return float((weights**2).sum()), [2 * weights]


@pytest.mark.parametrize("options, text", [
    ({"clip_norm": "1"}, "clip_norm: expected a norm above 0, or None, got '1'"),
    ({"clip_norm": float("nan")}, "clip_norm: expected a norm above 0, or None, got nan"),
    ({"loss_scale": float("nan")}, "loss_scale: expected dynamic or a number above 0, got nan"),
    ({"loss_scale": [1]}, r"loss_scale: expected dynamic or a number above 0, got \[1\]"),
    ({"model": "mlp"}, "model: expected a Model.*got 'mlp'"),
    ({"model": None}, "model: expected a Model.*got None"),
    ({"optimizer": "adam"}, "optimizer: expected SGD, Adam or AdamW.*got 'adam'"),
    ({"optimizer": SGD}, "optimizer: expected SGD, Adam or AdamW.*got <class"),
    ({"model": squares, "params": [1.0]}, "params: array 0: expected an array, got 1.0"),
    ({"model": squares, "params": 1.0}, "params: expected a dict or a sequence of arrays, got 1.0"),
])  # fmt: skip
def test_arguments(options, text):
    options = {"model": mlp([12, 4]), "optimizer": SGD(), **options}
    raises(text, Trainer, options.pop("model"), options.pop("optimizer"), WORLD, **options)


@pytest.mark.parametrize("result, text", [
    (numpy.zeros(3), r"what the function returns: expected \(loss, gradients\), got array"),
    (1.0, r"what the function returns: expected \(loss, gradients\), got 1.0"),
    ((1.0, 2.0), "gradients: expected a dict or sequence like params, got 2.0"),
])  # fmt: skip
def test_functions_that_return_something_else(result, text):
    trainer = Trainer(lambda params, batch: result, SGD(), WORLD, params=[numpy.ones(3)])
    raises(text, trainer.fit, blobs(), steps=1, batch_size=20)


# ---- programs that are right


def decay(step, rate):
    return rate**step


class Own(ReLU):
    """A layer that does not say how it prints."""

    __repr__ = object.__repr__


@pytest.mark.parametrize("strategy", ["allreduce", "zero1"])
def test_what_prints_with_its_address_is_trained_and_resumed(mpi_tmp_path, strategy):
    def trainer():
        padding = [object() for _ in range(RANK)]  # addresses differ
        schedule = functools.partial(decay, rate=0.9)
        model = Model([Linear(12, 8), Own(), Linear(8, 4)], seed=2, dtype="float64")
        trainer = Trainer(model, SGD(0.1, schedule=schedule), WORLD, strategy, precision="float64")
        return trainer, padding

    length = {"batch_size": 20, "checkpoint": mpi_tmp_path / "checkpoints"}
    (whole, _), (first, _), (rest, _) = trainer(), trainer(), trainer()
    whole.fit(blobs(), steps=8, batch_size=20)
    first.fit(blobs(), steps=3, **length)
    rest.fit(blobs(), steps=8, resume=True, **length)
    assert rest.losses == whole.losses
    assert not any(" at 0x" in name for name in rest.params)


def test_schedules_that_differ_are_still_found(comm):
    if comm.Get_size() > 1:
        schedule = functools.partial(decay, rate=0.9 if RANK else 0.8)
        raises("ranks disagree about the optimizer", Trainer, mlp([12, 4]), SGD(schedule=schedule), WORLD)


# ---- data that is not finite


@pytest.mark.parametrize("loss_scale", ["dynamic", 1024.0])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_loss_scale_that_cannot_help_ends_the_training(strategy, loss_scale):
    features = numpy.full((40, 12), numpy.nan, "float32")
    empty = numpy.zeros((0, 12), "float32"), numpy.zeros(0, int)
    data = Dataset(features, numpy.arange(40) % 4, *empty)
    trainer = Trainer(mlp([12, 4]), SGD(), WORLD, strategy, loss_scale=loss_scale)
    with pytest.raises(BadGradient, match="steps in a row were skipped.*look for nan and infinity in the data"):
        trainer.fit(data, steps=500, batch_size=20)


# ---- a directory for each

HOLDER = """
import fcntl, json, os, sys
number = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.lockf(number, fcntl.LOCK_EX)
os.pwrite(number, json.dumps({"host": sys.argv[2], "process": os.getpid(), "job": sys.argv[3]}).encode(), 0)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def held(mpi_tmp_path):
    """Start another process that holds a checkpoint directory, on rank 0; the function given ends it."""
    directory = mpi_tmp_path / "checkpoints"
    directory.mkdir(exist_ok=True)
    processes = []

    def hold(host):
        if RANK == 0:
            command = [sys.executable, "-c", HOLDER, str(directory / ".lock"), host, "4711"]
            processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            assert processes[0].stdout.readline() == b"held\n"
        WORLD.Barrier()

        def kill():
            for process in processes:
                process.kill()
                process.wait()
            WORLD.Barrier()

        return kill

    yield directory, hold
    for process in processes:
        process.kill()
        process.communicate()


def fit(directory):
    trainer = Trainer(mlp([12, 4]), SGD(), WORLD)
    trainer.fit(blobs(), steps=2, batch_size=20, checkpoint=directory, resume=True)


def test_two_trainings_in_one_directory(held, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    directory, hold = held
    kill = hold(socket.gethostname())
    with pytest.raises(LaunchError, match=r"in use by another training \(process \d+ on .*, SLURM job 4711\).*remove .*\.lock"):
        fit(directory)
    kill()  # it could not tidy up
    fit(directory)
    fit(directory)


def test_a_job_that_is_queued_again_takes_over_from_a_host_that_is_gone(held, monkeypatch):
    directory, hold = held
    hold("a host that is gone")
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    fit(directory)
    if RANK == 0:
        assert json.loads((directory / ".lock").read_text())["host"] == socket.gethostname()


# ---- what is promised of a training


class Watched(Dataset):
    """Data that notes how many test samples are taken at a time."""

    most = 0

    def take_test(self, rows):
        taken = super().take_test(rows)
        self.most = max(self.most, len(taken[1]))
        return taken


@pytest.mark.parametrize("strategy", ["allreduce", "parameter_server"])
def test_test_samples_are_taken_a_block_at_a_time(strategy):
    width, tests = 1 << 13, 700
    features = numpy.broadcast_to(numpy.ones(1, "float64"), (tests, width))  # of a size that takes no memory
    data = Watched(features[:40], numpy.zeros(40, int), features, numpy.zeros(tests, int))
    trainer = Trainer(mlp([width, 2]), SGD(0.01), WORLD, strategy)
    trainer.fit(data, steps=1, batch_size=40)
    assert trainer.test_accuracy == 1.0
    assert RANK > 0 and strategy == "parameter_server" or 0 < data.most * width * 8 <= 16 << 20


def test_what_mpi_moves_by_itself_is_not_called_hidden(comm):
    trainer = Trainer(mlp([12, 64, 4]), SGD(), WORLD, algorithm="native")
    trainer.fit(blobs(), steps=3, batch_size=20)
    assert trainer.report()["hidden"] is None
