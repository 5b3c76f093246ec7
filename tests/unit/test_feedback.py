"""Error feedback of each rank, beside a simulation of all: the same residuals, whatever pieces they are computed in."""

import numpy
import pytest

from mpicoll import engine
from mpicoll.buffers import CodingLoss, compression_of
from mpicoll.codes import NAMES, codes_of
from mpicoll.support import settings
from mpicoll.train.model import Tensor
from mpicoll.train.options import Options
from mpicoll.train.parallel.buckets import BucketLayout
from mpicoll.train.parallel.feedback import ErrorFeedback
from tests.support.compressing import CompressedSum, quantised
from tests.support.exact import in_canonical_order

EXTENSION = engine.status().extension


@pytest.fixture(params=[settings.PYTHON, *([settings.C] if EXTENSION else [])])
def interpreter(request, monkeypatch):
    monkeypatch.setenv(settings.ENGINE, request.param)
    return request.param


@pytest.mark.skipif(EXTENSION is None, reason=f"no extension: {engine.status().reason}")
@pytest.mark.parametrize("scale", [1.0, 3.0, 2.0**-20])
@pytest.mark.parametrize("size", [1, 255, 257, 3 * 64, (1 << 15) + 1, 100_003])
@pytest.mark.parametrize("kind", NAMES)
def test_the_extension_loses_the_same_bits(kind, size, scale):
    random = numpy.random.default_rng(size)
    magnitudes = 10.0 ** random.uniform(-44, 38, 2 * size)
    vector, before = (random.choice([-1, 1, 0, -0.0], 2 * size) * magnitudes).astype("f4").reshape(2, size)
    vector[0] = numpy.inf
    before[-1] = numpy.nan
    results = []
    for compiled in (None, EXTENSION):
        loss = CodingLoss(compression_of(kind), 1, size, compiled=compiled)
        fed, lost = vector.copy(), before.copy()
        loss.feed(fed, lost, lost, 3, scale)
        owned = numpy.array_split(lost, 3)[0]
        loss.feed_sums(fed[: len(owned)].copy(), owned, scale)
        results.append((fed, lost))
    for reference, array in zip(*results):
        nan = numpy.isnan(reference)
        numpy.testing.assert_array_equal(nan, numpy.isnan(array))
        numpy.testing.assert_array_equal(reference[~nan].view("u4"), array[~nan].view("u4"))


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("kind", ["int8", "int4", "float16"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 7, 300, 1 << 15, 200_001])
@pytest.mark.parametrize("is_gathered", [False, True])
def test_what_is_lost_is_what_a_simulation_loses(kind, ranks, size, is_gathered):
    layout = BucketLayout([Tensor("w", (1, size), 0)], [0], ranks, float("inf"), group=codes_of(kind).group)
    bucket, = layout.buckets
    options = Options(compression=kind, error_feedback=True)
    feedbacks = [ErrorFeedback(layout, numpy.zeros(0, "f4"), rank, options) for rank in range(ranks)]
    rooms = [feedback.room_for_sums(bucket) for feedback in feedbacks] if is_gathered else []
    reference = CompressedSum(ranks, bucket.size, kind, True, is_gathered)
    random = numpy.random.default_rng(size)
    for scale in (1.0, 8.0, 2.0):
        gradients = [random.standard_normal(bucket.size).astype("f4") * numpy.float32(scale) for _ in range(ranks)]
        reference(gradients, scale)
        for feedback, vector in zip(feedbacks, gradients):
            feedback.scale = scale
            feedback.feed(bucket, vector, again=False)
        for owner, room in enumerate(rooms):
            shard = bucket.shard(owner, ranks)
            parts = [vector[shard] if rank == owner else quantised(vector[shard], kind)
                     for rank, vector in enumerate(gradients)]  # fmt: skip
            room[...] = in_canonical_order(parts)
            if owner:  # of rank 0 the call has failed, when all others had its codes
                feedbacks[owner].feed_sum(bucket)
        for rank, feedback in enumerate(feedbacks):
            under_way = feedback.plain(is_committed=False)
            feedback.commit()
            for found in (under_way, feedback.plain()):
                numpy.testing.assert_array_equal(found, reference.lost[rank][:size])


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_sums_of_many_steps_are_exact_and_each_step_is_worse(kind):
    """What Adam's squares see: docs/training-measured.md."""
    random = numpy.random.default_rng(0)
    size, steps = 1 << 12, 30
    loss = CodingLoss(compression_of(kind), 1, size)
    lost = numpy.zeros(size, "f4")
    totals = {"exact": numpy.zeros(size), "without": numpy.zeros(size), "with": numpy.zeros(size)}
    squares = {"without": 0.0, "with": 0.0}
    for _ in range(steps):
        gradients = random.standard_normal(size).astype("f4")
        fed = gradients.copy()
        loss.feed(fed, lost, lost, 1)
        totals["exact"] += gradients
        for name, vector in (("without", gradients), ("with", fed)):
            sent = quantised(vector, kind).astype(float)
            totals[name] += sent
            squares[name] += ((sent - gradients) ** 2).mean() / steps
    errors = {name: numpy.sqrt(((total - totals["exact"]) ** 2).mean()) for name, total in totals.items()}
    assert errors["with"] < 1.3 * errors["without"] / numpy.sqrt(steps)
    assert 1.9 < squares["with"] / squares["without"] < 2.3


@pytest.mark.usefixtures("interpreter")
def test_what_is_not_committed_is_forgotten_and_what_is_not_finite_leaves_nothing():
    layout = BucketLayout([Tensor("w", (4, 200), 0)], [0], 2, float("inf"))
    feedback = ErrorFeedback(layout, numpy.zeros(0, "f4"), 0, Options(compression="int8", error_feedback=True))
    room = feedback.room_for_sums(layout.buckets[0])
    random = numpy.random.default_rng(0)
    gradients = random.standard_normal(800).astype("f4")
    room[...] = gradients[:400]
    feedback.feed(layout.buckets[0], gradients.copy(), again=False)
    feedback.feed_sum(layout.buckets[0])
    assert not feedback.plain().any()
    feedback.commit()
    before = feedback.plain()
    assert before[:400].any() and before[400:].any()
    room[300], gradients[700] = numpy.nan, numpy.inf
    feedback.feed(layout.buckets[0], gradients.copy(), again=False)
    feedback.feed_sum(layout.buckets[0])
    numpy.testing.assert_array_equal(feedback.plain(), before)
    feedback.commit()
    after = feedback.plain()
    numpy.testing.assert_array_equal(after[656:], before[656:])
    assert not after[256:400].any()  # this rank has sent it, and the sum of all is lost
    assert (after[400:656] != before[400:656]).any() and numpy.isfinite(after).all()
