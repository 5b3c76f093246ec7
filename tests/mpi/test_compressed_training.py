"""Trainings whose gradients are sent in codes: the bits of a simulation in NumPy, and nothing is lost by error feedback."""

from contextlib import contextmanager

import numpy
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll.codes import codes_of
from mpicoll.support.arrays import element_type
from mpicoll.train import SGD, Dataset, Trainer
from mpicoll.train.monitor import summary
from mpicoll.train.parallel import fitting
from mpicoll.train.parallel.optimizer_step import BadGradient
from tests.support.cases import RANK, SIZE, WORLD
from tests.support.compressing import CompressedSum, quantised
from tests.support.exact import in_canonical_order
from tests.support.training import fitted, raises, same_bits

pytestmark = pytest.mark.mpi

STRATEGIES = ("allreduce", "zero1", "zero2")
SHAPES = [(30, 21), (17,), (16, 40), (5,)]
WEIGHTS = [0, 2]
#: it has a schedule with codes also where all ranks share a node
CODED = {"algorithm": "pairwise", "compression": "int8"}
DATA = Dataset.split(numpy.ones((60 * SIZE, 1)), numpy.zeros(60 * SIZE, int), 0)


def gradients_of(rank, call):
    """What a rank contributes in a call of its function: of mixed magnitude, and much the same in each."""
    random = numpy.random.default_rng([rank, 7])
    steady = [random.standard_normal(shape) * 10.0 ** random.integers(-4, 2, shape) for shape in SHAPES]
    random = numpy.random.default_rng([rank, call])
    return [(part + 0.1 * random.standard_normal(part.shape)).astype("f4") for part in steady]


def function(spoiled=()):
    """A function whose gradients do not depend on its parameters. spoiled: (rank, call) of those with an infinity."""
    calls = []

    def learn(params, batch):
        gradients = gradients_of(RANK, len(calls))
        if (RANK, len(calls)) in spoiled:
            gradients[0][3, 3] = numpy.inf
        calls.append(1)
        return 0.0, gradients

    return learn


def trained(strategy="allreduce", steps=5, spoiled=(), precision="float32", model=None, length={}, comm=WORLD, **options):
    params = [numpy.zeros(shape, "f8" if precision == "float64" else "f4") for shape in SHAPES]
    options = {**CODED, **options}
    trainer = Trainer(model or function(spoiled), SGD(1.0), comm, strategy, params=params, precision=precision, **options)
    # the same rows on all ranks, in each of two micro-batches
    trainer.fit(DATA, steps=steps, batch_size=2 * comm.Get_size(), **length)
    return trainer


def padded(parts, group=1):
    """A bucket of these tensors. group: elements that shards have a multiple of."""
    whole = numpy.concatenate([part.reshape(-1) for part in parts])
    return numpy.concatenate([whole, numpy.zeros(-len(whole) % (SIZE * group), whole.dtype)])


def simulated(strategy, kind, is_fed_back, steps=5, accumulate=1, precision="float32", scales=None, reduction=None,
              together=True, limit=None):  # fmt: skip
    """The parameters after some steps. scales: of the loss in each, negative where it is skipped. together: both weights."""
    stored = element_type(precision)
    buckets = [WEIGHTS] if together else [[number] for number in WEIGHTS]
    is_gathered = strategy == "allreduce" or reduction == "allreduce"
    group = codes_of(kind).group if is_fed_back and is_gathered else 1
    sizes = [len(padded([numpy.zeros(SHAPES[number]) for number in bucket], group)) for bucket in buckets]
    sums = [CompressedSum(SIZE, size, kind, is_fed_back, is_gathered) for size in sizes]
    wide = "f8" if precision == "float64" else "f4"
    params = [numpy.zeros(shape, wide) for shape in SHAPES]
    call = 0
    for step in range(steps):
        scale = abs(scales[step]) if scales else 1.0
        is_made = scales is None or scales[step] > 0
        micro = []
        for _ in range(accumulate):
            share = 1 / SIZE / accumulate
            micro.append([[numpy.multiply(part, share * scale).astype(wide) for part in gradients_of(rank, call)]
                          for rank in range(SIZE)])  # fmt: skip
            call += 1
        micro = [[[part.astype(stored) for part in parts] for parts in ranks] for ranks in micro]
        if strategy != "zero2":  # summed before they are sent
            first, *others = micro
            for other in others:
                first = [[a.astype(wide) + b.astype(wide) for a, b in zip(*pair)] for pair in zip(first, other)]
                first = [[part.astype(stored) for part in parts] for parts in first]
            micro = [first]
        totals = None
        for ranks in micro:
            reduced = [in_canonical_order([parts[number].astype("f4") for parts in ranks]).astype(stored)
                       if stored.itemsize < 4 else in_canonical_order([parts[number] for parts in ranks])
                       for number in range(len(SHAPES))]  # fmt: skip
            for bucket, add in zip(buckets, sums):
                flat = add([padded([parts[number] for number in bucket], group) for parts in ranks], scale, is_made)
                start = 0
                for number in bucket:
                    size = int(numpy.prod(SHAPES[number]))
                    reduced[number] = flat[start : start + size].reshape(SHAPES[number])
                    start += size
            totals = reduced if totals is None else [a + b for a, b in zip(totals, reduced)]
        if not is_made:
            continue
        factor = 1 / scale
        if limit is not None:
            norm = numpy.sqrt(sum(float((part.astype("f8") ** 2).sum()) for part in totals)) * factor
            factor *= min(1, limit / norm)
        params = [value - part.astype(wide) * numpy.asarray(factor, wide) for value, part in zip(params, totals)]
    return params, sums


def lost(trainer):
    """What codes lost of each weight, on this rank."""
    plain = trainer.strategy.reducer.feedback.plain()
    parts = numpy.split(plain, numpy.cumsum([numpy.prod(shape) for shape in SHAPES])[:-1].astype(int))
    assert not parts[1].any() and not parts[3].any()  # they are exempt
    return [parts[number].reshape(SHAPES[number]) for number in WEIGHTS]


def equal(trainer, simulation, rtol=0.0):
    params, _ = simulation
    same_bits(trainer)
    for value, expected in zip(trainer.params.values(), params):
        wanted = expected.astype(value.dtype).astype("f8")
        numpy.testing.assert_allclose(value.astype("f8"), wanted, rtol=rtol, atol=rtol)


# ---- the bits of a simulation


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", ["int8", "int4", "float16"])
@pytest.mark.parametrize("is_fed_back", [False, True])
def test_updates_are_those_of_a_simulation(strategy, kind, is_fed_back):
    for bucket_bytes, together in ((1 << 20, True), (1, False)):
        trainer = trained(strategy, compression=kind, error_feedback=is_fed_back, bucket_bytes=bucket_bytes)
        assert [bucket.is_exact for bucket in trainer.strategy.reducer.layout.buckets].count(False) == (1 if together else 2)
        simulation = simulated(strategy, kind, is_fed_back, together=together)
        equal(trainer, simulation)
        if is_fed_back and together:
            flat = numpy.concatenate([part.reshape(-1) for part in lost(trainer)])
            padding = len(simulation[1][0].lost[RANK]) - len(flat)
            numpy.testing.assert_array_equal(numpy.pad(flat, (0, padding)), simulation[1][0].lost[RANK])


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("precision", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("is_fed_back", [False, True])
def test_other_precisions(strategy, precision, is_fed_back):
    trainer = trained(strategy, precision=precision, error_feedback=is_fed_back, bucket_bytes=1 << 20)
    simulation = simulated(strategy, "int8", is_fed_back, precision=precision)
    # what is exempt is summed in another order of roundings
    for number, value in enumerate(trainer.params.values()):
        expected = simulation[0][number].astype(value.dtype).astype("f8")
        rtol = 0 if number in WEIGHTS else 0.02 if precision == "bfloat16" else 0.005
        numpy.testing.assert_allclose(value.astype("f8"), expected, rtol=rtol, atol=rtol)
    same_bits(trainer)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("strategy, reduction", [*((strategy, None) for strategy in STRATEGIES), ("zero1", "allreduce"),
                                                 ("zero2", "allreduce")])  # fmt: skip
@pytest.mark.parametrize("is_fed_back", [False, True])
def test_accumulation(strategy, reduction, is_fed_back):
    options = {"accumulate": 2, "error_feedback": is_fed_back, "reduction": reduction, "compression": "int4"}
    trainer = trained(strategy, bucket_bytes=1 << 20, **options)
    equal(trainer, simulated(strategy, "int4", is_fed_back, accumulate=2, reduction=reduction))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_skipped_step_loses_nothing(strategy):
    """The residuals are those before it, and follow the scale of the loss."""
    options = {"loss_scale": "dynamic", "error_feedback": True, "bucket_bytes": 1 << 20}
    trainer = trained(strategy, spoiled=[(SIZE - 1, 2)], **options)
    assert trainer.strategy.update.scale.skipped == 1
    scales = [2.0**16, 2.0**16, -(2.0**16), 2.0**15, 2.0**15]
    equal(trainer, simulated(strategy, "int8", True, scales=scales))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("is_fed_back", [False, True])
def test_clipping(strategy, is_fed_back):
    trainer = trained(strategy, clip_norm=3.0, error_feedback=is_fed_back, bucket_bytes=1 << 20)
    equal(trainer, simulated(strategy, "int8", is_fed_back, limit=3.0), rtol=1e-5)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_was_applied_and_what_is_left_are_all_gradients(strategy):
    steps = 12
    errors = {}
    for is_fed_back in (False, True):
        trainer = trained(strategy, steps, compression="int4", error_feedback=is_fed_back)
        wanted = [sum(gradients_of(rank, call)[number].astype("f8") for rank in range(SIZE) for call in range(steps)) / SIZE
                  for number in WEIGHTS]  # fmt: skip
        values = list(trainer.params.values())
        applied = [-values[number].astype("f8") for number in WEIGHTS]
        errors[is_fed_back] = max(abs(a - b).max() for a, b in zip(applied, wanted))
        if is_fed_back and SIZE > 1:
            left = [WORLD.allreduce(part.astype("f8")) for part in lost(trainer)]
            for done, rest, expected in zip(applied, left, wanted):
                numpy.testing.assert_allclose(done + rest, expected, atol=1e-4)
    assert SIZE == 1 or errors[True] < errors[False] / 3


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("accumulate", [1, 3])
def test_overlap_changes_no_bit(data, strategy, accumulate):
    options = {**CODED, "error_feedback": True, "precision": "float32", "bucket_bytes": 400, "accumulate": accumulate}
    runs = [fitted(WORLD, data, strategy, overlap=overlap, **options) for overlap in ("none", "gradients", "all")]
    assert runs[0].losses == runs[1].losses == runs[2].losses
    assert len({same_bits(run) for run in runs}) == 1


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("options", [
    {"compression": "int8"}, {"compression": "int8", "error_feedback": True}, {"compression": "bfloat16"},
])  # fmt: skip
def test_a_network_learns_as_without(data, strategy, options):
    exact = fitted(WORLD, data, strategy, precision="float32", length={"epochs": 6})
    coded = fitted(WORLD, data, strategy, precision="float32", length={"epochs": 6}, algorithm="pairwise", **options)
    numpy.testing.assert_allclose(coded.losses, exact.losses, rtol=0.03)
    same_bits(coded)


# ---- parameters


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("strategy", ["zero1", "zero2"])
@pytest.mark.parametrize("precision", ["float32", "float64", "bfloat16"])
def test_parameters_in_codes_of_masters_that_are_exact(strategy, precision):
    options = {"compression": None, "parameter_compression": "int8", "precision": precision, "bucket_bytes": 1 << 20}
    exact = trained(strategy, compression=None, precision=precision, bucket_bytes=1 << 20)
    coded = trained(strategy, **options)
    same_bits(coded)
    layout = coded.strategy.reducer.layout
    bucket = next(bucket for bucket in layout.buckets if not bucket.is_exact)
    held = coded.strategy.reducer.parameters[bucket.start : bucket.stop].astype("f4")
    shard = bucket.size // SIZE
    own = slice(RANK * shard, (RANK + 1) * shard)
    start = coded.strategy.update.starts[bucket.number]
    masters = coded.strategy.update.masters[start : start + shard]
    stored = element_type(precision)
    wanted = quantised(masters.astype(stored).astype("f4"), "int8")
    numpy.testing.assert_array_equal(held[own], wanted.astype(stored).astype("f4"))
    for number, (value, other) in enumerate(zip(coded.params.values(), exact.params.values())):
        if number not in WEIGHTS:
            numpy.testing.assert_array_equal(value, other)
        elif precision != "bfloat16":  # updates do not depend on parameters: what is lost is one quantisation
            assert 0 < abs(value - other).max() <= abs(other).max() / 253


# ---- checkpoints


@pytest.mark.parametrize("strategy, options", [
    *((strategy, {"error_feedback": True}) for strategy in STRATEGIES),
    ("allreduce", {"error_feedback": True, "accumulate": 2}), ("zero2", {"error_feedback": True, "accumulate": 2}),
    ("zero1", {"parameter_compression": "int8"}), ("zero2", {"parameter_compression": "int4", "precision": "float16"}),
])  # fmt: skip
def test_a_resumed_run_has_the_same_losses(data, mpi_tmp_path, strategy, options):
    shared = str(mpi_tmp_path / "checkpoints")
    options = {**CODED, "precision": "float32", "bucket_bytes": 500, **options}
    whole = fitted(WORLD, data, strategy, length={"epochs": 3}, **options)
    first = fitted(WORLD, data, strategy, length={"epochs": None, "steps": 7, "checkpoint": shared}, **options)
    assert first.losses == whole.losses[:7]
    rest = fitted(WORLD, data, strategy, length={"epochs": 3, "checkpoint": shared, "resume": True}, **options)
    assert rest.losses == whole.losses and same_bits(rest) == same_bits(whole)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("before, after", [("zero2", "allreduce"), ("allreduce", "zero1")])
def test_other_ranks_and_buckets_owe_what_the_former_did(mpi_tmp_path, before, after):
    shared = str(mpi_tmp_path / "checkpoints")
    fewer = mpicoll.Communicator(WORLD).Split(RANK < SIZE - 1)
    options = {"compression": "int4", "error_feedback": True}
    steps = 4
    left = {}
    for comm, strategy, more in ((WORLD, before, 0), (fewer, after, 3)):
        if comm is fewer and RANK == SIZE - 1:
            break
        comm.Barrier()
        length = {"checkpoint": shared, "resume": bool(more)}
        # the data of the first training, whose batches go on
        trainer = Trainer(function(), SGD(1.0), comm, strategy, params=[numpy.zeros(shape, "f4") for shape in SHAPES],
                          **{**CODED, **options}, bucket_bytes=1 if more else 1 << 20)  # fmt: skip
        taken = []
        original = trainer.strategy.step
        feedback = trainer.strategy.reducer.feedback

        def step(*args, taken=taken, feedback=feedback, original=original):
            if not taken and feedback is not None:
                taken.append(feedback.plain())
            return original(*args)

        trainer.strategy.step = step
        trainer.fit(DATA, steps=steps + more, batch_size=2 * SIZE, **length)
        if more and feedback is not None:
            left[more] = comm.allreduce(taken[0].astype("f8"))
        elif feedback is not None:
            left[more] = comm.allreduce(feedback.plain().astype("f8"))
    fewer.Free()
    if RANK < SIZE - 1 and SIZE > 2:  # one rank loses nothing
        numpy.testing.assert_allclose(left[3], left[0], rtol=1e-5, atol=1e-6)
        assert abs(left[0]).max() > 0.01
    WORLD.Barrier()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("is_skipped", [False, True])
@pytest.mark.parametrize("before, after", [("allreduce", "zero2"), ("zero1", "allreduce"), ("zero2", "zero1"),
                                           ("allreduce", "parameter_server")])  # fmt: skip
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_what_codes_lost_is_applied_once_where_a_training_goes_on_without(mpi_tmp_path, before, after, is_skipped):
    """In its first update, which a step that is skipped does not make, also where it goes on once more before that."""
    steps, length = 6, {"checkpoint": str(mpi_tmp_path / "checkpoints")}
    scaled = {"loss_scale": "dynamic"} if is_skipped else {}
    first = trained(before, steps, compression="int4", error_feedback=True, length=length, **scaled)
    rows = [WORLD.allreduce(abs(part).max(), MPI.MAX) for part in lost(first)]
    length["resume"] = True
    calls = list(range(steps))
    for more in (1, 3):
        exact = {"compression": None, "algorithm": None, **scaled}
        spoiled = [(0, 0)] if is_skipped and more == 1 else ()
        rest = trained(after, steps + more, spoiled, length=length, **exact)
        calls += range(len(spoiled), more if more == 1 else more - 1)
    wanted = [sum(gradients_of(rank, call)[number].astype("f8") for rank in range(SIZE) for call in calls) / SIZE
              for number in WEIGHTS]  # fmt: skip
    values = list(rest.params.values())
    for number, expected in zip(WEIGHTS, wanted):
        numpy.testing.assert_allclose(-values[number].astype("f8"), expected, atol=1e-4)
    assert min(rows) > 0.01


def test_checkpoints_with_and_without_residuals(data, mpi_tmp_path):
    for name, before, after in (("a", False, True), ("b", True, False)):
        shared = str(mpi_tmp_path / name)
        options = {**CODED, "precision": "float32"}
        length = {"epochs": None, "steps": 4, "checkpoint": shared}
        first = fitted(WORLD, data, "zero1", length=length, error_feedback=before, **options)
        length = {**length, "steps": 8, "resume": True}
        rest = fitted(WORLD, data, "zero1", length=length, error_feedback=after, **options)
        assert rest.losses[:4] == first.losses and len(rest.losses) == 8


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_residuals_are_finite_after_a_gradient_that_is_not(strategy):
    trainer = Trainer(function([(0, 1)]), SGD(1.0), WORLD, strategy, params=[numpy.zeros(shape, "f4") for shape in SHAPES],
                      **CODED, error_feedback=True)  # fmt: skip
    with pytest.raises(BadGradient, match="array 0"):
        trainer.fit(DATA, steps=3, batch_size=2 * SIZE)
    assert numpy.isfinite(trainer.strategy.reducer.feedback.plain()).all()


# ---- options, and what is said


@pytest.mark.parametrize("options, text", [
    ({"compression": "int9"}, "compression: expected one of float16, bfloat16, int8, int4"),
    ({"compression": "int8", "reproducible": True}, "reproducible: expected False with compression: codes are made of what"),
    ({"compression": "int8", "strategy": "parameter_server"}, "strategy: expected one of allreduce, zero1, zero2, diloco with"),
    ({"compression": "int8", "algorithm": "ring"}, "algorithm: expected with compression one of .*pairwise.*, got 'ring'"),
    ({"compression": "int8", "algorithm": "native"}, "algorithm: expected with compression one of"),
    ({"parameter_compression": "int8"}, "parameter_compression: expected None: allreduce sends no parameters"),
    ({"error_feedback": True}, "error_feedback: expected False without compression"),
    ({"compression": "int8", "error_feedback": True, "algorithm": "hierarchical"}, "algorithm: expected pairwise with error_f"),
    ({"compression": "int8", "error_feedback": 2}, "error_feedback: expected False or True"),
])  # fmt: skip
def test_what_is_refused(options, text):
    raises(text, Trainer, function(), SGD(1.0), WORLD, params=[numpy.zeros((3, 3))], **options)


def test_one_node_is_not_compressed_unless_an_algorithm_is_named(data):
    options = {"compression": "int8", "error_feedback": True, "precision": "float32"}
    plain = fitted(WORLD, data, precision="float32")
    asked = fitted(WORLD, data, **options)
    assert asked.losses == plain.losses and asked.options.compression is None and asked.report()["residual_bytes"] == 0
    why = "there is one rank" if SIZE == 1 else "all ranks are on one node, where it saves no time"
    assert f"nothing is compressed: {why}" in summary(asked, WORLD)


def on_nodes_of(ranks, monkeypatch):
    """Trainers take so many ranks for a node."""
    monkeypatch.setattr(fitting, "ranks_of_node", lambda comm: closing_group(comm, ranks))


@contextmanager
def closing_group(comm, ranks):
    group = MPI.Intracomm.Split(comm, comm.rank // ranks, comm.rank)
    yield group
    group.Free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_between_nodes_an_algorithm_that_can_send_codes_is_taken(strategy, monkeypatch):
    on_nodes_of(1, monkeypatch)
    for is_fed_back in (False, True):
        trainer = trained(strategy, error_feedback=is_fed_back, algorithm=None, bucket_bytes=1 << 20)
        assert trainer.options.algorithm == "pairwise" and trainer.options.compression == "int8"
        equal(trainer, simulated(strategy, "int8", is_fed_back))
    if SIZE > 2:
        on_nodes_of(2, monkeypatch)
        runs = [trained(strategy, algorithm=None, error_feedback=is_fed_back) for is_fed_back in (False, True)]
        assert [run.options.algorithm for run in runs] == ["hierarchical", "pairwise"]


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_reports_say_what_was_sent_and_held(strategy):
    exact = trained(strategy, compression=None)
    coded = trained(strategy, error_feedback=True)
    report = coded.report()
    ratio = exact.report()["bytes_sent_per_step"] / report["bytes_sent_per_step"]
    assert ratio > (3 if strategy == "allreduce" else 1.4)
    assert report["bytes_sent_per_step"] == report["bytes_predicted"]
    elements = sum(int(numpy.prod(shape)) for shape in SHAPES)
    coded_elements = sum(int(numpy.prod(shape)) for shape in SHAPES if len(shape) > 1)
    theory = 8 * elements + (4 * (coded_elements // SIZE) if strategy == "allreduce" else 0)
    assert report["residual_bytes"] >= theory and exact.report()["residual_bytes"] == 0
    text = " ".join(summary(coded, WORLD).split())
    assert "pairwise of int8 with error feedback" in text and f"residuals of error feedback (theory {theory:,})" in text
    assert "nothing is compressed" not in text


@pytest.mark.mpi(min_size=2)
def test_all_ranks_must_ask_for_the_same():
    params = [numpy.zeros((3, 3))]
    raises("compression", Trainer, function(), SGD(1.0), WORLD, params=params, compression="int8" if RANK else "int4")
