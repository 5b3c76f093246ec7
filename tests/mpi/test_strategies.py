"""All strategies on any number of ranks: the losses of one process, the bytes of theory, and one error where ranks differ."""

import itertools
import random
import re
import threading

import numpy
import pytest

from mpicoll.train import SGD, Adam, AdamW, Dataset, Trainer, mlp
from mpicoll.train.optim.lr_schedules import parse
from mpicoll.train.parallel.optimizer_step import BadGradient
from mpicoll.train.parallel.reducer import StaleParameters
from tests.support.cases import RANK, SIZE, WORLD
from tests.support.training import STRATEGIES, WIDTHS, alone, fitted, raises, same_bits

pytestmark = pytest.mark.mpi

SHARDED = ("zero1", "zero2")


# ---- the result of one process

#: bytes: every tensor in a bucket of its own, a few tensors together, everything together
BUCKETS = (1, 900, 1 << 20)


def grid():
    """Each strategy with each overlap, and the other options drawn, so that every pair of values meets somewhere."""
    draw = random.Random(5)
    for strategy, overlap, accumulate, bucket in itertools.product(STRATEGIES[1:], ("none", "all"), (1, 3), BUCKETS):
        reductions = (None, "allreduce") if strategy in SHARDED else (None,)
        yield {"strategy": strategy, "overlap": overlap, "accumulate": accumulate, "bucket_bytes": bucket,
               "parameter_bucket_bytes": draw.choice((None, 300)), "reduction": draw.choice(reductions)}  # fmt: skip
    yield from ({"strategy": strategy, "overlap": "gradients", "bucket_bytes": 900} for strategy in STRATEGIES[1:])
    yield from ({"strategy": "parameter_server", "accumulate": accumulate} for accumulate in (1, 3))


def test_losses_bytes_and_bits_of_every_combination(data):
    losses, parameters = alone(data)
    for options in grid():
        trainer = fitted(WORLD, data, **options)
        numpy.testing.assert_allclose(trainer.losses, losses, rtol=1e-10, err_msg=str(options))
        for name, array in trainer.params.items():
            numpy.testing.assert_allclose(array, parameters[name], rtol=1e-8, atol=1e-12, err_msg=str(options))
        same_bits(trainer)
        report = trainer.report()
        assert report["bytes_predicted"] in (None, report["bytes_sent_per_step"]), options


SETTINGS = {
    "momentum": {"optimizer": lambda: SGD(0.05, 0.9, nesterov=True)},
    "decay": {"optimizer": lambda: AdamW(0.01, weight_decay=0.1)},
    "cosine": {"optimizer": lambda: Adam(0.01, schedule=parse("cosine:8", warmup=2))},
    "clipped": {"optimizer": lambda: SGD(0.3), "clip_norm": 0.2},
    "scaled": {"optimizer": Adam, "loss_scale": 1024.0},
}


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_losses_with_other_optimizers_schedules_and_norms(data, setting):
    losses, _ = alone(data, **setting)
    for strategy in STRATEGIES:
        trainer = fitted(WORLD, data, strategy, bucket_bytes=500, **setting)
        numpy.testing.assert_allclose(trainer.losses, losses, rtol=1e-10, err_msg=strategy)


def test_clipping_changes_the_losses(data):
    """Or the test above would hold for a norm that is never reached."""
    assert alone(data, **SETTINGS["clipped"])[0] != alone(data, optimizer=lambda: SGD(0.3))[0]


def test_losses_in_float32(data):
    losses, _ = alone(data, precision="float32")
    for strategy in STRATEGIES:
        trainer = fitted(WORLD, data, strategy, precision="float32", bucket_bytes=500)
        numpy.testing.assert_allclose(trainer.losses[:10], losses[:10], rtol=1e-5, err_msg=strategy)
        same_bits(trainer)


@pytest.mark.parametrize("strategy", STRATEGIES[1:])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_overlap_changes_no_bit(data, strategy, accumulate):
    options = {"bucket_bytes": 500, "parameter_bucket_bytes": 900, "accumulate": accumulate}
    trainers = [fitted(WORLD, data, strategy, overlap=overlap, **options) for overlap in ("none", "gradients", "all")]
    assert trainers[0].losses == trainers[1].losses == trainers[2].losses
    assert len({same_bits(trainer) for trainer in trainers}) == 1


@pytest.mark.parametrize("algorithm", ["circulant", "halving_doubling", "pairwise", "native"])
def test_other_algorithms_of_zero(data, algorithm):
    losses, _ = alone(data)
    trainer = fitted(WORLD, data, "zero2", algorithm=algorithm, bucket_bytes=500)
    numpy.testing.assert_allclose(trainer.losses, losses, rtol=1e-10)
    assert trainer.report()["bytes_estimated"] == (algorithm == "native")


def test_padding_is_no_gradient():
    """Under zero2 a bucket's padding lies where a longer bucket's gradients were; a norm must not see them."""
    draw = numpy.random.default_rng(0)
    features, labels = draw.standard_normal((60, 7)), draw.integers(0, 5, 60)
    data = Dataset(features, labels, features[:0], labels[:0])
    losses = []
    for strategy in ("allreduce", "zero2"):
        model = mlp([7, 9, 11, 5], seed=1, dtype="float64")
        trainer = Trainer(model, SGD(0.5), WORLD, strategy, bucket_bytes=1, clip_norm=0.05)
        trainer.fit(data, steps=20, batch_size=30)
        losses.append(trainer.losses)
    numpy.testing.assert_allclose(*losses, rtol=1e-12)


# ---- costs


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("strategy", STRATEGIES[1:])
def test_bytes_are_those_of_theory(data, strategy, accumulate):
    report = fitted(WORLD, data, strategy, accumulate=accumulate, bucket_bytes=600).report()
    halves = accumulate + 1 if strategy == "zero2" else 2
    assert report["bytes_sent_per_step"] == halves * (SIZE - 1) * report["parameter_bytes"] // SIZE
    plain = 8 * sum(rows * columns + columns for rows, columns in zip(WIDTHS, WIDTHS[1:]))
    assert plain <= report["parameter_bytes"] < plain + 8 * SIZE * 6  # padding: less than a share in each of 6 buckets


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("strategy", SHARDED)
def test_memory_is_divided_by_the_ranks(data, strategy, precision, accumulate):
    model, bucket = mlp([7, 60, 60, 60, 60, 4]), 4000
    trainer = Trainer(model, Adam(), WORLD, strategy, precision=precision, bucket_bytes=bucket, accumulate=accumulate)
    trainer.fit(data, steps=2, batch_size=13)
    report, elements = trainer.report(), sum(array.size for array in trainer.params.values())
    itemsize, arrays = (2, 3) if precision == "float16" else (4, 2)  # float32 masters besides Adam's two
    assert report["optimizer_bytes"] == pytest.approx(arrays * 4 * elements / SIZE, rel=0.05)
    largest = itemsize * max(one.size for one in trainer.strategy.reducer.layout.buckets)
    kept = report["parameter_bytes"] // (SIZE if strategy == "zero2" else 1)  # a few elements of padding included
    assert kept <= report["gradient_bytes"] <= kept + (3 + (SIZE == 1)) * largest
    if strategy == "zero1":
        assert report["gradient_bytes"] == report["parameter_bytes"]


# ---- 16 bits, overflow, nan


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # the dynamic scale begins too high
def test_sixteen_bits_train_alike_on_all_ranks(data, strategy, precision):
    if precision == "bfloat16":
        pytest.importorskip("ml_dtypes")
    options = {"precision": precision, "loss_scale": "dynamic", "bucket_bytes": 300}
    trainer = fitted(WORLD, data, strategy, lambda: Adam(0.01), {"epochs": 6}, **options)
    same_bits(trainer)
    assert trainer.losses[-1] < trainer.losses[0] / 2
    assert {array.dtype.name for array in trainer.params.values()} == {precision}
    features, labels = data.take(slice(0, 20))
    logits = trainer.model.forward(features.astype("float32"))  # the model can be used, in float32
    assert logits.dtype == "float32" and (logits.argmax(axis=1) == labels).mean() > 0.5


def spoiled(data, value):
    """One sample of one value that is so large, or nan; the rank that gets it alone sees it before the reduction."""
    features = data.features.copy()
    features[17, 2] = value
    return Dataset(features, data.labels, data.test_features, data.test_labels)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_overflow_on_one_rank_is_skipped_by_all(data, strategy):
    scaled = {"precision": "float16", "loss_scale": "dynamic", "bucket_bytes": 300}
    trainer = fitted(WORLD, spoiled(data, 1e7), strategy, lambda: Adam(0.01), {"epochs": 4}, **scaled)
    scale = trainer.strategy.update.scale
    assert 4 <= scale.skipped < len(trainer.losses) == 20  # once per epoch, with that sample
    assert trainer.optimizer.steps == 20 - scale.skipped and scale.value == 65536 / 2**scale.skipped
    assert len(set(WORLD.allgather((scale.skipped, scale.value)))) == 1
    assert all(numpy.isfinite(array.astype("float32")).all() for array in trainer.params.values())
    same_bits(trainer)


def refused(trainer, data, **length):
    """The BadGradient that all ranks raise."""
    with pytest.raises(BadGradient) as raised:
        trainer.fit(data, **{"epochs": 2, "batch_size": 13, "seed": 3, **length})
    text, *others = WORLD.allgather(str(raised.value))
    assert set(others) <= {text}
    assert not any("mpicoll-prefetch" in thread.name for thread in threading.enumerate())
    return text


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("overlap", ["none", "gradients", "all"])
@pytest.mark.parametrize("options", [
    {}, {"bucket_bytes": 1}, {"precision": "float16"}, {"precision": "bfloat16"}, {"clip_norm": 1.0}, {"accumulate": 2},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("value", [numpy.nan, numpy.inf])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_bad_gradient_is_one_error_on_all_ranks_that_names_it(data, strategy, overlap, options, value):
    if options.get("precision") == "bfloat16":
        pytest.importorskip("ml_dtypes")
    trainer = Trainer(mlp(WIDTHS), Adam(), WORLD, strategy, **{"bucket_bytes": 300, "overlap": overlap, **options})
    text = refused(trainer, spoiled(data, value))
    assert re.match(r"update \d: expected finite gradients, got infinity or nan in .*(weights|biases) of layer", text), text
    assert all(numpy.isfinite(array.astype("float32")).all() for array in trainer.params.values())
    same_bits(trainer)
    trainer.fit(data, epochs=1, batch_size=13)  # nothing is left under way that would be in the way
    same_bits(trainer)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("overlap", ["none", "all"])
def test_a_bad_gradient_of_the_last_step_is_found(data, strategy, overlap, mpi_tmp_path):
    """Before a checkpoint of that step is written, too."""
    spoil = numpy.full(5, numpy.nan)
    step = lambda params, batch: (1.0, [spoil if len(calls) == 3 else params[0] * 0])
    calls = []
    counted = lambda params, batch: (calls.append(1), step(params, batch))[1]
    trainer = Trainer(counted, SGD(), WORLD, strategy, params=[numpy.ones(5)], overlap=overlap)
    text = refused(trainer, data, epochs=None, steps=3, checkpoint=str(mpi_tmp_path / "checkpoints"), checkpoint_every=1)
    assert text.startswith("update 3: expected finite gradients, got infinity or nan in array 0")
    WORLD.Barrier()
    found = sorted(path.name for path in (mpi_tmp_path / "checkpoints").glob("step-*"))
    assert found == ["step-0000000001", "step-0000000002"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_with_a_norm_a_bad_gradient_changes_no_bucket(data, strategy):
    calls = []

    def learn(params, batch):
        calls.append(1)
        spoil = [numpy.nan if len(calls) == 3 and number == 1 else 1.0 for number in range(3)]
        return 1.0, [numpy.full(8, value) for value in spoil]

    params = [numpy.ones(8) for _ in range(3)]
    trainer = Trainer(learn, SGD(0.5), WORLD, strategy, params=params, bucket_bytes=64, clip_norm=1e9)
    refused(trainer, data, epochs=None, steps=4)
    for steps in (2, 3):  # those before it; then one more
        values = {float(value) for array in trainer.params.values() for value in array}
        assert values == {1 - 0.5 * steps} and trainer.optimizer.steps == steps
        trainer.fit(data, steps=1, batch_size=13)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_norm_that_overflows_is_one_error(strategy, data):
    huge = lambda params, batch: (1.0, [numpy.full(5, 1e200)])
    trainer = Trainer(huge, SGD(), WORLD, strategy, params=[numpy.ones(5)], clip_norm=1.0)
    assert "expected finite gradients, got a norm beyond float64" in refused(trainer, data)


class Peeking(SGD):
    """Reads parameters in the middle of an update."""

    def apply(self, *arguments):
        super().apply(*arguments)
        self.look()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_parameters_cannot_be_read_while_they_are_updated(data, strategy):
    optimizer = Peeking()
    trainer = Trainer(mlp(WIDTHS), optimizer, WORLD, strategy)
    evaluate = lambda: trainer.model.forward(numpy.zeros((2, 7)), trainer.strategy.hooks)
    for look in (lambda: trainer.params, trainer.state_dict, lambda: trainer.model.parameters, evaluate):
        optimizer.look = lambda look=look: _stale(look)
        trainer.fit(data, steps=2, batch_size=13)
        optimizer.look = lambda: None
    assert trainer.params


def _stale(look):
    with pytest.raises(StaleParameters, match="are those of update .*, expected update .*: they were read between"):
        look()


# ---- ranks that differ


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name, values", [
    ("strategy", ("zero1", "zero2")), ("bucket_bytes", (1000, 2000)), ("overlap", ("all", "none")), ("accumulate", (1, 2)),
    ("parameter_bucket_bytes", (None, 2000)), ("precision", ("float32", "float16")), ("clip_norm", (None, 1.0)),
    ("algorithm", ("ring", "circulant")), ("loss_scale", ("dynamic", None)),
])
def test_different_options_are_found_at_construction(name, values):
    mine = {name: values[RANK == SIZE - 1]}
    raises(f"ranks disagree about {name}: ranks? 0.*: {values[0]}; rank {SIZE - 1}: {values[1]}",
           Trainer, mlp(WIDTHS), SGD(), WORLD, **{"strategy": "zero1", **mine})  # fmt: skip
