"""Arrays of random numbers, in any floating dtype."""

import numpy
import pytest

LENGTH = 70_000  # three pieces of the host's size, the last one short
HALVES = ["float16", "bfloat16"]


def named(dtype):
    return getattr(pytest.importorskip("ml_dtypes", reason="bfloat16 is ml_dtypes'"), dtype) if dtype == "bfloat16" else dtype


def numbers(*shape, seed=0, dtype="float32"):
    return numpy.random.default_rng(seed).standard_normal(shape).astype(dtype)
