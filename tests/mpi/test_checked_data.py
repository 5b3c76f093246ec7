"""What `check="always"` and `check="digest"` find beside calls that differ: wrong results, and buffers written to too early."""

import gc
import time
from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from tests.support.cases import RANK, SIZE, WORLD

pytestmark = pytest.mark.mpi(min_size=2)
SIZES, LAST = [4, 20_000], SIZE - 1
WORDS = [None, "native", "recursive_doubling"]


def flipped(a, b, datatype):
    """A sum that one rank alone gets wrong."""
    result = np.frombuffer(b)
    result += np.frombuffer(a)
    if RANK == LAST:
        result[-1] += 1


def own(**options):
    return mpicoll.Communicator(WORLD.Dup(), **options)


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("blocking", [True, False])
def test_a_result_that_is_not_the_same_on_all_ranks(count, blocking):
    comm, op = own(check="digest"), MPI.Op.Create(flipped, commute=True)
    x, y = np.ones(count), np.zeros(count)
    for _ in range(3):
        comm.Allreduce(x, y)
        comm.Bcast(x)
    with pytest.raises(mpicoll.CollectiveMismatch, match="not the same on all ranks") as error:
        if blocking:
            comm.Allreduce(x, y, op, algorithm="recursive_doubling")
        else:
            comm.Iallreduce(x, y, op, algorithm="recursive_doubling").Wait()
    assert WORLD.allgather(str(error.value)) == [str(error.value)] * SIZE
    assert f"rank {LAST}: Allreduce of {8 * count} bytes at " in str(error.value)
    assert str(error.value).count("test_checked_data.py:") == 2
    comm.Free()
    op.Free()


def test_one_of_so_many_results_is_compared():
    comm, op = own(check="first,digest:3"), MPI.Op.Create(flipped, commute=True)
    x, y = np.ones(4), np.zeros(4)
    comm.Allreduce(x, y, op)
    comm.Allreduce(x, y, op)
    with pytest.raises(mpicoll.CollectiveMismatch):
        comm.Allreduce(x, y, op)
    comm.Free()
    op.Free()


@pytest.mark.parametrize("algorithm", WORDS)
@pytest.mark.parametrize("count", SIZES)
def test_what_is_right_passes(count, algorithm):
    """All forms, other memory, gaps, NaNs of other bits, contributions of other sizes."""
    comm = own(check="always,digest")
    wide = np.full(2 * count, 1.0)
    x, y = (wide[::2] if RANK else np.ones(count)), np.zeros(count)
    x[0] = -np.nan if RANK else np.nan
    for _ in range(2):
        comm.Allreduce(x, y, algorithm=algorithm)
        comm.Iallreduce(x, y, algorithm=algorithm).Wait()
        comm.Allreduce(MPI.IN_PLACE, y, MPI.MAX, algorithm=algorithm)
        comm.Bcast(y, algorithm=None if algorithm == "recursive_doubling" else algorithm)
        counts = [rank * count for rank in range(SIZE)]
        whole = np.zeros(sum(counts))
        comm.Allgatherv(np.full(RANK * count, 2.0), [whole, counts])
        comm.Iallgatherv(np.full(RANK * count, 2.0), [whole, counts]).Wait()
        plan = comm.Allreduce_init(x, y, algorithm=algorithm)
        for _ in range(2):
            plan.Start()
            plan.Wait()
        plan.Free()
    comm.Free()


@pytest.mark.parametrize("algorithm", WORDS)
@pytest.mark.parametrize("count", SIZES)
def test_a_send_buffer_that_is_written_to_before_wait(count, algorithm):
    comm = own(check="always")
    x, y = np.ones(count), np.zeros(count)
    request = comm.Iallreduce(x, y, algorithm=algorithm)
    if RANK == LAST:
        x[-1] = 7
        with pytest.raises(mpicoll.BufferError, match="send buffer of Iallreduce .*test_checked_data.py:"):
            request.Wait()
        x[-1] = 1
    else:
        request.Wait()
    comm.Allreduce(x, y)
    assert (y == SIZE).all()
    comm.Free()


def test_a_receive_buffer_that_is_written_to_before_wait():
    comm = own(check="always")
    x = np.ones(1000)
    request = comm.Ibcast(x)
    WORLD.Barrier()
    if RANK == LAST:
        until = time.monotonic() + 60
        while not request.task.ended and time.monotonic() < until:
            time.sleep(0.01)
        x[3] = 7
        with pytest.raises(mpicoll.BufferError, match="receive buffer of Ibcast"):
            while not request.Test():
                pass
    else:
        request.Wait()
    comm.Free()


@pytest.mark.parametrize("algorithm", ["ring", "native"])
def test_a_buffer_that_is_written_to_while_a_plan_runs(algorithm):
    comm = own(check="always")
    x, y = np.ones(1000), np.zeros(1000)
    plan = comm.Allreduce_init(x, y, algorithm=algorithm)
    plan.Start()
    x[RANK] = 7
    with pytest.raises(mpicoll.BufferError, match=r"Allreduce_init .*test_checked_data.py:\d+"):
        plan.Wait()
    x[:] = 1
    plan.Start()
    plan.Wait()
    assert (y == SIZE).all()
    plan.Free()
    comm.Free()


@pytest.mark.parametrize("algorithm", ["linear", "native"])
def test_the_buffer_of_the_root_of_a_bcast(algorithm):
    """It is only read, but where codes take the place of its elements: then the root gets what the others decode."""
    comm = own(check="always")
    x = np.random.default_rng(RANK).standard_normal(5000)
    plan = comm.Bcast_init(x, algorithm="linear", compression="int8")
    for _ in range(2):
        comm.Ibcast(x, algorithm="linear", compression="int8").Wait()
        plan.Start()
        plan.Wait()
    plan.Free()
    request = comm.Ibcast(x, algorithm=algorithm)
    if RANK == 0:
        x[3] += 1
        with pytest.raises(mpicoll.BufferError, match="send buffer of Ibcast"):
            request.Wait()
    else:
        request.Wait()
    comm.Free()


def test_what_is_written_while_a_plan_starts(monkeypatch):
    """The digest of the input is made before."""
    comm = own(check="always")
    x, y = np.ones(1000), np.zeros(1000)
    guarded = comm.Allreduce_init(x, y, algorithm="native")
    start = guarded.plan.Start
    monkeypatch.setattr(guarded, "plan", SimpleNamespace(
        Start=lambda: (start(), x.__setitem__(0, 7)), Wait=guarded.plan.Wait, Free=guarded.plan.Free))  # fmt: skip
    guarded.Start()
    with pytest.raises(mpicoll.BufferError, match="send buffer of Allreduce_init"):
        guarded.Wait()
    guarded.Free()
    comm.Free()


@pytest.mark.parametrize("algorithm", ["native", "binomial"])
def test_the_padding_of_long_doubles_is_no_result(algorithm):
    """MPI leaves it as it was where it packs elements one by one."""
    comm = own(check="always,digest")
    spaced = MPI.LONG_DOUBLE.Create_resized(0, 2 * MPI.LONG_DOUBLE.Get_extent()[1]).Commit()
    room = np.full(40 * np.dtype("g").itemsize, RANK + 1, np.uint8).view("g")
    for repetition in range(20):
        room[:] = repetition
        for _ in range(10):  # what a new array finds in its memory
            np.full(20 * room.itemsize, RANK + 1, np.uint8)
        comm.Bcast([room, 20, spaced], algorithm=algorithm)
    spaced.Free()
    comm.Free()


@pytest.mark.parametrize("algorithm", ["native", "binomial"])
def test_a_derived_type_and_an_array_have_the_same_digest(algorithm):
    """NaNs of any bits among them."""
    comm = own(check="always,digest")
    spaced = MPI.DOUBLE.Create_resized(0, 16).Commit()
    pair = spaced.Create_contiguous(2).Commit()
    room = np.full(80, 0xFFF8_0000_0000_0001 if RANK == 0 else 0, np.uint64).view(float)
    comm.Bcast([room, 20, pair] if RANK == 0 else room[::2], algorithm=algorithm)
    assert np.isnan(room[::2]).all()
    pair.Free()
    spaced.Free()
    comm.Free()


@pytest.mark.parametrize("check", ["digest:0", "digest:x", "always,often", "digest:-1", "first;digest"])
def test_words_that_there_are_not(check):
    with pytest.raises(mpicoll.ArgumentError, match="check=.*: expected off, first or always; or digest or digest:N"):
        mpicoll.Communicator(WORLD, check=check)
    gc.collect()
