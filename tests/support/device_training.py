"""What must hold of training on a device, whether the device is real or not: the losses of the host."""

import numpy
import pytest

from mpicoll.train import SGD, Adam, Trainer, mlp
from tests.support.cases import SIZE, WORLD
from tests.support.training import STRATEGIES, WIDTHS

PRECISIONS = ("float64", "float32", "float16", "bfloat16")


def losses(module, data, comm=WORLD, optimizer=Adam, strategy="allreduce", steps=3, **options):
    """Those of some steps with arrays of this module."""
    trainer = Trainer(mlp(WIDTHS, seed=1).to(module), optimizer(0.01), comm, strategy, **options)
    trainer.fit(data, steps=steps, batch_size=4 * SIZE + 1, seed=3)
    assert trainer.test_accuracy is not None
    return trainer.losses


class DeviceTraining:
    """Checks over an array module `xp`."""

    @pytest.mark.parametrize("precision", PRECISIONS)
    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_losses_are_those_of_the_host(self, xp, mode, data, strategy, precision):
        if precision == "bfloat16":
            pytest.importorskip("ml_dtypes", reason="NumPy has no bfloat16 of its own")
        options = {"strategy": strategy, "precision": precision, "bucket_bytes": 300}
        numpy.testing.assert_allclose(losses(xp, data, **options), losses(numpy, data, **options), atol=1e-4)

    @pytest.mark.parametrize("overlap", ["none", "gradients", "all"])
    @pytest.mark.parametrize("strategy", STRATEGIES[1:])
    def test_overlap_and_micro_batches(self, xp, mode, data, strategy, overlap):
        options = {"strategy": strategy, "overlap": overlap, "accumulate": 2, "clip_norm": 0.5, "bucket_bytes": 300}
        wanted = losses(numpy, data, optimizer=SGD, **options)
        numpy.testing.assert_allclose(losses(xp, data, optimizer=SGD, **options), wanted, atol=1e-4)

    @pytest.mark.parametrize("precision", ["float32", "bfloat16"])
    @pytest.mark.parametrize("overlap", ["none", "all"])
    def test_local_steps(self, xp, mode, data, overlap, precision):
        if precision == "bfloat16":
            pytest.importorskip("ml_dtypes", reason="NumPy has no bfloat16 of its own")
        options = {"strategy": "diloco", "inner_steps": 3, "fragments": 2, "overlap": overlap, "steps": 8}
        options["precision"] = precision
        numpy.testing.assert_allclose(losses(xp, data, **options), losses(numpy, data, **options), atol=1e-4)

    def test_on_a_stream_of_its_own(self, xp, mode, data):
        """Nothing else orders what is computed, copied and sent than the current stream."""
        with xp.cuda.Stream(non_blocking=True):
            found = losses(xp, data, strategy="zero1", bucket_bytes=300)
        numpy.testing.assert_allclose(found, losses(numpy, data, strategy="zero1", bucket_bytes=300), atol=1e-4)
