"""Training on the stand-in for a device: the losses of the host, and how often the host waits for it."""

from threading import get_ident

import numpy
import pytest
from mpi4py import MPI

from mpicoll import gpu
from mpicoll.train import SGD, Adam, Trainer, mlp
from mpicoll.train.data import LocalLoader, Sampler
from mpicoll.train.parallel.optimizer_step import BadGradient
from tests.support.fakes import fakearithmetic, fakecupy
from tests.support.cases import SIZE, WORLD
from tests.support.device_training import DeviceTraining, losses
from tests.support.training import WIDTHS

pytestmark = [pytest.mark.mpi, pytest.mark.thorough]


@pytest.fixture
def xp(monkeypatch):
    """The stand-in, with arithmetic."""
    yield fakearithmetic.install(monkeypatch)
    fakecupy.cuda.Device(0).use()
    gpu.device.optional_cupy.cache_clear()


class TestFakeDeviceTraining(DeviceTraining):
    pass


@pytest.mark.parametrize(("strategy", "options"), [
    ("allreduce", {}), ("zero1", {}), ("zero2", {"clip_norm": 0.5}), ("zero1", {"loss_scale": 64.0}),
])  # fmt: skip
def test_the_host_waits_as_often_for_many_buckets_as_for_one(xp, data, strategy, options):
    """Of numbers that a step reads, and of the meter, which waits at its end."""
    counts = []
    for bucket_bytes in (1 << 20, 1):
        counts.append([])
        for steps in (1, 3):
            fakearithmetic.reads.clear()
            losses(xp, data, MPI.COMM_SELF, strategy=strategy, bucket_bytes=bucket_bytes, steps=steps, **options)
            counts[-1].append(len(fakearithmetic.reads))
    assert counts[0][1] - counts[0][0] == counts[1][1] - counts[1][0]


def test_reproducible_training_has_the_bits_of_one_rank(xp, data):
    options = {"strategy": "zero1", "precision": "float32", "reproducible": max(SIZE, 2), "steps": 2}
    assert losses(xp, data, **options) == losses(xp, data, MPI.COMM_SELF, **options)


def test_no_phase_waits_for_the_device(xp, data):
    trainer = Trainer(mlp(WIDTHS).to(xp), SGD(), WORLD, bucket_bytes=1)
    meter = trainer.strategy.meter
    settle, settled = meter._clock.settle, []
    meter._clock.settle = lambda: settled.append(1) or settle()
    trainer.fit(data, steps=4, batch_size=20)
    assert len(settled) == 4


def test_a_gradient_that_is_not_finite(xp, data):
    features = data.features.copy()
    features[:] = numpy.nan
    trainer = Trainer(mlp(WIDTHS).to(xp), Adam(), WORLD, "zero1", bucket_bytes=300)
    with pytest.raises(BadGradient, match="update 1: expected finite gradients, got infinity or nan in"):
        trainer.fit(type(data)(features, data.labels, data.test_features, data.test_labels), steps=2, batch_size=20)
    assert all(numpy.isfinite(array.get()).all() for array in trainer.params.values())


def test_the_thread_that_reads_ahead_stays_on_the_host(comm, xp, data, monkeypatch):
    """What it copied would lie in the order of another stream than the one in which it is used."""
    threads, asarray = set(), xp.asarray
    monkeypatch.setattr(xp, "asarray", lambda *given, **named: threads.add(get_ident()) or asarray(*given, **named))
    loader = LocalLoader(comm, xp.empty(1), numpy.dtype("f4"), meter=None)
    loader.load(data)
    sampler = Sampler(61, 32, 0, comm.rank, comm.size)
    for batch in loader.batches(sampler, sampler.batches(0), 1):
        assert all(type(array) is xp.ndarray for array in batch[0])
    assert threads == {get_ident()}
