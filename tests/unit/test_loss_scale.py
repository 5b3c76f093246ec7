"""Loss scaling, and the norms that tell whether gradients are finite."""

import json
import math

import numpy
import pytest

from mpicoll.errors import ArgumentError
from mpicoll.train.optim.loss_scale import LossScale, clip_factor, first_bad, squared_norm
from tests.support.numbers import HALVES, LENGTH, named, numbers

# ---- loss scale


def test_dynamic_scale_halves_and_doubles():
    scale = LossScale.of("dynamic")
    assert scale.dynamic and scale.value == 2**16
    assert not scale.update(False) and (scale.value, scale.skipped) == (2**15, 1)
    assert all(scale.update(True) for _ in range(1999)) and scale.value == 2**15
    assert not scale.update(False) and (scale.value, scale.skipped) == (2**14, 2)  # the count starts again
    values = []
    for _ in range(4000):
        assert scale.update(True)
        values.append(scale.value)
    assert [values[i] for i in (1998, 1999, 3998, 3999)] == [2**14, 2**15, 2**15, 2**16]


def test_dynamic_scale_has_bounds():
    scale = LossScale.of("dynamic")
    for _ in range(30):
        scale.update(False)
    assert (scale.value, scale.skipped) == (1, 30)
    for _ in range(26 * 2000):
        scale.update(True)
    assert scale.value == 2**24


@pytest.mark.parametrize("option, value", [(None, 1.0), (128, 128.0), ("128", 128.0), (0.5, 0.5)])
def test_fixed_scale_stays_and_skips_too(option, value):
    scale = LossScale.of(option)
    assert [scale.update(finite) for finite in [True] * 2500 + [False, numpy.bool_(False)]][-3:] == [True, False, False]
    assert (scale.value, scale.skipped, scale.dynamic) == (value, 2, False)
    assert repr(scale) == f"LossScale({value})"


def test_restored_scale_goes_on_as_the_first():
    first, second = LossScale.of("dynamic"), LossScale.of("dynamic")
    for finite in [True, False] + [True] * 1500:
        first.update(finite)
    second.restore(json.loads(json.dumps(first.state())))
    for _ in range(500):
        assert first.update(True) and second.update(True)
        assert (first.value, first.skipped) == (second.value, second.skipped)
    assert second.value == 2**16 and repr(second) == "LossScale(dynamic)"
    fixed = LossScale.of(8)
    fixed.restore(first.state())
    assert (fixed.value, fixed.skipped) == (8, 1)


@pytest.mark.parametrize("option", ["Dynamic", "", 0, -1, math.nan, "inf", [1]])
def test_wrong_loss_scale(option):
    with pytest.raises(ArgumentError, match="loss_scale: expected dynamic or a number above 0"):
        LossScale.of(option)


@pytest.mark.parametrize("value", ["8", None, 1j, [1, 2]])
def test_a_loss_scale_that_is_no_number(value):
    with pytest.raises(ArgumentError, match="loss_scale: expected a number above 0"):
        LossScale(value)


# ---- norms


@pytest.mark.parametrize("dtype", [*HALVES, "float32", "float64"])
@pytest.mark.parametrize("length", [0, 1, LENGTH])
def test_squared_norm_is_exact_to_float64(dtype, length):
    array = (numbers(length) * 100).astype(named(dtype))
    expected = math.fsum(float(value) ** 2 for value in array)
    assert float(squared_norm(array)) == pytest.approx(expected, rel=1e-13)


def test_squared_norm_beyond_the_range_of_the_dtype():
    assert squared_norm(numpy.full(4, 60_000, "float16")) == 4 * 60_000.0**2
    assert squared_norm(numpy.full(2, 1e30, "float32")) == pytest.approx(2e60, rel=1e-6)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [*HALVES, "float32", "float64"])
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("place", [0, 32_768, LENGTH - 1])
def test_values_that_are_not_finite_are_found_without_warnings(dtype, bad, place):
    array = numpy.ones(LENGTH, named(dtype))
    assert first_bad(array) is None and squared_norm(array) == LENGTH
    array[place] = bad
    array[-1] = bad  # a second one, which is not the first
    assert first_bad(array) == place
    assert squared_norm(array) == math.inf if math.isinf(bad) else math.isnan(squared_norm(array))


@pytest.mark.filterwarnings("error")
def test_squares_may_overflow_float64():
    assert squared_norm(numpy.array([1e200, 1.0])) == math.inf


@pytest.mark.parametrize("limit", [0.1, 5.0, 100.0])
def test_clipped_gradients_have_the_norm_of_the_limit_at_most(limit):
    gradients = numbers(100, dtype="float64")
    norm = numpy.linalg.norm(gradients)
    clipped = numpy.linalg.norm(gradients * clip_factor(math.sqrt(squared_norm(gradients)), limit))
    assert clipped == pytest.approx(min(norm, limit), rel=1e-12)


def test_clip_factor_of_odd_norms():
    assert clip_factor(0.0, 1.0) == clip_factor(1.0, 1.0) == 1.0
    assert clip_factor(math.inf, 1.0) == 0.0 and math.isnan(clip_factor(math.nan, 1.0))
    for limit in (0, -1, math.nan, "1", None):
        with pytest.raises(ArgumentError, match="limit: expected a norm above 0"):
            clip_factor(1.0, limit)
