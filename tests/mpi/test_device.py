"""Device memory without a device: the strict stand-in, staged through the host and handed to MPI directly."""

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from tests.support.cases import METHODS, RANK, SIZE, Case, everywhere, expected, outside_of_mpi, same, words
from tests.support.devices import COUNT, DeviceArrays
from tests.support.fakes.arrays import Foreign, Pinned, interface

pytestmark = pytest.mark.mpi


class TestFakeDevice(DeviceArrays):
    def check(self, result, wanted, written=True):
        if result is not None and written and SIZE > 1:  # alone it waits for nothing
            same(result.visible(), result.get())  # nothing is on its way any more
        same(result, wanted)


@pytest.mark.parametrize("word", [None, "ring"])
def test_arrays_of_other_libraries(comm, xp, mode, word):
    data = xp.array(np.arange(5.0))
    comm.Allreduce(MPI.IN_PLACE, Foreign(data), algorithm=word)
    same(data.visible(), SIZE * np.arange(5.0))


def test_read_only_memory_only_sends(comm, xp, mode):
    one, total = xp.array(np.ones(3)), xp.empty(3)
    comm.Allreduce(Foreign(one, read_only=True), total)
    same(total, np.full(3, 1.0 * SIZE))
    for receive in (Foreign(total, read_only=True), [Foreign(total, read_only=True), (2, 1), MPI.DOUBLE]):
        with pytest.raises(mpicoll.BufferError, match="read-only"):
            comm.Allreduce(MPI.IN_PLACE, receive)


def test_overlap(comm, xp, mode):
    """Device memory is judged as host memory is: by its bytes, whoever shows them."""
    data = xp.array(np.arange(12.0))
    for send, receive in (
        (data[:6], data[3:9]),
        (data[:6], Foreign(data[3:9])),
        (data[0:8:2], data[2:10:2]),
        ([data, (4, 1), MPI.DOUBLE], data[:4]),
        ([data, (4, 1), MPI.DOUBLE], [data, (4, 0), MPI.DOUBLE]),
    ):
        with pytest.raises(mpicoll.BufferError, match="overlap"):
            comm.Allreduce(send, receive)
    comm.Allreduce(data[:4], data[4:8], algorithm="ring")
    comm.Allreduce(data[8::2], data[9::2])
    comm.Allreduce(data[8::2], Foreign(data[8::2]))
    comm.Allreduce([data, (2, 0), MPI.DOUBLE], [data, (2, 2), MPI.DOUBLE])
    n = SIZE
    same(data, np.array([0, 1, 0, n, 0, n, 2 * n, 3 * n, 8 * n, 8 * n, 10 * n, 10 * n], "f8"))


@pytest.mark.parametrize("method", sorted(set(METHODS.values())))
def test_explain(comm, xp, mode, method):
    device, host = xp.array(np.ones(SIZE * 1000)), np.ones(SIZE * 1000)
    for word in (None, "native"):
        explained = [comm.explain(method, one, algorithm=word)._replace(reason="") for one in (device, host)]
        assert explained[0] == explained[1]


@pytest.mark.parametrize("word", [None, "ring"])
def test_bfloat16_tensors(comm, xp, mode, word):
    """PyTorch shows them as two bytes of nothing in particular."""
    bfloat16 = pytest.importorskip("ml_dtypes", reason="NumPy has no bfloat16 of its own").bfloat16
    values = np.arange(9).astype(bfloat16)
    data = xp.array(values.view("u2"))
    tensor = Foreign(data, typestr="|V2")
    tensor.dtype = "torch.bfloat16"
    comm.Allreduce(MPI.IN_PLACE, tensor, algorithm=word)
    same(data, (np.arange(9) * SIZE).astype(bfloat16).view("u2"))
    comm.Bcast([tensor, 9])
    everywhere(data.get().tobytes())


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("mode", ["direct"], indirect=True)
def test_direct_reduces_on_the_device(comm, xp, mode):
    comm.Allreduce(xp.array(np.ones(9)), xp.empty(9), algorithm="ring")
    assert "add" in xp.log and not {"asnumpy", "fetch", "put"} & set(xp.log)


def test_host_and_device_in_one_call(comm, xp, mode):
    def call():
        comm.Allreduce(np.ones(3), result, algorithm="ring")

    result = xp.empty(3)
    if mode == "direct":
        with pytest.raises(mpicoll.BufferError, match="host memory.*device"):
            call()
        assert comm.sent == (0, 0)
    else:
        call()
        same(result, np.full(3, 1.0 * SIZE))


@pytest.fixture(params=["CuPy", "no CuPy"])
def cupy_or_not(request):
    if request.param == "CuPy":
        request.getfixturevalue("xp")
    else:
        request.getfixturevalue("no_cupy")


def test_page_locked_tensors_are_host_memory(comm, cupy_or_not):
    for dtype in ("f4", "i8", "c16"):
        one, data = np.arange(9, dtype=dtype), np.zeros(9, dtype)
        comm.Allreduce(Pinned(one), Pinned(data), algorithm="ring")
        comm.Iallreduce(MPI.IN_PLACE, Pinned(data)).Wait()
        same(data, SIZE * SIZE * one)
        with pytest.raises(mpicoll.BufferError, match="overlap"):
            comm.Allreduce(Pinned(data[1:]), data[:-1])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("alone", [None, 0, SIZE - 1])
def test_host_memory_behind_the_interface(comm, cupy_or_not, method, alone):
    """Page-locked memory, say. Whether CuPy is there or not, one rank may have it, and all choose alike."""
    def array(data):
        data = np.array(data)
        if alone not in (None, RANK):
            return data
        holder = interface(data)
        holder.get, holder.dtype = lambda: data, data.dtype
        return holder

    for word in (None, "native", words(method)[0]):
        for count in (COUNT, 1 << 14):
            result = Case(method, count, dtype="f8", array=array).call(comm, algorithm=word)
            same(result, expected(method, count, dtype="f8"))


@pytest.mark.parametrize("alone", [0, SIZE - 1])
def test_ranks_choose_alike(comm, cupy_or_not, alone):
    for count in (4, 1 << 10, 1 << 18):
        data = np.ones(count, "f4")
        given = interface(data) if RANK == alone else data
        for collective in ("allreduce", "iallreduce", "bcast", "allgather"):
            whole = np.empty(count * SIZE, "f4") if collective == "allgather" else None
            everywhere(comm.explain(collective, given, whole).algorithm)


def test_what_the_interface_describes(comm, cupy_or_not):
    """Type, op, counts, and overlap count as of any other buffer."""
    data = np.arange(6, dtype="f2") + RANK
    comm.Allreduce(MPI.IN_PLACE, interface(data))
    same(data, (np.arange(6) * SIZE + sum(range(SIZE))).astype("f2"))
    data = np.arange(6.0)
    comm.Allreduce(interface(data), data)
    comm.Allreduce(MPI.IN_PLACE, [interface(data), (2, 1), MPI.DOUBLE], algorithm="ring")
    same(data, SIZE * np.arange(6.0) * [1, SIZE, SIZE, 1, 1, 1])
    for send, problem in (
        (interface(data[1:]), "overlap"),
        (interface(np.zeros(5, "f4")), "types differ"),
        (interface(np.zeros(4)), "expected 32"),
    ):
        with pytest.raises(mpicoll.BufferError, match=problem):
            comm.Allreduce(send, data[:-1])


def test_without_cupy_gaps_are_refused(comm, no_cupy):
    with pytest.raises(mpicoll.BufferError, match="without CuPy, device memory must be contiguous"):
        comm.Allreduce(MPI.IN_PLACE, interface(np.arange(6.0)[::2]))


@pytest.mark.skipif(RANK > 0 or SIZE > 1, reason="a process of its own, started from no MPI job")
def test_cupy_is_not_imported_for_numpy():
    code = """if True:
        import sys, numpy, mpicoll
        from mpi4py import MPI
        comm = mpicoll.Communicator(MPI.COMM_SELF)
        for word in mpicoll.list_algorithms("allreduce"):
            comm.Allreduce(MPI.IN_PLACE, numpy.ones(9), algorithm=word)
        comm.Bcast(bytearray(9))
        assert "cupy" not in sys.modules
    """
    assert outside_of_mpi(code).returncode == 0


# ---- the stand-in itself: without these, the tests above would prove less


def test_the_stand_in_is_strict(xp):
    array = xp.array(np.ones(3))
    with pytest.raises(TypeError):
        np.asarray(array)
    with pytest.raises(TypeError):
        memoryview(array)
    assert np.isnan(array.visible()).all()
    xp.cuda.get_current_stream().synchronize()
    same(array.visible(), np.ones(3))
    xp.add(array, array, out=array)
    assert np.isnan(array.visible()).all()
    same(array.get(), np.full(3, 2.0))
