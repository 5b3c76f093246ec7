"""Sums in fixed point: the same bits for any number of ranks and any split of the contributions over them."""

from fractions import Fraction

import numpy
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll import gpu
from tests.support.fakes import fakearithmetic
from tests.support.cases import RANK, SIZE, WORLD
from tests.support.exact import ALL, contributions, in_fixed_point, mixed

pytestmark = pytest.mark.mpi

TYPES = ("f4", "f8", "f2", "c8", "c16") if ALL else ("f4", "f8")


@pytest.fixture
def exact():
    made = mpicoll.Communicator(WORLD.Dup(), reproducible=True)
    yield made
    made.Free()


def bfloat16():
    return numpy.dtype(pytest.importorskip("ml_dtypes").bfloat16)


def alone(stack, edges=None):
    """The sum of all contributions on one rank."""
    comm = mpicoll.Communicator(MPI.COMM_SELF, reproducible=True)
    total = numpy.empty(stack.shape[1:], stack.dtype)
    comm.Allreduce(mpicoll.Contributions(stack, edges), total)
    mpicoll.Communicator(MPI.COMM_SELF, reproducible=False)
    return total


@pytest.mark.parametrize("dtype", TYPES)
def test_every_form_and_algorithm_gives_the_same_bits(exact, dtype):
    for count in (1, 7, 3001):
        expected = alone(contributions(SIZE, count, dtype)).tobytes()
        mine = mixed(count, dtype, RANK)
        for word, segment in [(None, None), ("ring", None), ("tree", 4096)]:
            keywords = {"algorithm": word, "segment_bytes": segment}
            out, inside, later = numpy.empty_like(mine), mine.copy(), numpy.empty_like(mine)
            for _ in range(2):  # the second time it is recognised
                exact.Allreduce(mine, out, **keywords)
            exact.Iallreduce(MPI.IN_PLACE, inside, **keywords).Wait()
            plan = exact.Allreduce_init(mine, later, **keywords)
            for _ in range(2):
                later[:] = 0
                plan.Start()
                plan.Wait()
            plan.Free()
            assert {one.tobytes() for one in (out, inside, later)} == {expected}, (count, word)


@pytest.mark.parametrize("dtype", TYPES)
def test_reduce_and_reduce_scatter(exact, dtype):
    count = 300 * SIZE
    expected, mine = alone(contributions(SIZE, count, dtype)), mixed(count, dtype, RANK)
    for root in range(SIZE):
        out = numpy.zeros_like(mine)
        exact.Reduce(mine, out if RANK == root else None, root=root)
        assert out.tobytes() == (expected if RANK == root else numpy.zeros_like(mine)).tobytes()
        inside = mine.copy()
        exact.Ireduce(MPI.IN_PLACE if RANK == root else inside, inside if RANK == root else None, root=root).Wait()
        assert inside.tobytes() == (expected if RANK == root else mine).tobytes()
    block = slice(300 * RANK, 300 * RANK + 300)
    out = numpy.empty(300, dtype)
    exact.Reduce_scatter_block(mine, out)
    assert out.tobytes() == expected[block].tobytes()
    inside = mine.copy()
    exact.Reduce_scatter_block(MPI.IN_PLACE, inside)
    assert inside[:300].tobytes() == expected[block].tobytes() and inside[300:].tobytes() == mine[300:].tobytes()
    counts = [count - 5 * (SIZE - 1), *[5] * (SIZE - 1)]
    out = numpy.empty(counts[RANK], dtype)
    plan = exact.Reduce_scatter_init(mine, out, counts)
    plan.Start()
    plan.Wait()
    plan.Free()
    assert out.tobytes() == expected[sum(counts[:RANK]) :][: counts[RANK]].tobytes()


def test_sixty_contributions_in_any_split():
    """Over one to all ranks, dealt out evenly, unevenly and at random; in rows, in words of their own scale, and scattered."""
    for dtype in ("f4", "f8", "f2", bfloat16()):
        stack = contributions(60, 120, dtype)
        expected, in_parts = alone(stack).tobytes(), alone(stack, [0, 1, 50, 50, 120]).tobytes()
        for ranks in range(1, SIZE + 1):
            comm = WORLD.Split(RANK < ranks, RANK)
            if RANK < ranks:
                part = mpicoll.Communicator(comm, reproducible=True)
                for seed in range(4):
                    draw = numpy.random.default_rng([seed, ranks])
                    owner = numpy.sort(draw.integers(0, ranks, 60)) if seed % 2 else draw.integers(0, ranks, 60)
                    mine, total = numpy.ascontiguousarray(stack[owner == RANK]), numpy.empty(120, dtype)
                    part.Allreduce(mpicoll.Contributions(mine), total)
                    assert total.tobytes() == expected
                    part.Allreduce(mpicoll.Contributions(mine, [0, 1, 50, 50, 120]), total)
                    assert total.tobytes() == in_parts
                    block = total[: 120 // ranks].copy()
                    part.Reduce_scatter_block(mpicoll.Contributions(mine[:, : len(block) * ranks], None), block)
            comm.Free()


def test_the_sum_is_what_the_documentation_says():
    for dtype in ("f4", "f2"):
        stack = contributions(9, 200, dtype)
        assert alone(stack).tobytes() == in_fixed_point(stack).tobytes()
    stack = contributions(9, 200, "f8")
    assert (alone(stack) == [float(sum(map(Fraction, column))) for column in zip(*stack)]).all()


def test_half_precision_is_exact():
    stack = contributions(50, 300, "f2")
    expected = stack.astype("f8").sum(axis=0)  # exact in float64
    assert alone(stack).tobytes() == expected.astype("f2").tobytes()


#: type, terms, and their sum rounded once: each is a little above the middle between two numbers
MIDDLES = [
    ("f2", [1, 2.0**-11, 2.0**-24], 1 + 2.0**-10),
    ("bfloat16", [1, 2.0**-8, 2.0**-24], 1 + 2.0**-7),
    ("f4", [1] * 32 + [2.0**-19, 2.0**-49], 32 + 2.0**-18),
    ("f8", [1, 2.0**-20, 2.0**-53, 2.0**-99], 1 + 2.0**-20 + 2.0**-52),
    ("f8", [1] * 32 + [2.0**-20, 2.0**-48, 2.0**-99], 32 + 2.0**-20 + 2.0**-47),
    ("f8", [1] * 16 + [-(2.0**-50), -(2.0**-99)], 16 - 2.0**-49),
]


@pytest.mark.parametrize("dtype, terms, total", MIDDLES)
def test_a_sum_is_rounded_once(exact, dtype, terms, total):
    dtype = bfloat16() if dtype == "bfloat16" else numpy.dtype(dtype)
    for sign in (1, -1):
        stack = (sign * numpy.array(terms)).astype(dtype)[RANK::SIZE, None]
        exact.Allreduce(mpicoll.Contributions(stack), result := numpy.empty(1, dtype))
        assert float(result[0]) == sign * total


def test_the_extremes_of_each_type(exact):
    for dtype in ("f4", "f8", "f2", bfloat16()):
        limits = numpy.finfo(dtype) if numpy.dtype(dtype).name != "bfloat16" else __import__("ml_dtypes").finfo(dtype)
        for value in (limits.smallest_subnormal, limits.tiny, limits.max, -limits.max, 0):
            if numpy.dtype(dtype).itemsize == 8 and abs(float(value)) < 2.0**-1000:
                continue  # rounded to nothing, as the documentation says
            given = numpy.array([value if RANK == SIZE - 1 else 0] * 3, dtype)
            exact.Allreduce(MPI.IN_PLACE, given)
            assert (given == numpy.array([value] * 3, dtype)).all(), (dtype, value)


def test_a_sum_beyond_the_range_is_infinite_and_no_word_overflows(exact):
    given = numpy.full(5, numpy.finfo("f4").max, "f4")
    exact.Allreduce(MPI.IN_PLACE, given)
    assert SIZE == 1 or numpy.isposinf(given).all()
    stack = numpy.full((4096 // SIZE, 3), 1.0)
    exact.Allreduce(mpicoll.Contributions(stack), total := numpy.empty(3))
    assert (total == SIZE * len(stack)).all()
    exact.Allreduce(mpicoll.Contributions(-numpy.nextafter(stack, 2)), total)
    assert numpy.allclose(total, -SIZE * len(stack), rtol=1e-15)


@pytest.mark.parametrize("form", [numpy.asarray, memoryview], ids=["array", "memoryview"])
def test_contributions_of_one_number_each(exact, form):
    given, total = numpy.array([1.0, 2.0, 4.0]), numpy.zeros(1)
    exact.Allreduce(mpicoll.Contributions(form(given)), total)
    assert total == 7 * SIZE
    with pytest.raises(mpicoll.BufferError, match="expected 8"):
        exact.Allreduce(mpicoll.Contributions(form(given)), numpy.zeros(4))


def test_nan_and_infinity_make_all_of_a_part_nan(exact):
    for bad in (numpy.nan, numpy.inf, -numpy.inf):
        for dtype in ("f4", "f8", "f2"):
            given = numpy.ones(60, dtype)
            if RANK == SIZE - 1:
                given[7] = bad
            out = numpy.empty_like(given)
            exact.Allreduce(given, out)
            assert numpy.isnan(out).all()
            exact.Allreduce(mpicoll.Contributions(given[None], [0, 8, 60]), out)
            assert numpy.isnan(out[:8]).all() and (out[8:] == SIZE).all()


def test_what_needs_no_rounding_passes(exact):
    assert exact.explain("allreduce", numpy.arange(10)).algorithm == "native"
    exact.Allreduce(MPI.IN_PLACE, total := numpy.arange(10))
    assert (total == SIZE * numpy.arange(10)).all()
    exact.Allreduce(MPI.IN_PLACE, largest := numpy.array([RANK, -RANK], "f4"), op=MPI.MAX)
    assert largest.tolist() == [SIZE - 1, 0]
    exact.Allreduce(MPI.IN_PLACE, flags := numpy.array([RANK == 0, True]), op=MPI.LAND)
    assert flags.tolist() == [SIZE == 1, True]


def test_arrays_with_gaps_and_empty_ones(exact):
    mine, expected = mixed(400, "f4", RANK), alone(contributions(SIZE, 400, "f4"))
    wide = numpy.zeros((400, 2), "f4")
    wide[:, 0] = mine
    exact.Allreduce(MPI.IN_PLACE, wide[:, 0])
    assert wide[:, 0].tobytes() == expected.tobytes() and not wide[:, 1].any()
    exact.Allreduce([mine, MPI.FLOAT], [out := numpy.empty(400, "f4"), 400, MPI.FLOAT])
    assert out.tobytes() == expected.tobytes()
    exact.Allreduce(numpy.empty(0, "f4"), numpy.empty(0, "f4"))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_device_memory(exact, xp, mode, dtype, monkeypatch):
    fakearithmetic.install(monkeypatch)
    gpu.device.optional_cupy.cache_clear()
    mine, expected = mixed(200, dtype, RANK), alone(contributions(SIZE, 200, dtype))
    for given in (xp.array(mine), xp.array(numpy.repeat(mine, 2))[::2]):
        exact.Allreduce(MPI.IN_PLACE, given)
        assert xp.asnumpy(given).tobytes() == expected.tobytes()
    stack = contributions(2 * SIZE, 200, dtype)
    exact.Allreduce(mpicoll.Contributions(xp.array(stack[2 * RANK : 2 * RANK + 2]), [0, 70, 200]), given)
    assert xp.asnumpy(given).tobytes() == alone(stack, [0, 70, 200]).tobytes()
    out = xp.array(numpy.zeros_like(mine))
    exact.Iallreduce(xp.array(mine), out).Wait()
    assert xp.asnumpy(out).tobytes() == expected.tobytes()


REFUSED = [
    ({"op": MPI.PROD}, "PROD rounds at each step"), ({"algorithm": "native"}, "no library"),
    ({"sendbuf": numpy.ones(4, "g"), "recvbuf": numpy.ones(4, "g")}, "(longdouble|float128) cannot"),
    ({"sendbuf": mpicoll.Contributions(numpy.ones((2, 4)), [0, 5])}, "edges: expected ascending numbers from 0 to 4"),
    *(({"sendbuf": mpicoll.Contributions(numpy.ones((2, 4)), edges)}, f"edges: expected .* to 4, .* got {text}")
      for edges, text in (([], r"\[\]"), (4, "4"), ([0.0, 4.0], r"\[0.0"), ([0, 2.5, 4], r"\[0, 2.5"))),
    ({"sendbuf": mpicoll.Contributions(numpy.ones((2, 5)))}, "expected 40"),
    ({"sendbuf": mpicoll.Contributions(numpy.ones((4, 4))[:, ::2])}, "each contribution is contiguous"),
    ({"recvbuf": mpicoll.Contributions(numpy.ones((2, 4)))}, "as a send buffer"),
]  # fmt: skip


@pytest.mark.parametrize("given, text", REFUSED, ids=[text for _, text in REFUSED])
def test_what_is_refused(exact, given, text):
    with pytest.raises((mpicoll.ArgumentError, mpicoll.BufferError), match=text):
        exact.Allreduce(**{"sendbuf": numpy.ones(4), "recvbuf": numpy.ones(4), **given})


def test_too_many_contributions_are_one_error_on_all_ranks(exact):
    many = numpy.ones((4097 if RANK == SIZE - 1 else 1, 2))
    for _ in range(2):
        with pytest.raises(mpicoll.ArgumentError, match="a rank has 4097"):
            exact.Allreduce(mpicoll.Contributions(many), numpy.empty(2))
        with pytest.raises(mpicoll.ArgumentError, match="a rank has 4097"):
            exact.Iallreduce(mpicoll.Contributions(many), numpy.empty(2)).Wait()
    exact.Allreduce(MPI.IN_PLACE, numpy.ones(2))  # and it still works


def test_contributions_need_a_reproducible_communicator(comm):
    with pytest.raises(mpicoll.ArgumentError, match="Contributions are for SUM"):
        comm.Allreduce(mpicoll.Contributions(numpy.ones((2, 4))), numpy.ones(4))
    with pytest.raises(mpicoll.ArgumentError, match="Contributions are for SUM"):
        comm.Allgather(mpicoll.Contributions(numpy.ones((2, 4))), numpy.ones((SIZE, 4)))
