"""What a training says of itself at its end: why nothing is hidden, memory in theory, what was skipped."""

import json
import re

import numpy
import pytest

from mpicoll.train import SGD, Adam, Trainer, mlp
from mpicoll.train.monitor.report import document, likely_cause, memory_in_theory, summary
from tests.support.cases import SIZE, WORLD
from tests.support.training import STRATEGIES, blobs, train

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("options, cause", [
    ({"strategy": "parameter_server"}, "a parameter server sends nothing beside computation"),
    ({"options": {"algorithm": "native"}}, "MPI's own calls move little while ranks compute"),
    ({"strategy": "zero1"}, "all gradients start together, after the last; take smaller --bucket-bytes"),
    ({"options": {"bucket_bytes": 100}}, "1000 ranks share [0-9]+ cores"),
])
def test_why_nothing_is_hidden(options, cause):
    trainer = train(WORLD, **options)
    assert re.search(cause, likely_cause(trainer, trainer.report(), [("here", 1), ("there", 1000)]))


def test_why_a_function_hides_nothing():
    trainer = Trainer(lambda params, batch: (0.0, params), SGD(), WORLD, params=[numpy.ones(5)])
    trainer.fit(blobs(), steps=2, batch_size=20)
    assert "has all its gradients at once" in likely_cause(trainer, trainer.report(), [("here", SIZE)])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_memory_in_theory(strategy):
    trainer = train(WORLD, strategy, Adam, options={"bucket_bytes": 600} if strategy == "zero2" else {})
    theory, report = memory_in_theory(trainer), trainer.report()
    largest = 8 * max(bucket.size for bucket in trainer.strategy.reducer.layout.buckets)
    for name, value in theory.items():
        more = 3 * largest if (strategy, name) == ("zero2", "gradient") else 0
        assert value <= report[f"{name}_bytes"] <= value + more + 3 * 8 * SIZE, name  # padding


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_summary_says_what_was_skipped_and_sent():
    trainer = train(WORLD, "zero2", lambda: SGD(1e200), options={"loss_scale": 1.0})
    lines, report = summary(trainer, trainer.comm), trainer.report()
    skipped = trainer.strategy.update.scale.skipped
    assert f"{skipped} of 15 steps skipped, because gradients were not finite; loss scale 1" in lines
    assert f"{report['bytes_sent_per_step']:,} gradients/parameters (theory {report['bytes_predicted']:,})" in lines
    assert ("hidden" in lines) == (SIZE > 1 and report["hidden"] is not None)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_diverged_training_is_valid_json():
    trainer = train(WORLD, optimizer=lambda: SGD(1e200), options={"loss_scale": 1.0})  # such steps are skipped then
    assert not numpy.isfinite(trainer.losses[-1])
    text = json.dumps(document(trainer, {}, trainer.comm), allow_nan=False)
    assert json.loads(text)["losses"][-1] is None and json.loads(text)["epochs"][-1]["loss"] is None


@pytest.mark.parametrize("strategy", ["allreduce", "zero2"])
def test_the_first_run_has_something_to_overlap_and_says_what_zero2_holds(strategy):
    """The model of `mpicoll train` without options: its buckets follow its size."""
    trainer = Trainer(mlp([64, 512, 512, 10]), SGD(), WORLD, strategy=strategy)
    trainer.fit(blobs(64, 64, 10), steps=2, batch_size=16)
    said = summary(trainer, trainer.comm)
    assert len(trainer.strategy.reducer.layout.buckets) > 1 or SIZE == 1
    assert "take smaller --bucket-bytes" not in said
    held = "are buckets on their way, each of whole tensors: the largest tensor is 87% of the model; with many smaller"
    assert (held in said) == (strategy == "zero2" and SIZE > 1), said
