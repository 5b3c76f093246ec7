"""Calls in the wrong place that pair up for a while: the next schedule names the first of them."""

import re
import time

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll.execute import Context
from tests.support.cases import RANK, SIZE, WORLD

pytestmark = pytest.mark.mpi(min_size=2)
HERE, LAST = "test_sequence.py:", SIZE - 1
LARGE = 1 << 17  # float64: 1 MiB
MAX_OF_LAST = f"rank {LAST}: Allreduce of 8 bytes, MAX"


@pytest.fixture(autouse=True)
def python(monkeypatch):
    """In C small calls are schedules, too, and the first wrong one is found at once: see test_doors."""
    monkeypatch.setenv("MPICOLL_ENGINE", "python")


@pytest.fixture(params=["shared memory", "messages"])
def comm(request, monkeypatch):
    """A communicator on which a small and a large call were met before."""
    if request.param == "messages":
        monkeypatch.setenv("MPICOLL_SHARED_MEMORY", "0")
    return acquainted("first")


@pytest.fixture(params=["first", "always", "messages"])
def any_comm(request, monkeypatch):
    """The same, also with all calls compared."""
    if request.param == "messages":
        monkeypatch.setenv("MPICOLL_SHARED_MEMORY", "0")
    return acquainted("always" if request.param == "always" else "first")


def acquainted(check):
    made = mpicoll.Communicator(WORLD.Dup(), check=check)
    for _ in range(2):
        small(made, MPI.SUM)
        small(made, MPI.MAX)
        made.Bcast(np.ones(1))
        large(made)
    return made


def small(comm, op):
    """8 bytes, which MPI serves."""
    comm.Allreduce(MPI.IN_PLACE, np.ones(1), op)


def large(comm):
    comm.Allreduce(MPI.IN_PLACE, np.ones(LARGE), algorithm="ring")


def told_alike(comm, call):
    """The text of the CollectiveMismatch that all ranks raise; later calls are refused."""
    with pytest.raises(mpicoll.CollectiveMismatch) as error:
        call()
    text = str(error.value)
    assert WORLD.allgather(text) == [text] * SIZE
    with pytest.raises(mpicoll.MpicollError, match="(?s)cannot be used any more.*make a new one"):
        large(comm)
    WORLD.Barrier()
    comm.Free()
    return text


def swapped(comm):
    for op in (MPI.MAX, MPI.SUM) if RANK == LAST else (MPI.SUM, MPI.MAX):
        small(comm, op)


def test_small_calls_in_another_order(comm):
    """Two Allreduces that MPI pairs up; what comes after was met before, and is not compared."""
    swapped(comm)
    text = told_alike(comm, lambda: large(comm))
    first = (rf"not have in common:\n  ranks? 0.*: Allreduce of 8 bytes, SUM, float64 at .*{HERE}\d+\n"
             rf"  rank {LAST}: Allreduce of 8 bytes, MAX, float64 at .*{HERE}\d+\n"
             rf"They are now in:\n  ranks 0.*: Allreduce of 1048576 bytes, SUM, float64 at .*{HERE}\d+")  # fmt: skip
    assert re.search(first, text), text


@pytest.mark.parametrize("after", ["Ibcast", "Iallreduce"])
def test_a_later_call_that_does_not_block(comm, after):
    for _ in range(2):
        comm.Ibcast(np.ones(LARGE), algorithm="binomial").Wait()
        comm.Iallreduce(MPI.IN_PLACE, np.ones(LARGE), algorithm="ring").Wait()
    swapped(comm)

    def call():
        if after == "Ibcast":  # its root only sends
            comm.Ibcast(np.ones(LARGE), algorithm="binomial").Wait()
        comm.Iallreduce(MPI.IN_PLACE, np.ones(LARGE), algorithm="ring").Wait()

    text = told_alike(comm, call)
    assert "Allreduce of 8 bytes, SUM" in text and MAX_OF_LAST in text, text


def test_a_later_call_that_is_compared(comm):
    """It is the same on all ranks."""
    swapped(comm)
    text = told_alike(comm, lambda: comm.Bcast(np.ones(LARGE + 1), algorithm="binomial"))
    assert "did not make the same calls before this one" in text and MAX_OF_LAST in text, text


def test_a_schedule_left_out(comm):
    """Then others of its kind follow: messages of one number are of different calls."""
    for _ in range(2):
        comm.Bcast(np.ones(LARGE), algorithm="binomial")

    def call():
        for number in range(3):
            if RANK != LAST or number:
                comm.Bcast(np.ones(LARGE), algorithm="binomial")
        for _ in range(3):
            large(comm)

    text = told_alike(comm, call)
    assert text.count(HERE) >= 2 and "do not have in common" in text, text


def test_calls_with_lines(comm):
    """Two that schedules serve, in another order on one rank: both lines are named."""
    x = np.ones(LARGE)
    calls = [lambda: comm.Bcast(x, algorithm="binomial"), lambda: large(comm)]
    for call in calls:
        call()
    text = told_alike(comm, lambda: [call() for call in (calls[::-1] if RANK == LAST else calls)])
    bcast = rf"  ranks? 0.*: Bcast of \d+ bytes, root 0 at .*{HERE}\d+\n"
    reduction = rf"  rank {LAST}: Allreduce of \d+ .* at .*{HERE}\d+\n"
    assert re.search(f"do not have in common:\n{bcast}{reduction}", text), text


# ---- where all calls are compared


def test_small_calls_are_compared_now_and_then():
    """One of 512; nothing else is called."""
    comm = acquainted("always")
    swapped(comm)

    def call():
        for _ in range(512):
            small(comm, MPI.SUM)

    text = told_alike(comm, call)
    first = rf"before that:\n  ranks? 0.*: Allreduce of 8 bytes, SUM.*\n  {MAX_OF_LAST}"
    assert re.search(first, text), text


def test_how_many_are_compared():
    comm = acquainted("always")
    before = Context.of(comm).comparisons
    for number in range(1024):
        small(comm, MPI.SUM)
        if number % 3 == 0:  # one rank parses it
            comm.Bcast(np.ones(2)[::2] if RANK == LAST else np.ones(1))
    assert Context.of(comm).comparisons - before == (1024 + 342) // 512
    comm.Free()


def test_small_calls_of_which_not_all_are_parsed():
    """A small Reduce is recognised, where it is not to be compared."""
    comm = acquainted("always")
    few, whole = np.ones(1), np.ones(1)
    before = Context.of(comm).comparisons
    for _ in range(600):
        comm.Reduce(few, whole, MPI.SUM)
    assert Context.of(comm).comparisons - before == 2  # the first, and number 513
    assert RANK or whole[0] == SIZE
    comm.Free()


def test_what_is_left_is_compared_before_it_is_freed():
    comm = acquainted("always")
    swapped(comm)
    with pytest.raises(mpicoll.CollectiveMismatch, match=MAX_OF_LAST):
        comm.Free()
    WORLD.Barrier()
    comm.Free()


def test_a_rank_that_frees_later_than_the_others_wait():
    """MPI does not say that freeing a communicator waits for all ranks."""
    comm = acquainted("always")
    if RANK != LAST:
        comm.Free()
    WORLD.Barrier()
    if RANK == LAST:
        comm.Free()
    for _ in range(3):
        again = acquainted("always")
        again.Free()


def test_a_small_call_that_is_refused_on_one_rank():
    """The others are in MPI's own call, and cannot be told: this rank does not wait for them."""
    comm = acquainted("always")
    if RANK == LAST:
        with pytest.raises(mpicoll.BufferError):
            comm.Allreduce(np.ones(1), np.ones(2))
        MPI.Intracomm.Allreduce(comm, MPI.IN_PLACE, np.ones(1))
    else:
        small(comm, MPI.SUM)
    with pytest.raises(mpicoll.MpicollError, match="expected 8" if RANK == LAST else None):
        large(comm)
    WORLD.Barrier()
    comm.Free()


# ---- what is legal


def test_ranks_that_are_late_or_far_ahead(any_comm):
    """The root is many calls ahead of the others, which wait for each other."""
    comm, x = any_comm, np.ones(4)
    for number in range(300):
        comm.Bcast(x, root=0, algorithm="linear")
        if number % 100 == 99 and RANK == LAST:
            slowly()
        if number % 7 == 0:
            comm.Bcast(np.ones(1), root=LAST)
    large(comm)
    comm.Free()


def slowly():
    """Other ranks look around meanwhile."""
    time.sleep(0.1)


def test_other_spellings_other_memory_and_refused_arguments(any_comm):
    """What one rank parses, another does not; a call that was refused is none."""
    comm, few, x = any_comm, np.ones(1), np.ones(LARGE)
    readonly = np.ones(1)
    readonly.flags.writeable = False
    for number in range(700):
        last = RANK == LAST
        comm.Allreduce(MPI.IN_PLACE, [few, MPI.DOUBLE] if last and number % 2 else few, MPI.MAX)
        comm.Bcast(np.ones(2)[::2] if last and number % 3 else few)
        comm.Ibcast([few, 1, MPI.DOUBLE] if last and number % 5 else few).Wait()
        comm.Allgather(few.copy() if last else few, np.empty(SIZE))
        if number % 50 == 0 and last and Context.of(comm).check == "first":
            with pytest.raises(mpicoll.BufferError):
                comm.Allreduce(few, readonly, MPI.MAX)
            with pytest.raises(mpicoll.BufferError):
                comm.Allreduce(few, np.ones(2), MPI.MAX)
        if number % 100 == 0:
            comm.Allreduce(MPI.IN_PLACE, x.copy() if last else x, algorithm="ring")
            comm.Bcast(np.ones(LARGE + number))
    comm.Free()


def test_plans_duplicates_and_parts(any_comm):
    """They share a wire, and what is begun on them may be waited for in any order."""
    comm, x, y = any_comm, np.ones(LARGE), np.ones(LARGE)
    others = [comm.Dup(), comm.Split(0, -RANK), comm.Split(RANK % 2, RANK)]
    plans = [
        comm.Allreduce_init(MPI.IN_PLACE, x, algorithm="ring"),
        comm.Bcast_init(y, algorithm="binomial"),
    ]
    for number in range(20):
        small(comm, MPI.SUM)
        requests = [one.Iallreduce(MPI.IN_PLACE, x.copy(), algorithm="ring")
                    for one in [comm, *others]]  # fmt: skip
        for plan in plans:
            plan.Start()
        if number % 10 == 0 and RANK == LAST:
            slowly()
        for one in (requests + plans)[:: -1 if RANK else 1]:
            one.Wait()
        for one in others:
            small(one, MPI.SUM)
            large(one)
    for plan in plans:
        plan.Free()
    for one in [*others, comm]:
        one.Free()
