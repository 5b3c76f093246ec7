"""Codes of compressed calls: their sizes, their errors, and how far a result may be from the exact one."""

import numpy as np
import pytest

from mpicoll import algorithms, verify
from mpicoll.buffers import compression_of
from mpicoll.codes import NAMES, codes_of
from mpicoll.errors import ArgumentError

COMPRESSIBLE = [each for name in ("allreduce", "reduce_scatter", "allgather", "bcast", "reduce")
                for each in algorithms.registered(name) if each.compressible]  # fmt: skip


def decoded(name, elements):
    """The elements after one quantisation."""
    compression = compression_of(name)
    codes = np.empty(compression.groups(len(elements)) * compression.nbytes, np.uint8)
    compression.encode(codes, elements)
    into = np.empty_like(elements)
    compression.decode(into, codes)
    return into


def outlier(contributions):
    contributions[1, 100] = 1e6


def denormal(contributions):
    contributions *= np.float32(1e-41)


def zero(contributions):
    contributions[:, :300] = 0


def large(contributions):
    contributions *= np.float32(1e4)


@pytest.mark.parametrize("spoil", [None, outlier, denormal, zero, large])
@pytest.mark.parametrize("name", NAMES)
def test_no_element_is_off_by_more_than_its_bound(name, spoil):
    contributions = np.random.default_rng(0).standard_normal((5, 1000)).astype(np.float32)
    if spoil:
        spoil(contributions)
    exact = contributions.astype(np.float64).sum(axis=0)
    total = sum(decoded(name, each) for each in contributions)
    for often, result in ((1, total), (2, decoded(name, total))):
        with np.errstate(invalid="ignore"):
            error = np.abs(result - exact)
        bound = compression_of(name).bound(contributions, often)
        promised = np.isfinite(bound)
        assert (error[promised] <= bound[promised]).all()
        assert promised.all() or (name, spoil) == ("float16", outlier) or spoil is large


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_the_bound_is_half_the_scales_and_is_not_loose(name):
    contributions = np.random.default_rng(1).standard_normal((1, 1 << 14)).astype(np.float32)
    error = np.abs(decoded(name, contributions[0]) - contributions[0].astype(np.float64))
    codes = codes_of(name)
    bound = compression_of(name).bound(contributions, 1)
    first = np.abs(contributions[0, : codes.group]).max() / codes.largest / 2
    assert bound[:codes.group] == pytest.approx(first, rel=1e-3)
    assert 0.95 < (error / bound).max() <= 1


def test_nodes_are_summed_before_they_are_quantised():
    contributions = np.array([[1.0] * 256, [-1.0] * 256, [3.0] * 256])
    int8 = compression_of("int8")
    assert int8.bound(contributions, 1) == pytest.approx((1 + 1 + 3) / 127 / 2, rel=1e-3)
    assert int8.bound(contributions, 1, nodes=(0, 0, 1)) == pytest.approx(3 / 127 / 2, rel=1e-3)
    assert int8.bound(contributions, 0).max() < 1e-5


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_promised_of_a_group_that_is_not_finite(name, value):
    contributions = np.ones((2, 600), np.float32)
    contributions[1, 300] = value
    group = codes_of(name).group
    start = 300 // group * group
    lost = np.zeros(600, bool)
    lost[start : start + group] = True
    assert (np.isinf(compression_of(name).bound(contributions, 2)) == lost).all()


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_nothing_is_promised_of_sums_beyond_float32(name):
    contributions = np.ones((2, 600), np.float32)
    contributions[:, 300] = np.finfo("f4").max
    group = codes_of(name).group
    lost = np.arange(600) // group == 300 // group
    assert (np.isinf(compression_of(name).bound(contributions, 2)) == lost).all()
    assert np.flatnonzero(np.isinf(compression_of(name).bound(contributions, 1))) == [300]


@pytest.mark.parametrize("name", NAMES)
def test_the_error_of_gaussian_data_is_what_is_said(name):
    elements = np.random.default_rng(2).standard_normal(1 << 16).astype(np.float32)
    error = decoded(name, elements) - elements.astype(np.float64)
    rms = np.sqrt((error**2).mean() / (elements.astype(np.float64) ** 2).mean())
    assert codes_of(name).expected_error(1) == pytest.approx(rms, rel=0.05)


@pytest.mark.parametrize("name", NAMES)
def test_edges_lie_between_groups(name):
    codes = codes_of(name)
    for count in (0, 1, 255, 256, 257, 10_000):
        for blocks in (1, 3, 8):
            edges = codes.edges(count, blocks)
            assert len(edges) == blocks + 1 and (edges[0], edges[-1]) == (0, count)
            assert all(edge % codes.group == 0 or edge == count for edge in edges)


def test_a_name_that_there_is_not():
    with pytest.raises(ArgumentError, match="got 'int9' .did you mean int8.."):
        codes_of("int9")


@pytest.mark.parametrize("algorithm", COMPRESSIBLE, ids=lambda each: f"{each.collective}-{each.name}")
def test_values_are_quantised_as_often_at_any_number_of_ranks(algorithm):
    often = [verify.quantisations(algorithm, size, tuple(range(size))) for size in range(1, 14)]
    proved = [
        verify.check(algorithm.collective, algorithm.generator, size, nodes=tuple(range(size)), compressed=True).quantisations
        for size in range(1, 14)
    ]
    assert often == proved and often[0] == 0 and often[1] in (1, 2)
    one_node = verify.quantisations(algorithm, 6, (0,) * 6)
    assert (one_node == 0) == algorithm.node_aware
