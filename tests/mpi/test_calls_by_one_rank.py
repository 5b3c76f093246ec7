"""What one rank alone does in its own way: empty contributions, odd memory, settings, errors; the others go on or are told."""

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from tests.support.cases import RANK, SIZE, WORLD, same
from tests.support.forked import status_of_child

pytestmark = pytest.mark.mpi
LAST = SIZE - 1
FORMS = ["blocking", "nonblocking", "persistent"]


def served(comm, form, method, *arguments, **keywords):
    """Make a call in one of its forms."""
    if form == "blocking":
        return getattr(comm, method)(*arguments, **keywords)
    name = f"I{method.lower()}" if form == "nonblocking" else f"{method}_init"
    request = getattr(comm, name)(*arguments, **keywords)
    if form == "persistent":
        request.Start()
    request.Wait()
    if form == "persistent":
        request.Free()


# ---- contributions of nothing


@pytest.mark.parametrize("check", ["first", "always"])
@pytest.mark.parametrize("algorithm", [None, "native", "other"])
@pytest.mark.parametrize("form", FORMS)
def test_a_contribution_of_nothing_has_no_type(form, algorithm, check):
    comm = mpicoll.Communicator(WORLD.Dup(), check=check)
    word = dict.fromkeys(["Gatherv", "Scatterv"], "linear") | {"Allgatherv": "ring", "Alltoallv": "pairwise"}
    counts = [5] * LAST + [0]
    whole, nothing = np.arange(sum(counts)), np.array([])  # of float64
    mine = nothing if RANK == LAST else whole[5 * RANK :][:5].copy()
    for method in word:
        chosen = word[method] if algorithm == "other" else algorithm
        result = np.zeros_like(whole)
        if method == "Allgatherv":
            served(comm, form, method, mine, [result, counts], algorithm=chosen)
            same(result, whole)
        elif method == "Gatherv":
            served(comm, form, method, mine, [result, counts] if RANK == 0 else None, 0, algorithm=chosen)
            same(result, whole if RANK == 0 else 0 * whole)
        elif method == "Scatterv":
            block = nothing if RANK == LAST else np.zeros(5, int)
            served(comm, form, method, [whole, counts] if RANK == 0 else None, block, 0, algorithm=chosen)
            same(block, mine)
        else:  # the last rank has nothing for anybody, and gets all
            sent = [0] * LAST + [0 if RANK == LAST else 5]
            received = [5] * LAST + [0] if RANK == LAST else [0] * SIZE
            result = np.zeros(5 * LAST, int) if RANK == LAST else nothing
            served(comm, form, method, [mine, sent], [result, received], algorithm=chosen)
            same(result, whole if RANK == LAST else nothing)
    comm.Free()


@pytest.mark.skipif(SIZE == 1, reason="one rank has one type")
def test_other_types_are_still_a_mismatch(comm):
    block = np.zeros(4, "f8" if RANK else "i8")
    with pytest.raises(mpicoll.CollectiveMismatch, match="float64"):
        comm.Allgatherv(block, [np.zeros(4 * SIZE, block.dtype), [4] * SIZE])


# ---- memory


def misaligned(count, value, dtype="i8"):
    """An array whose elements lie one byte off."""
    array = np.ndarray(count, dtype, bytearray(count * np.dtype(dtype).itemsize + 1), 1)
    array[:] = value
    assert not array.flags.aligned
    return array


@pytest.mark.parametrize("check", ["first", "always"])
@pytest.mark.parametrize("algorithm", [None, "native", "ring"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [3, 50_000])
def test_misaligned_arrays_of_one_rank(count, form, algorithm, check):
    comm = mpicoll.Communicator(WORLD.Dup(), check=check)
    x = misaligned(count, RANK + 1) if RANK == LAST else np.full(count, RANK + 1)
    y = misaligned(count, 0) if RANK == 0 else np.zeros(count, int)
    for _ in range(3):
        y[:] = 0
        served(comm, form, "Allreduce", x, y, algorithm=algorithm)
        same(y, np.full(count, SIZE * (SIZE + 1) // 2))
        served(comm, form, "Allreduce", [x, count, MPI.INT64_T], [y, count, MPI.INT64_T], algorithm=algorithm)
        same(y, np.full(count, SIZE * (SIZE + 1) // 2))
        served(comm, form, "Bcast", y, 0)
    comm.Free()


@pytest.mark.parametrize("method", ["Bcast", "Ibcast", "Allreduce", "Iallreduce", "Allgather", "Alltoall"])
@pytest.mark.parametrize("make", [np.zeros, lambda count: bytearray(8 * count)], ids=["array", "bytearray"])
def test_a_count_beyond_the_buffer_is_refused_after_good_calls(comm, method, make):
    """MPI would write past the end."""

    def call(buffer):
        message = [buffer, 8, MPI.DOUBLE]
        arguments = [message] if "cast" in method else [[make(8 * SIZE), 8, MPI.DOUBLE], message]
        if request := getattr(comm, method)(*arguments):
            request.Wait()

    blocks = SIZE if method in ("Allgather", "Alltoall") else 1
    for _ in range(3):
        call(make(8 * blocks))
    with pytest.raises(mpicoll.BufferError):
        call(make(8 * blocks - 1))
    call(make(8 * blocks))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [4, 100_000])
def test_types_of_one_array_under_two_names_are_compared(comm, form, count):
    x = np.ones(count, "f4")
    with pytest.raises(mpicoll.BufferError, match="send buffer int32, receive buffer float32"):
        served(comm, form, "Allreduce", x.view("i4"), x)


# ---- the choice, settings, errors


@pytest.mark.skipif(SIZE == 1, reason="nothing is probed")
def test_after_a_probe_all_ranks_choose_alike(monkeypatch):
    """A call that was remembered before it, and one that never is."""
    monkeypatch.setenv("MPICOLL_PROBE", "0.2")
    comm = mpicoll.Communicator(WORLD.Dup())
    count = 40_000
    wide, y = np.ones(2 * count), np.zeros(count)
    for _ in range(3):
        x = wide[::2] if RANK == LAST else wide[:count]
        comm.Iallreduce(x, y).Wait()
        comm.Allreduce(np.ones(count), y)
        same(y, np.full(count, float(SIZE)))
    comm.Free()


@pytest.mark.skipif(SIZE == 1, reason="one rank agrees with itself")
@pytest.mark.parametrize("name, value", [("timeout", 30), ("check", "always"), ("deterministic", True)])
def test_a_setting_that_one_rank_alone_gives(name, value):
    with pytest.raises(mpicoll.ArgumentError, match=f"ranks disagree about {name}: rank 0: {value}; ranks? 1.*: None"):
        mpicoll.Communicator(WORLD.Dup(), **({name: value} if RANK == 0 else {}))


class Odd:
    """A buffer that says what it is with an error that nobody expects."""

    @property
    def __cuda_array_interface__(self):
        raise RuntimeError("this device is gone")


@pytest.mark.skipif(SIZE == 1, reason="nobody else waits")
@pytest.mark.parametrize("form", FORMS)
def test_any_error_before_the_comparison_reaches_the_others(form):
    comm = mpicoll.Communicator(WORLD.Dup(), check="always")
    x = np.ones(10)
    with pytest.raises(mpicoll.CollectiveMismatch, match="a call whose arguments were refused"):
        served(comm, form, "Allreduce", Odd() if RANK == LAST else x, np.zeros(10))


@pytest.mark.skipif(SIZE < 2, reason="needs another rank")
def test_calls_in_a_forked_child_are_refused(comm):
    """The other ranks would take its messages for those of its parent. Also calls that the parent has repeated."""
    small, large = np.full(3, 1.0), np.full(50_000, 1.0)
    plan = comm.Allreduce_init(large, np.empty_like(large), algorithm="ring")

    def every_call():
        for x, word in ((small, None), (large, "ring"), (large, "native")):
            yield lambda x=x, word=word: comm.Allreduce(x, np.empty_like(x), algorithm=word)
            yield lambda x=x, word=word: comm.Iallreduce(x, np.empty_like(x), algorithm=word).Wait()
        yield comm.Barrier
        yield lambda: (plan.Start(), plan.Wait())

    def all_are_refused():
        for number, call in enumerate(every_call()):
            with pytest.raises(mpicoll.MpicollError, match="got one in a child that was forked from it") as raised:
                call()
            assert str(raised.value).startswith(f"rank {RANK}: expected a call in a process that MPI has started"), number
        return True

    for lap in range(3):
        for call in every_call():
            call()
        if RANK == LAST and lap:
            assert status_of_child(all_are_refused) == 0
    plan.Free()
