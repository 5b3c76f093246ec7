"""Repeated calls that MPI's own functions serve: they pass without Python, and nothing else does."""

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll import engine
from mpicoll.failure import ENDED
from tests.support.cases import RANK, SIZE, WORLD, Case, expected, forms_of, roots_of, same

pytestmark = [
    pytest.mark.mpi,
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


@pytest.mark.parametrize("method", METHODS)
def test_each_call_gets_its_parameters(comm, method):
    for dtype, form, root in [(d, f, r) for d in ("i8", "f4") for f in forms_of(method) for r in roots_of(method)]:
        through_a_door = []
        for _ in range(3):
            case = Case(method, SIZE + 1, root, form, dtype=dtype)
            through_a_door.append(passed(comm, lambda: case.call(comm, algorithm="native")))
            same(case.result, expected(method, SIZE + 1, root, dtype))
        # one array for both buffers is not what MPI takes
        assert through_a_door[1:] == [case.arguments[0] is not case.arguments[1]] * 2, (form, root)


def test_small_calls_without_options_pass_from_the_third_time_on(comm):
    x = np.ones(2 * SIZE)
    y = np.ones(SIZE)
    through_doors = [passed(comm, lambda: comm.Alltoall(x, np.empty(2 * SIZE))) for _ in range(4)]
    assert through_doors[2:] == [True, True]
    assert not passed(comm, lambda: comm.Alltoall([x, 2, MPI.DOUBLE], [np.empty(2 * SIZE), 2, MPI.DOUBLE]))
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
    for arguments in [(empty, np.empty(0)), (strided, np.empty(8)), ([np.ones(8), 8, MPI.DOUBLE], np.empty(8))]:
        assert not any([passed(comm, lambda: comm.Allreduce(*arguments, algorithm="native")) for _ in range(3)])
    message = [np.ones(8), 4, derived]
    assert not any([passed(comm, lambda: comm.Bcast(message, 0, algorithm="native")) for _ in range(3)])
    derived.Free()


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
        other.Allreduce([np.ones(4), 4, MPI.DOUBLE], np.empty(4), algorithm="native")
    recorder.enter_unseen()
    wanted.enter_unseen()
    assert (recorder.places, recorder.sequence) == (wanted.places, wanted.sequence)
    other.Free()


@pytest.mark.skipif(SIZE == 1, reason="a message that is longer than its receive")
def test_an_error_of_mpi_is_raised():
    comm = mpicoll.Communicator(WORLD.Dup())
    sent, received = np.arange(8.0), np.empty(4)
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
