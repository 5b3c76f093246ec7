"""What MPI, users' functions, and threads may see of device memory: where there are two devices, and MPI may know none."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll import execute
from mpicoll.train.data import LocalLoader, Sampler
from tests.mpi.conftest import as_asked_for
from tests.support.fakes import fakecupy
from tests.support.cases import RANK, SIZE, outside_of_mpi, same
from tests.support.fakes.arrays import Foreign

pytestmark = pytest.mark.mpi


@pytest.fixture(params=["auto", "direct"])
def unaware(request, monkeypatch, xp):
    """Whatever the user asked for, MPI cannot use a device pointer."""
    as_asked_for(request.param, monkeypatch)


@pytest.fixture(params=["blocking", "non-blocking", "persistent"])
def allreduce(request, comm):
    """A function like `Allreduce`, in each of its forms."""

    def call(*given, **options):
        if request.param == "blocking":
            comm.Allreduce(*given, **options)
        elif request.param == "non-blocking":
            MPI.Request.Waitall([comm.Iallreduce(*given, **options)])
        else:
            plan = comm.Allreduce_init(*given, **options)
            plan.Start()
            plan.Wait()
            plan.Free()

    return call


def both(memory):
    """The two vectors that a user's op is given, of float64."""
    return [np.frombuffer(one, "f8") for one in memory[:2]]


@pytest.mark.parametrize("word", [None, "ring", "native"])
def test_a_users_op_never_sees_device_memory(xp, unaware, allreduce, word):
    op = MPI.Op.Create(lambda *memory: np.add(*both(memory), out=both(memory)[1]), commute=True)
    one, total = xp.array(np.arange(9.0)), xp.empty(9)
    allreduce(one, total, op=op, algorithm=word)
    same(total, np.arange(9.0) * SIZE)
    allreduce(MPI.IN_PLACE, one, op=op, algorithm=word)
    same(one, np.arange(9.0) * SIZE)
    op.Free()


@pytest.mark.parametrize("known", [True, False, None])
def test_native_gets_pointers_where_mpi_is_known_to_take_them(comm, xp, monkeypatch, known):
    monkeypatch.setenv("MPICOLL_GPU", "direct")
    monkeypatch.setattr(fakecupy, "aware", known is True)
    monkeypatch.setattr(execute.native, "cuda_awareness", lambda: (known, "so it says"))
    one, total = xp.array(np.arange(9.0)), xp.empty(9)
    comm.Allreduce(one, total, algorithm="native")
    assert ("fetch" in xp.log) is (known is not True)
    same(total, np.arange(9.0) * SIZE)


def test_only_blocking_calls_of_mpi_get_pointers(comm, xp, monkeypatch):
    """Libraries that know devices do not take them elsewhere."""
    monkeypatch.setenv("MPICOLL_GPU", "direct")
    monkeypatch.setattr(execute.native, "cuda_awareness", lambda: (True, "so it says"))
    one, total, other = xp.array(np.arange(9.0)), xp.empty(9), xp.empty(9)
    comm.Iallreduce(one, total, algorithm="native").Wait()
    plan = comm.Allreduce_init(one, other, algorithm="native")
    plan.Start()
    plan.Wait()
    plan.Free()
    same(total, np.arange(9.0) * SIZE)
    same(other, np.arange(9.0) * SIZE)


@pytest.mark.skipif(RANK > 0, reason="rank 0 starts a process of its own")
def test_without_threads():
    """Nobody could bring the result of a non-blocking call to the device; plans bring theirs in Wait."""
    code = """if True:
        import sys, mpi4py
        mpi4py.rc.thread_level = "funneled"
        from tests.support.fakes import fakecupy
        sys.modules["cupy"] = fakecupy
        from mpi4py import MPI
        import mpicoll
        comm, data = mpicoll.Communicator(MPI.COMM_SELF), fakecupy.array([1.0, 2.0])
        plan = comm.Allreduce_init(MPI.IN_PLACE, data)
        plan.Start()
        plan.Wait()
        print(data.get())
        try:
            comm.Iallreduce(MPI.IN_PLACE, data)
        except mpicoll.BufferError as error:
            print(error)
    """
    done = outside_of_mpi(code)
    assert done.stdout.startswith("[1. 2.]\nIallreduce on device memory: MPI does not grant THREAD_MULTIPLE"), done


@pytest.mark.parametrize("dtype", ["i4", "u1"])
def test_pairs(xp, unaware, allreduce, dtype):
    pairs = np.array([[RANK, 10 + RANK], [-RANK, 20 + RANK], [5, 30 + RANK]], "i4")
    one, least = xp.array(pairs.reshape(-1).view(dtype)), xp.array(np.full(8, 7, "i4").view(dtype))
    allreduce([one, 3, MPI.INT_INT], [least, (3, 0), MPI.INT_INT], op=MPI.MINLOC)
    wanted = np.array([0, 10, 1 - SIZE, 19 + SIZE, 5, 30, 7, 7], "i4")
    same(least, wanted.view(dtype))
    allreduce(MPI.IN_PLACE, [one, 3, MPI.INT_INT], op=MPI.MINLOC)
    same(one, wanted[:6].view(dtype))


def test_reductions_of_derived_types(xp, unaware, allreduce):
    """Only what the type describes is reduced, the rest stays."""

    def add(*memory):
        one, other = both(memory)
        other[::3] += one[::3]

    column = MPI.DOUBLE.Create_vector(2, 1, 3).Create_resized(0, 6 * 8).Commit()
    op, data = MPI.Op.Create(add, commute=True), xp.array(np.arange(12.0))
    allreduce(MPI.IN_PLACE, [data, 2, column], op=op)
    same(data, np.where(np.arange(12) % 3, 1, SIZE) * np.arange(12.0))
    column.Free()
    op.Free()


@pytest.mark.parametrize("shown", [lambda array: array, Foreign, lambda array: [Foreign(array), 3, MPI.DOUBLE]])
def test_an_array_on_another_device(comm, xp, mode, shown):
    with xp.cuda.Device(1):
        data = xp.array(np.ones(3))
    for call in (comm.Allreduce, comm.Iallreduce, comm.Allreduce_init):
        with pytest.raises(mpicoll.BufferError, match="the array is on device 1, the current device is 0"):
            call(MPI.IN_PLACE, shown(data))
    with xp.cuda.Device(1):
        comm.Allreduce(MPI.IN_PLACE, shown(data))
    same(data, np.full(3, 1.0 * SIZE))


@pytest.mark.parametrize("question", ["getDevice", "pointerGetAttributes"])
def test_without_a_driver_that_works(comm, xp, monkeypatch, question):
    def fails(*_):
        raise RuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version")

    data = xp.array(np.ones(3))
    monkeypatch.setattr(xp.cuda.runtime, question, fails)
    with pytest.raises(mpicoll.BufferError, match="cudaErrorInsufficientDriver.*mpicoll info --gpu"):
        comm.Allreduce(MPI.IN_PLACE, Foreign(data))


@pytest.mark.parametrize("word", [None, "ring", "native"])
def test_one_device_after_the_other(comm, xp, mode, word):
    """Scratch memory stays on its own."""
    for number in (0, 1, 0, 1):
        xp.cuda.Device(number).use()
        data = xp.array(np.ones(9))
        comm.Allreduce(MPI.IN_PLACE, data, algorithm=word)
        comm.Iallreduce(MPI.IN_PLACE, data, algorithm=word).Wait()
        same(data, np.full(9, 1.0 * SIZE * SIZE))


@pytest.mark.parametrize("word", [None, "ring", "native"])
def test_other_devices_are_left_alone(comm, xp, mode, word):
    """The progress thread works on the caller's device, and never on the one that threads begin with."""
    xp.cuda.Device(1).use()
    data = xp.array(np.ones(9))
    plan = comm.Allreduce_init(MPI.IN_PLACE, data, algorithm=word)
    xp.contexts.clear()
    request = comm.Iallreduce(MPI.IN_PLACE, data, algorithm=word)
    while not request.Get_status():  # nobody but the thread moves it
        time.sleep(1e-3)
    request.Wait()
    for _ in range(2):
        plan.Start()
        plan.Wait()
    plan.Free()
    same(data, np.full(9, 1.0 * SIZE**3))
    assert xp.contexts == {1}


@pytest.mark.parametrize("word", [None, "ring", "native"])
def test_a_plan_is_waited_for_in_another_thread(comm, xp, mode, word):
    xp.cuda.Device(1).use()
    data = xp.array(np.ones(9))
    plan = comm.Allreduce_init(MPI.IN_PLACE, data, algorithm=word)

    def run():
        plan.Start()
        plan.Wait()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(run).result()
    same(data, np.full(9, 1.0 * SIZE))
    plan.Free()


def test_batches_are_prefetched_to_the_models_device(comm, xp, data):
    xp.cuda.Device(1).use()
    loader = LocalLoader(comm, xp.empty(1), np.dtype("f4"), meter=None)
    loader.load(data)
    sampler = Sampler(61, 32, 0, comm.rank, comm.size)
    xp.contexts.clear()
    for batch in loader.batches(sampler, sampler.batches(0), 1):
        assert all(array.device == xp.cuda.Device(1) for array in batch[0])
    assert xp.contexts == {1}
