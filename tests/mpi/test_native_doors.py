"""Repeated calls that MPI's own functions serve: they pass without Python, and nothing else does."""

import threading
import time
import weakref

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll import engine
from mpicoll.failure import ENDED
from tests.support.cases import RANK, SIZE, WORLD, Case, expected, forms_of, roots_of, same

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.interpreters("c"),
    pytest.mark.skipif(not engine.has_doors(), reason=f"no doors: {engine.status().reason}"),
]
METHODS = (
    "Bcast", "Reduce", "Allreduce", "Reduce_scatter_block", "Allgather", "Alltoall", "Gather", "Scatter",
)  # fmt: skip


def passed(comm, call):
    """Whether the call went through a door: it has its place at once, and no other calls got theirs."""
    recorder = comm._context.recorder
    before = len(recorder.passed)
    call()
    return len(recorder.passed) == before + 1


def known(comm, *arguments, **options):
    """A function that makes the call, once the door knows it."""

    def call(*others):
        comm.Allreduce(*(others or arguments), algorithm="native", **options)

    call()
    assert passed(comm, call)
    return call


def plain(x):
    return x


def with_type(x):
    return [x, {"i8": MPI.INT64_T, "f4": MPI.FLOAT}[x.dtype.str[1:]]] if isinstance(x, np.ndarray) else x


@pytest.mark.parametrize("spelled", [plain, with_type])
@pytest.mark.parametrize("method", METHODS)
def test_each_call_gets_its_parameters(comm, method, spelled):
    for dtype, form, root in [(d, f, r) for d in ("i8", "f4") for f in forms_of(method) for r in roots_of(method)]:
        through_a_door = []
        for _ in range(3):
            case = Case(method, SIZE + 1, root, form, dtype=dtype)
            is_one = case.arguments[0] is case.arguments[1]
            case.arguments = tuple(map(spelled, case.arguments))
            through_a_door.append(passed(comm, lambda: case.call(comm, algorithm="native")))
            same(case.result, expected(method, SIZE + 1, root, dtype))
        # one array for both buffers is not what MPI takes
        assert through_a_door[1:] == [not is_one] * 2, (form, root)


def test_small_calls_without_options_pass_from_the_third_time_on(comm):
    x = np.ones(2 * SIZE)
    y = np.ones(SIZE)
    through_doors = [passed(comm, lambda: comm.Alltoall(x, np.empty(2 * SIZE))) for _ in range(4)]
    assert through_doors[2:] == [True, True]
    lists = [x, 2, MPI.DOUBLE], [np.empty(2 * SIZE), 2, MPI.DOUBLE]
    assert [passed(comm, lambda: comm.Alltoall(*lists)) for _ in range(3)] == [False, True, True]
    assert not passed(comm, lambda: comm.Alltoall(memoryview(x), np.empty(2 * SIZE)))
    assert not passed(comm, lambda: comm.Ialltoall(x, np.empty(2 * SIZE)).Wait())
    with pytest.raises(mpicoll.BufferError):
        comm.Alltoall(x, y)


def test_what_differs_goes_the_long_way(comm):
    x, y, n = np.ones(8), np.empty(8), np.ones(9)
    call = known(comm, x, y)
    assert passed(comm, lambda: call(np.ones(8), np.empty(8)))
    assert not passed(comm, lambda: call(np.ones(8, "i8"), np.empty(8, "i8")))
    assert not passed(comm, lambda: call(n, np.empty(9)))
    assert not passed(comm, lambda: call(MPI.IN_PLACE, n))
    assert not passed(comm, lambda: comm.Allreduce(x, y, MPI.MAX, algorithm="native"))
    assert not passed(comm, lambda: call(y, y))
    with pytest.raises(mpicoll.BufferError, match="overlap"):
        call(n[:8], n[1:])
    with pytest.raises(mpicoll.BufferError, match="has 72 bytes, expected 64"):
        call(x, n)
    y.flags.writeable = False
    with pytest.raises(mpicoll.BufferError, match="read-only"):
        call(x, y)


def test_an_op_of_the_user_is_looked_at_each_time(comm):
    op = MPI.Op.Create(lambda a, b, dtype: np.frombuffer(b)[:].__iadd__(np.frombuffer(a)), commute=True)
    x, y = np.ones(8), np.empty(8)
    assert not any([passed(comm, lambda: comm.Allreduce(x, y, op, algorithm="native")) for _ in range(3)])
    op.Free()
    with pytest.raises(mpicoll.ArgumentError, match="expected an MPI.Op"):
        comm.Allreduce(x, y, op, algorithm="native")


def test_what_does_not_pass(comm):
    empty, strided = np.ones(0), np.ones(16)[::2]
    derived = MPI.DOUBLE.Create_contiguous(2).Commit()
    for send in [empty, strided, memoryview(np.ones(8)), [memoryview(np.ones(8)), MPI.DOUBLE], [np.ones(8), "d"]]:
        received = np.empty(0 if send is empty else 8)
        assert not any([passed(comm, lambda: comm.Allreduce(send, received, algorithm="native")) for _ in range(3)])
    for message in [np.ones(8), 4, derived], [np.ones(8), (4, 2), MPI.DOUBLE], bytearray(8):
        assert not any([passed(comm, lambda: comm.Bcast(message, 0, algorithm="native")) for _ in range(3)])
    derived.Free()


def test_a_list_that_was_changed(comm):
    """It is compared item by item each time: what differs raises the errors of the long way."""
    x, y = [np.ones(8), 8, MPI.DOUBLE], [np.empty(8), 8, MPI.DOUBLE]
    call = known(comm, x, y)
    x[0] = np.full(8, 2.0)
    y[0] = np.empty(8)
    assert passed(comm, call)
    same(y[0], np.full(8, 2.0 * SIZE))
    for item, other, error in [
        (0, np.ones(2), "reach bytes 0 to 64 of a buffer of 16 bytes"),
        (0, np.ones(8, "f4"), "reach bytes 0 to 64 of a buffer of 32 bytes"),
        (1, 7, "has 64 bytes, expected 56"),
        (1, 9, "reach bytes 0 to 72 of a buffer of 64 bytes"),
        (2, MPI.INT64_T, "types differ"),
        (2, MPI.DATATYPE_NULL, "expected an MPI datatype"),
    ]:
        before, x[item] = x[item], other
        with pytest.raises(mpicoll.BufferError, match=error):
            call()
        x[item] = before
        assert passed(comm, call)
    x[1:1] = [8]
    with pytest.raises(mpicoll.BufferError, match="reach bytes 64 to 128"):
        call()
    x[:] = []
    with pytest.raises(mpicoll.BufferError, match="a list of 2 to 4 items"):
        call()
    x[:] = [np.full(8, 3.0), MPI.DOUBLE]
    assert not passed(comm, call)  # two items are another form of it
    same(y[0], np.full(8, 3.0 * SIZE))
    x[:] = [y[0], 8, MPI.DOUBLE]
    assert not passed(comm, call)  # one array for both
    same(y[0], np.full(8, 3.0 * SIZE * SIZE))
    whole = np.ones(9)
    x[0], y[0] = whole[:8], whole[1:]
    with pytest.raises(mpicoll.BufferError, match="overlap"):
        call()


@pytest.mark.skipif(SIZE == 1, reason="a call that waits")
def test_a_list_that_changes_during_the_call(comm):
    """The array that MPI writes to lives on, and gets the result."""
    memory = np.zeros(1000)
    message = [memory.view(), MPI.DOUBLE]
    for _ in range(2):
        comm.Bcast(message, 0, algorithm="native")
    message[0] = memory.view()
    written, alive = weakref.ref(message[0]), []

    def change():
        time.sleep(0 if RANK else 1)
        while RANK and not comm._context.recorder.is_passing:
            time.sleep(0.001)
        message[0] = np.zeros(1000)
        alive.append(written() is not None)

    thread = threading.Thread(target=change)
    WORLD.Barrier()
    thread.start()
    if RANK == 0:
        thread.join()
        message[0] = np.ones(1000).view()
    assert passed(comm, lambda: comm.Bcast(message, 0, algorithm="native"))
    thread.join()
    assert RANK == 0 or (alive == [True] and written() is None)
    same(memory, np.full(1000, float(RANK > 0)))


def test_calls_of_which_one_of_many_is_compared():
    """check="always": a small call that MPI serves passes, until it is one of those."""
    comm = mpicoll.Communicator(WORLD.Dup(), check="always")
    x = np.ones(1)
    before = comm._context.comparisons
    assert sum(passed(comm, lambda: comm.Bcast(x)) for _ in range(600)) == 598
    assert sum(passed(comm, lambda: comm.Bcast([x, MPI.DOUBLE])) for _ in range(600)) == 598
    assert comm._context.comparisons - before == 3
    assert not any([passed(comm, lambda: comm.Bcast(x, algorithm="native")) for _ in range(3)])
    assert comm._context.comparisons - before == 6
    comm.Free()


@pytest.mark.skipif(SIZE == 1, reason="calls that differ")
def test_calls_that_differ_among_those_that_pass(monkeypatch):
    """Two Allreduces that MPI pairs up: one of the next 512 calls is compared, with the hash of all before."""
    monkeypatch.setenv("MPICOLL_SHARED_MEMORY", "off")  # there each would be named by its messages
    comm = mpicoll.Communicator(WORLD.Dup(), check="always")
    x, y, last = np.ones(1), np.empty(1), SIZE - 1
    ops = [MPI.SUM, MPI.MAX]
    for op in ops * 2:
        comm.Allreduce(x, y, op)
    for op in ops if RANK != last else ops[::-1]:
        assert passed(comm, lambda: comm.Allreduce(x, y, op))

    def call():
        for _ in range(512):
            comm.Allreduce(x, y)

    with pytest.raises(mpicoll.CollectiveMismatch) as caught:
        call()
    text = str(caught.value)
    assert len(set(WORLD.allgather(text))) == 1
    assert f"rank {last}: Allreduce of 8 bytes, MAX, float64, a repeated call whose line is not recorded" in text, text
    comm.Free()


def test_who_listens_hears_of_all(comm):
    call = known(comm, np.ones(4), np.empty(4))
    heard = []
    ENDED.append(lambda text, *_: heard.append(text))
    try:
        call()
    finally:
        ENDED.pop()
    assert heard == ["Allreduce of 32 bytes, SUM, float64"]


def test_places_are_those_of_the_long_way(comm):
    """Whether a call passes may differ between ranks, its place and hash may not."""
    other = mpicoll.Communicator(WORLD.Dup())
    call = known(comm, np.ones(4), np.empty(4))
    known(other, np.ones(4), np.empty(4))
    recorder, wanted = comm._context.recorder, other._context.recorder
    for _ in range(2100):  # more than are remembered
        call()
        assert not passed(other, lambda: other.Allreduce(memoryview(np.ones(4)), np.empty(4), algorithm="native"))
    assert (recorder.places, recorder.sequence) == (wanted.places, wanted.sequence)
    other.Free()


@pytest.mark.skipif(SIZE == 1, reason="a message that is longer than its receive")
@pytest.mark.parametrize("spelled", [plain, lambda x: [x, MPI.DOUBLE]], ids=["array", "list"])
def test_an_error_of_mpi_is_raised(spelled):
    comm = mpicoll.Communicator(WORLD.Dup())
    sent, received = spelled(np.arange(8.0)), spelled(np.empty(4))
    for x in (sent, received) * 2:
        comm.Bcast(x, 0, algorithm="native")
    if RANK == 0:
        assert passed(comm, lambda: comm.Bcast(sent, 0, algorithm="native"))
    else:
        with pytest.raises(MPI.Exception) as caught:
            comm.Bcast(received, 0, algorithm="native")
        assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
    WORLD.Barrier()
    comm.Free()
