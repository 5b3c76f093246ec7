"""Local steps (strategy="diloco") beside a simulation of all ranks in one process."""

import os
import signal
from random import Random

import numpy
import pytest

from mpicoll.train import SGD, Adam, Trainer, mlp
from mpicoll.train.monitor import summary
from mpicoll.train.parallel import LocalSteps, ParametersDiffer
from mpicoll.train.parallel.optimizer_step import BadGradient
from tests.support.cases import RANK, SIZE, WORLD
from tests.support.local_steps import BATCH, DATA, flat, simulated, trained
from tests.support.training import WIDTHS, blobs, raises, same_bits

pytestmark = pytest.mark.mpi

#: each begins at another step, and is awaited in other steps of the next ones
ROUNDS = [
    {"inner_steps": 6, "fragments": 1, "overlap": "none"},
    {"inner_steps": 5, "fragments": 2, "overlap": "none"},
    {"inner_steps": 6, "fragments": 3, "overlap": "all"},
    {"inner_steps": 12, "fragments": 2, "overlap": "gradients"},
    {"inner_steps": 1, "fragments": 1, "overlap": "all"},
]


@pytest.mark.parametrize("optimizer", [Adam, SGD])
@pytest.mark.parametrize("options", ROUNDS)
def test_is_that_of_a_simulation(options, optimizer):
    trainer = trained(optimizer=optimizer, **options)
    losses, parameters = simulated(SIZE, 17, optimizer=optimizer, **options)
    same_bits(trainer)
    assert numpy.allclose(trainer.losses, losses, rtol=1e-9)
    assert numpy.allclose(flat(trainer), parameters, rtol=1e-7, atol=1e-9)


def test_other_outer_steps():
    options = {"inner_steps": 4, "fragments": 2, "overlap": "all"}
    _, parameters = simulated(SIZE, 17, lr=1.0, momentum=0.0, **options)
    trainer = trained(outer_lr=1.0, outer_momentum=0.0, **options)
    assert numpy.allclose(flat(trainer), parameters, rtol=1e-7, atol=1e-9)
    assert trainer.strategy.outer.optimizer.state == {}


@pytest.mark.parametrize("seed", range(5))
def test_any_round(seed):
    any_of = Random(seed)
    steps = any_of.randint(1, 9)
    options = {"inner_steps": steps, "fragments": any_of.randint(1, steps), "overlap": any_of.choice(("none", "all"))}
    lr, momentum, length = any_of.choice((0.3, 1.0)), any_of.choice((0.0, 0.5)), any_of.randint(1, 25)
    losses, parameters = simulated(SIZE, length, lr=lr, momentum=momentum, **options)
    more = {"bucket_bytes": any_of.choice((None, 8, 900)), "accumulate": any_of.choice((1, 3))}
    trainer = trained(steps=length, outer_lr=lr, outer_momentum=momentum, **options, **more)
    assert numpy.allclose(trainer.losses, losses, rtol=1e-9)
    assert numpy.allclose(flat(trainer), parameters, rtol=1e-7, atol=1e-9)


def test_averages_after_each_step_are_steps_of_all_ranks():
    averages = {"inner_steps": 1, "fragments": 1, "overlap": "none", "outer_lr": 1.0, "outer_momentum": 0.0}

    def fitted(**options):
        trainer = Trainer(mlp(WIDTHS, dtype="float64"), SGD(), WORLD, precision="float64", **options)
        trainer.fit(blobs(15 * SIZE, WIDTHS[0]), steps=4, batch_size=3 * SIZE)
        return trainer

    synchronous, local = fitted(strategy="allreduce"), fitted(strategy="diloco", **averages)
    assert numpy.allclose(local.losses, synchronous.losses, rtol=1e-12)
    assert numpy.allclose(flat(local), flat(synchronous), rtol=1e-10)


def test_ranks_of_a_node_take_inner_steps_together():
    """All ranks are on one node: there is one replica, whose outer steps add momentum alone."""
    options = {"outer_lr": 1.0, "outer_momentum": 0.0}
    together = trained(inner="node", inner_steps=4, fragments=2, **options)
    alone = trained(strategy="allreduce")
    assert numpy.allclose(together.losses, alone.losses, rtol=1e-9)
    assert numpy.allclose(flat(together), flat(alone), rtol=1e-7, atol=1e-9)
    assert together.report()["drift"] < 1e-12


@pytest.mark.parametrize("options", ROUNDS)
def test_goes_on_from_a_checkpoint_with_the_same_bits(options, directory):
    """That of step 14, after which exchanges of two of these are on their way."""
    length = {"checkpoint": directory, "checkpoint_every": 7, "keep": 9}
    whole = trained(steps=17, length=length, **options)
    keep_only(directory, 14)
    resumed = trained(steps=17, length={**length, "resume": True}, **options)
    assert resumed.losses == whole.losses and same_bits(resumed) == same_bits(whole)


def test_stopped_by_a_signal_it_goes_on_with_the_same_bits(directory):
    """All ranks have the same parameters then; the checkpoint has those of each."""
    options = {"inner_steps": 12, "fragments": 2}
    whole = trained(steps=24, **options)
    real = LocalSteps.step

    def step(strategy, batches, samples):
        if strategy.update.optimizer.steps == 7 and RANK == SIZE - 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        return real(strategy, batches, samples)

    LocalSteps.step = step
    try:
        stopped = trained(steps=24, length={"checkpoint": directory}, **options)
    finally:
        LocalSteps.step = real
    assert stopped.stopped == "SIGUSR1" and 7 < len(stopped.losses) < 24
    same_bits(stopped)
    resumed = trained(steps=24, length={"checkpoint": directory, "resume": True}, **options)
    assert resumed.losses == whole.losses and same_bits(resumed) == same_bits(whole)


def test_what_a_program_writes_to_parameters_is_where_a_fit_begins():
    options = {"inner_steps": 4, "fragments": 2, "outer_lr": 1e-9, "outer_momentum": 0.0}
    trainer = trained(steps=6, **options)
    for array in trainer.params.values():
        array[...] = 0.25
    trainer.fit(DATA, steps=6, batch_size=BATCH)
    same_bits(trainer)
    assert all(numpy.allclose(array, 0.25, atol=1e-6) for array in trainer.params.values())


@pytest.mark.parametrize("fails", [(13, 13), (13, 14), (14, 15)])
def test_after_an_exception_parameters_are_the_common_ones_and_a_checkpoint_is_where_to_go_on(directory, fails):
    left = [fails[RANK == SIZE - 1]]

    def function(params, batch):
        left[0] -= 1
        if left[0] == 0:
            raise ValueError("a bad sample")
        error = params["w"] - batch[0].mean(axis=0)
        return float(error @ error), {"w": 2 * error}

    width = DATA.features.shape[1]
    trainer = Trainer(function, SGD(0.1), WORLD, "diloco", params={"w": numpy.zeros(width)}, inner_steps=14, fragments=1)
    length = {"steps": 24, "batch_size": BATCH, "checkpoint": directory, "checkpoint_every": 12}
    with pytest.raises(ValueError, match="a bad sample"):
        trainer.fit(DATA, **length)
    weights = trainer.params["w"]
    assert not weights.flags.writeable and trainer.strategy.outer.common[0] == weights[0]
    WORLD.Barrier()
    trainer.fit(DATA, resume=True, **length)
    assert len(trainer.losses) == 24
    same_bits(trainer)


def test_exchanges_of_mpi_itself():
    options = {"inner_steps": 5, "fragments": 2}
    theirs, ours = trained(algorithm="native", **options), trained(**options)
    assert numpy.allclose(flat(theirs), flat(ours), rtol=1e-7, atol=1e-9)
    assert theirs.report()["bytes_estimated"]


@pytest.mark.skipif(SIZE == 1, reason="there are no fewer ranks")
@pytest.mark.parametrize("fewer_first", [True, False])
def test_goes_on_with_other_numbers_of_ranks(fewer_first, directory):
    options = {"inner_steps": 6, "fragments": 3}
    length = {"checkpoint": directory, "checkpoint_every": 7, "keep": 9}
    fewer = WORLD.Split(RANK < SIZE - 1)
    first, then = (fewer, WORLD) if fewer_first else (WORLD, fewer)
    if first is WORLD or RANK < SIZE - 1:
        before = trained(first, steps=14, length=length, **options)
    WORLD.Barrier()
    if then is WORLD or RANK < SIZE - 1:
        trainer = trained(then, steps=24, length={**length, "resume": True}, **options)
        assert len(trainer.losses) == 24 and trainer.losses[-1] < trainer.losses[0]
        if RANK < SIZE - 1:
            assert trainer.losses[:14] == before.losses
    WORLD.Barrier()
    fewer.Free()


@pytest.mark.parametrize("first, then", [("allreduce", "diloco"), ("diloco", "zero1")])
def test_goes_on_from_another_strategy(first, then, directory):
    options = {"diloco": {"inner_steps": 5, "fragments": 2}}
    before = trained(strategy=first, steps=10, length={"checkpoint": directory}, **options.get(first, {}))
    parameters = flat(before)
    keep_only(directory, 10)
    length = {"checkpoint": directory, "resume": True}
    same = trained(strategy=then, steps=10, length=length, **options.get(then, {}))
    assert numpy.array_equal(flat(same), parameters)
    after = trained(strategy=then, steps=25, length=length, **options.get(then, {}))
    assert after.losses[:10] == before.losses and after.losses[-1] < before.losses[-1]
    same_bits(after)


@pytest.fixture
def directory(tmp_path_factory):
    """One for all ranks."""
    return WORLD.bcast(tmp_path_factory.mktemp("checkpoints") if RANK == 0 else None)


def keep_only(directory, step):
    """Drop the checkpoints of later steps."""
    WORLD.Barrier()
    if RANK == 0:
        found = [path for path in directory.iterdir() if path.name.startswith("step")]
        assert any(int(path.name.partition("-")[2]) == step for path in found), found
        for path in found:
            if int(path.name.partition("-")[2]) > step:
                for file in path.iterdir():
                    file.unlink()
                path.rmdir()
    WORLD.Barrier()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("compression", ["int8", "int4", "bfloat16"])
def test_changes_are_sent_in_codes(compression, precision):
    options = {"inner_steps": 5, "fragments": 2, "precision": precision, "steps": 40, "widths": [7, 200, 4]}
    coded = trained(compression=compression, algorithm="pairwise", **options)
    exact = trained(**options)
    same_bits(coded)
    assert abs(coded.losses[-1] - exact.losses[-1]) < 0.2 * exact.losses[0]
    if SIZE > 1 and compression == "int8" and precision == "float32":
        assert coded.report()["bytes_sent_per_step"] < exact.report()["bytes_sent_per_step"]


def test_the_report_tells_of_the_exchanges():
    trainer = trained(inner_steps=5, fragments=2, steps=20)
    report = trainer.report()
    elements = trainer.strategy.reducer.layout.elements
    assert report["outer_bytes"] >= 4 * 8 * elements
    assert report["drift"] == 0 if SIZE == 1 else 0 < report["drift"] < 1
    assert abs(report["bytes_sent_per_step"] - report["bytes_predicted"]) <= 16 * SIZE
    text = " ".join(summary(trainer, WORLD).split())
    assert "2 fragments, each every 5 steps" in text and "bytes held for outer steps" in text


def test_accuracy_is_that_of_the_common_parameters():
    trainer = trained(inner_steps=40, fragments=1, steps=20)
    right = 0
    arrays = list(trainer.params.values())
    *first, (weights, biases) = zip(arrays[::2], arrays[1::2])
    for row, label in zip(*DATA.take_test(slice(0, DATA.tests))):
        for weight, bias in first:
            row = numpy.maximum(row @ weight + bias, 0)
        right += int(numpy.argmax(row @ weights + biases) == label)
    assert trainer.test_accuracy == right / DATA.tests


@pytest.mark.parametrize("options", [{}, {"clip_norm": 1.0}])
def test_a_rank_whose_gradients_are_not_finite_stops_all(options):
    calls = []

    def learn(params, batch):
        calls.append(1)
        bad = RANK == SIZE - 1 and len(calls) == 3
        return 1.0, {"w": numpy.full_like(params["w"], numpy.nan if bad else 0.1)}

    trainer = Trainer(learn, SGD(), WORLD, "diloco", params={"w": numpy.ones((8, 9))}, inner_steps=8, fragments=4, **options)
    with pytest.raises(BadGradient, match=rf"rank {SIZE - 1}: update 3: expected finite gradients.* w"):
        trainer.fit(DATA, steps=12, batch_size=BATCH)
    trainer.fit(DATA, steps=12, batch_size=BATCH)
    same_bits(trainer)


@pytest.mark.parametrize("options", [{}, {"overlap": "none"}, {"inner_steps": 4}], ids=str)
def test_a_rank_that_has_stopped_is_one_error(options):
    """The fragments whose exchange says so, too, are not awaited by the next fit."""
    calls = []

    def learn(params, batch):
        calls.append(1)
        bad = RANK == SIZE - 1 and len(calls) == 3
        return 1.0, {"w": numpy.full_like(params["w"], numpy.nan if bad else 0.1)}

    options = {"inner_steps": 30, "fragments": 3, **options}
    trainer = Trainer(learn, SGD(), WORLD, "diloco", params={"w": numpy.ones((8, 9))}, **options)
    with pytest.raises(BadGradient, match=rf"rank {SIZE - 1}: update 3"):
        trainer.fit(DATA, steps=4, batch_size=BATCH)
    for _ in range(3):
        trainer.fit(DATA, steps=2, batch_size=BATCH)
        same_bits(trainer)
    assert numpy.isfinite(trainer.params["w"]).all()


@pytest.mark.skipif(SIZE == 1, reason="one rank cannot differ")
def test_common_parameters_that_are_not_the_same_are_found():
    trainer = trained(inner_steps=4, fragments=2)
    if RANK == 0:
        next(iter(trainer.params.values()))[0, 0] += 1
    with pytest.raises(ParametersDiffer, match="on rank 0"):
        trainer.fit(DATA, steps=4, batch_size=BATCH)


@pytest.mark.parametrize("options, message", [
    ({"inner_steps": 0}, "inner_steps: expected"),
    ({"fragments": 31}, "fragments: expected at most the 30 inner steps, got 31"),
    ({"inner": "core"}, "inner: expected one of rank, node"),
    ({"outer_lr": 0}, "outer_lr: expected"),
    ({"outer_lr": "fast"}, "outer_lr: expected a number above 0, got 'fast'"),
    ({"outer_momentum": 1}, "outer_momentum: expected"),
    ({"outer_momentum": None}, "outer_momentum: expected a number from 0 to below 1, got None"),
    ({"inner_steps": 4 + (RANK == 0)}, "inner_steps" if SIZE > 1 else None),
    ({"loss_scale": "dynamic"}, "loss_scale: expected None with diloco"),
    ({"reproducible": True}, "reproducible: expected False with diloco"),
    ({"compression": "int8", "error_feedback": True}, "error_feedback: expected False with diloco"),
    ({"parameter_compression": "int8"}, "parameter_compression: expected None"),
    ({"reduction": "reduce_scatter"}, "reduction: expected for diloco one of allreduce"),
])  # fmt: skip
def test_what_it_does_not_know_is_refused(options, message):
    if message is None:  # one rank agrees with itself
        trained(**options)
    else:
        raises(message, trained, **options)
