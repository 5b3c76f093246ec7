"""One order of adding: the same bits whatever the size, the pieces, the transport and the form of a call."""

import numpy
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll import algorithms
from tests.support.cases import RANK, SIZE, WORLD
from tests.support.exact import ALL, in_canonical_order, mixed

pytestmark = pytest.mark.mpi

COUNTS = (1, 7, 6001)


@pytest.fixture
def strict():
    made = mpicoll.Communicator(WORLD.Dup(), deterministic=True)
    yield made
    made.Free()


def whole(count, dtype):
    """What all ranks should get."""
    return in_canonical_order([mixed(count, dtype, rank) for rank in range(SIZE)])


def canonical(collective):
    return [None, *(one.name for one in algorithms.registered(collective) if one.canonical)]


@pytest.mark.parametrize("dtype", ["f4", "f2"] if not ALL else ["f4", "f8", "f2", "c8", "c16"])
def test_allreduce_in_every_form(strict, dtype):
    for count in COUNTS:
        mine, expected = mixed(count, dtype, RANK), whole(count, dtype).tobytes()
        for word in canonical("allreduce"):
            for segment in (None, 4096) if count > 1000 else (None,):
                keywords = {"algorithm": word, "segment_bytes": segment}
                out, inside, shared = numpy.empty_like(mine), mine.copy(), strict.empty(count, dtype)
                strict.Allreduce(mine, out, **keywords)
                strict.Iallreduce(MPI.IN_PLACE, inside, **keywords).Wait()
                shared[:] = mine
                plan = strict.Allreduce_init(MPI.IN_PLACE, shared, **keywords)
                plan.Start()
                plan.Wait()
                plan.Free()
                assert {one.tobytes() for one in (out, inside, shared)} == {expected}, (count, word, segment)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_reduce_and_reduce_scatter(strict, dtype):
    for count in COUNTS:
        count *= SIZE
        mine, expected, block = mixed(count, dtype, RANK), whole(count, dtype), count // SIZE
        counts = [2 * block - 1 if rank == 0 else 1 if rank == 1 else block for rank in range(SIZE)] if SIZE > 1 else [count]
        for word in canonical("reduce_scatter"):
            out = numpy.empty(block, dtype)
            strict.Reduce_scatter_block(mine, out, algorithm=word)
            assert out.tobytes() == expected[block * RANK :][:block].tobytes(), (count, word)
            out, first = numpy.empty(counts[RANK], dtype), sum(counts[:RANK])
            strict.Ireduce_scatter(mine, out, counts, algorithm=word).Wait()
            assert out.tobytes() == expected[first:][: counts[RANK]].tobytes(), (count, word)
        for root in range(SIZE):
            out = numpy.empty_like(mine)
            strict.Reduce(mine, out if RANK == root else None, root=root)
            assert RANK != root or out.tobytes() == expected.tobytes()


def test_device_memory_gives_the_same_bits(strict, xp, mode):
    mine, expected = mixed(5000, "f4", RANK), whole(5000, "f4")
    there = xp.array(mine)
    strict.Allreduce(MPI.IN_PLACE, there)
    assert xp.asnumpy(there).tobytes() == expected.tobytes()


def test_other_orders_are_refused_and_mpi_is_never_asked(strict):
    mine = mixed(100_000, "f4", RANK)
    for word in ("ring", "native", "circulant"):
        with pytest.raises(mpicoll.ArgumentError, match="the communicator is deterministic"):
            strict.Allreduce(MPI.IN_PLACE, mine, algorithm=word)
    for count in (1, 100, 10_000, 100_000):
        assert strict.explain("allreduce", mine[:count]).algorithm in canonical("allreduce")
    assert strict.explain("allreduce", mine, op=MPI.MAX).algorithm in canonical("allreduce")
    assert strict.explain("bcast", mine[:10]).algorithm == "native"  # nothing is computed


def test_whole_numbers_may_be_added_in_any_order(strict):
    strict.Allreduce(MPI.IN_PLACE, total := numpy.arange(10), algorithm="ring")
    assert (total == SIZE * numpy.arange(10)).all()
    assert strict.explain("allreduce", numpy.arange(10)).algorithm == "native"


def test_an_op_of_ones_own_keeps_the_order(strict):
    def minus_twice(one, other, datatype):
        lower, higher = (numpy.frombuffer(buffer, "f8") for buffer in (one, other))
        higher[:] = lower - 2 * higher

    op = MPI.Op.Create(minus_twice, commute=False)
    first = numpy.array([RANK + 1.0] * 9)
    strict.Allreduce(MPI.IN_PLACE, first, op=op)
    other = numpy.array([RANK + 1.0] * 9)
    strict.Allreduce(MPI.IN_PLACE, other, op=op, algorithm="recursive_doubling")
    assert (first == other).all()
    op.Free()


def test_the_environment_and_what_is_made_from_a_communicator(monkeypatch):
    monkeypatch.setenv("MPICOLL_DETERMINISTIC", "1")
    comm = mpicoll.Communicator(WORLD.Dup())
    part = comm.Split(0)
    for one in (comm, part):
        with pytest.raises(mpicoll.ArgumentError, match="deterministic"):
            one.Allreduce(MPI.IN_PLACE, numpy.ones(4), algorithm="native")
    ordinary = mpicoll.Communicator(comm, deterministic=False)
    ordinary.Allreduce(MPI.IN_PLACE, numpy.ones(4), algorithm="native")
    part.Free()
    comm.Free()
    monkeypatch.setenv("MPICOLL_DETERMINISTIC", "maybe")
    with pytest.raises(mpicoll.ArgumentError, match="MPICOLL_DETERMINISTIC=maybe: expected 0 or 1"):
        mpicoll.Communicator(WORLD)


@pytest.mark.mpi(min_size=2)
def test_ranks_must_agree():
    with pytest.raises(mpicoll.ArgumentError, match="ranks disagree about deterministic"):
        mpicoll.Communicator(WORLD, deterministic=RANK > 0)
