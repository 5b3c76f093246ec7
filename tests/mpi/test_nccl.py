"""`algorithm="nccl"`, on stand-ins for CuPy and NCCL: results of all collectives, and the order of streams."""

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll import algorithms
from tests.support.cases import METHODS, RANK, REDUCTIONS, SIZE, Case, expected, forms_of, roots_of, same
from tests.support.devices import COUNT
from tests.support.fakes.arrays import Foreign

pytestmark = pytest.mark.mpi
SERVED = [method for method, name in METHODS.items() if "nccl" in algorithms.library_names(name)]


def count_of(method):
    """Elements of a `Case` whose blocks are equal."""
    return SIZE * COUNT if method in ("Allgatherv", "Reduce_scatter") else COUNT


def case(xp, method, form="apart", root=0, **options):
    return Case(method, count_of(method), root, form, array=xp.array, **options)


def check(one, op="SUM"):
    """The result is that of MPI, and a pointer sees it."""
    wanted = expected(one.method, count_of(one.method), one.root, dtype=one.dtype.str, op=op)
    same(one.result, wanted)
    if one.result is not None:
        same(one.result.visible(), wanted)


@pytest.mark.parametrize("method", SERVED)
def test_every_form(comm, xp, mode, nccl, method):
    for form in forms_of(method):
        for root in roots_of(method):
            one = case(xp, method, form, root)
            one.call(comm, algorithm="nccl")
            check(one)
    assert nccl.log.count("init") == 1 and comm.sent == (0, 0)


@pytest.mark.parametrize("method", SERVED)
def test_non_blocking(comm, xp, mode, nccl, method):
    for form in forms_of(method):
        cases = [case(xp, method, form, root) for root in roots_of(method)]
        MPI.Request.Waitall([one.begin(comm, algorithm="nccl") for one in cases])
        for one in cases:
            check(one)


@pytest.mark.parametrize("method", SERVED)
def test_persistent(comm, xp, mode, nccl, method):
    for form in forms_of(method):
        one = case(xp, method, form)
        plan = one.init(comm, algorithm="nccl")
        plan.Start()
        with pytest.raises(RuntimeError, match="in flight"):
            plan.Start()
        with pytest.raises(RuntimeError, match="in flight"):
            plan.Free()
        plan.Wait()
        check(one)
        plan.Wait()
        plan.Free()
        with pytest.raises(RuntimeError, match="freed"):
            plan.Start()


def test_plans_in_flight_together(comm, xp, nccl):
    data = [xp.array(np.full(9, float(number + RANK))) for number in range(5)]
    plans = [comm.Allreduce_init(MPI.IN_PLACE, one, algorithm="nccl") for one in data]
    for times in range(1, 3):
        for plan in plans:
            plan.Start()
        for plan in reversed(plans):
            while not plan.Test():
                pass
    for number, one in enumerate(data):
        same(one, np.full(9, float(SIZE * (SIZE * number + sum(range(SIZE))))))


@pytest.mark.parametrize("method", [method for method in REDUCTIONS if method in SERVED])
@pytest.mark.parametrize("name", ["SUM", "PROD", "MAX", "MIN"])
@pytest.mark.parametrize("dtype", ["i1", "u1", "i4", "u4", "i8", "u8", "f4", "f8"])
def test_ops_and_types(comm, xp, nccl, method, name, dtype):
    one = case(xp, method, dtype=dtype, op=getattr(MPI, name))
    one.call(comm, algorithm="nccl")
    check(one, name)


def test_half_precision(comm, xp, mode, nccl):
    data = xp.array(np.arange(9), dtype="f2")
    comm.Allreduce(MPI.IN_PLACE, data, algorithm="nccl")
    same(data, np.arange(9).astype("f2") * np.float16(SIZE))


def test_bfloat16(comm, xp, mode, nccl, monkeypatch):
    bfloat16 = pytest.importorskip("ml_dtypes", reason="NumPy has no bfloat16 of its own").bfloat16
    data = xp.array(np.arange(9).astype(bfloat16).view("u2"))
    tensor = Foreign(data, typestr="|V2")
    tensor.dtype = "torch.bfloat16"
    comm.Allreduce(MPI.IN_PLACE, tensor, algorithm="nccl")
    same(data, (np.arange(9) * SIZE).astype(bfloat16).view("u2"))
    monkeypatch.setattr(nccl, "version", 20904)
    older = comm.Dup()
    comm.Allreduce(xp.array(np.ones(3)), xp.empty(3), algorithm="nccl")
    older.Allreduce(xp.array(np.ones(3)), xp.empty(3), algorithm="nccl")
    with pytest.raises(mpicoll.ArgumentError, match="NCCL 2.9.4 has no bfloat16, 2.10.0 has"):
        older.Allreduce(MPI.IN_PLACE, tensor, algorithm="nccl")
    older.Free()


@pytest.mark.parametrize("dtype", ["c16", "?", "i2", "S3"])
def test_any_type_is_moved(comm, xp, nccl, dtype):
    data = xp.array(np.array([RANK + 1] * 3).astype(dtype))
    comm.Bcast(data, SIZE - 1, algorithm="nccl")
    same(data, np.array([SIZE] * 3).astype(dtype))
    gathered = xp.array(np.zeros(3 * SIZE, dtype))
    comm.Allgather(data, gathered, algorithm="nccl")
    same(gathered, np.array([SIZE] * 3 * SIZE).astype(dtype))


VIEWS = {"second": lambda a: a[::2], "transposed": lambda a: a.T, "columns": lambda a: a[:, 1:3],
         "backwards": lambda a: a[::-1, ::-1]}  # fmt: skip


@pytest.mark.parametrize("view", VIEWS)
def test_strides(comm, xp, mode, nccl, view):
    view, host = VIEWS[view], np.arange(24.0).reshape(6, 4)
    whole, target, wanted = xp.array(host), xp.array(np.zeros_like(host)), np.zeros_like(host)
    comm.Allreduce(view(whole), view(target), algorithm="nccl")
    view(wanted)[...] = view(host) * SIZE
    same(target, wanted)
    comm.Iallreduce(MPI.IN_PLACE, view(whole), algorithm="nccl").Wait()
    host_sum = host.copy()
    view(host_sum)[...] *= SIZE
    same(whole, host_sum)


def test_strides_in_place_at_the_front(comm, xp, nccl):
    data = xp.array(np.arange(4.0 * SIZE))
    comm.Reduce_scatter_block(MPI.IN_PLACE, data[::2], algorithm="nccl")
    same(data[:4:2], SIZE * np.arange(4.0 * SIZE)[::2][2 * RANK : 2 * RANK + 2])


def test_nothing_to_do(comm, xp, nccl):
    empty = xp.empty(0)
    comm.Allreduce(MPI.IN_PLACE, empty, algorithm="nccl")
    comm.Bcast(empty, algorithm="nccl")
    assert nccl.log == ["init"]


def test_behind_the_callers_stream(comm, xp, nccl):
    """The input is still being computed, in a stream of the caller's; the stand-in finds races."""
    one, two, total = xp.array(np.arange(9.0)), xp.array(np.full(9, float(RANK))), xp.empty(9)
    xp.cuda.get_current_stream().synchronize()
    plan = comm.Allreduce_init(MPI.IN_PLACE, total, algorithm="nccl")
    calls = (
        lambda: comm.Allreduce(MPI.IN_PLACE, total, algorithm="nccl"),
        lambda: comm.Iallreduce(MPI.IN_PLACE, total, algorithm="nccl").Wait(),
        lambda: (plan.Start(), plan.Wait()),
    )
    for call in calls:
        with xp.cuda.Stream(non_blocking=True):
            xp.add(one, two, out=total)
            call()
            same(total.visible(), SIZE * np.arange(9.0) + sum(range(SIZE)))
            xp.add(total, one, out=total)
            same(total, (SIZE + 1) * np.arange(9.0) + sum(range(SIZE)))


def test_the_number_that_ranks_meet_by_before_cupy_14(comm, xp, nccl, monkeypatch):
    monkeypatch.setattr(nccl, "get_unique_id", nccl.get_unique_id_before_14)
    data = xp.array(np.ones(3))
    comm.Allreduce(MPI.IN_PLACE, data, algorithm="nccl")
    same(data, np.full(3, 1.0 * SIZE))


def test_beside_schedules(comm, xp, nccl):
    """A schedule of this process goes on while NCCL is waited for, and the order of calls is that of the program."""
    host, device = np.full(1 << 16, float(RANK)), xp.array(np.full(9, float(RANK)))
    given = (host, "ring"), (device, "nccl")
    requests = [comm.Iallreduce(MPI.IN_PLACE, data, algorithm=word) for data, word in given]
    comm.Allreduce(MPI.IN_PLACE, xp.array(np.ones(3)), algorithm="nccl")
    MPI.Request.Waitall(requests)
    same(host, np.full(1 << 16, float(sum(range(SIZE)))))
    same(device, np.full(9, float(sum(range(SIZE)))))


def test_one_for_each_communicator_and_device(comm, xp, nccl):
    for _ in range(2):
        for device in (0, 1):
            with xp.cuda.Device(device):
                data = xp.array(np.ones(3))
                comm.Allreduce(MPI.IN_PLACE, data, algorithm="nccl")
                same(data, np.full(3, 1.0 * SIZE))
    assert nccl.log.count("init") == 2
    other = comm.Dup()
    other.Allreduce(MPI.IN_PLACE, xp.array(np.ones(3)), algorithm="nccl")
    assert nccl.log.count("init") == 3
    other.Free()
    assert nccl.log.count("destroy") == 1
