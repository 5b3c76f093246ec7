"""Device memory without a device: the strict stand-in, staged through the host and handed to MPI directly."""

import sys

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll import buffers
from tests.support import fakecupy
from tests.support.cases import RANK, SIZE, outside_of_mpi, same
from tests.support.devices import DeviceArrays

pytestmark = pytest.mark.mpi


@pytest.fixture
def xp(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", fakecupy)
    buffers.device.optional_cupy.cache_clear()
    fakecupy.log.clear()
    yield fakecupy
    buffers.device.optional_cupy.cache_clear()


@pytest.fixture(params=["auto", "direct"])
def mode(request, monkeypatch):
    monkeypatch.setenv("MPICOLL_GPU", request.param)
    return request.param


class TestFakeDevice(DeviceArrays):
    def check(self, result, wanted, written=True):
        if result is not None and written:
            same(result.visible(), result.get())  # nothing is on its way any more
        same(result, wanted)


class Foreign:
    """Another library's array: only its interface is known."""

    def __init__(self, array):
        self.__cuda_array_interface__ = array.__cuda_array_interface__


@pytest.mark.parametrize("word", [None, "ring"])
def test_arrays_of_other_libraries(comm, xp, mode, word):
    data = xp.array(np.arange(5.0))
    comm.Allreduce(MPI.IN_PLACE, Foreign(data), algorithm=word)
    same(data.visible(), SIZE * np.arange(5.0))


def test_staging_reduces_on_the_host(comm, xp, monkeypatch):
    monkeypatch.setenv("MPICOLL_GPU", "staged")
    comm.Allreduce(xp.array(np.ones(9)), xp.empty(9), algorithm="ring")
    assert "add" not in xp.log and "asnumpy" in xp.log and xp.log[-1] == "synchronize"


@pytest.mark.mpi(min_size=2)
def test_direct_reduces_on_the_device(comm, xp, monkeypatch):
    monkeypatch.setenv("MPICOLL_GPU", "direct")
    comm.Allreduce(xp.array(np.ones(9)), xp.empty(9), algorithm="ring")
    assert "add" in xp.log and "asnumpy" not in xp.log


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


def test_host_memory_behind_the_interface_is_for_mpi(comm, xp):
    """Page-locked memory, say: MPI can read it."""
    data = np.arange(4.0)
    holder = type("Pinned", (), {"__cuda_array_interface__": {**data.__array_interface__, "version": 3}})()
    comm.Allreduce(MPI.IN_PLACE, holder)
    same(data, SIZE * np.arange(4.0))
    assert comm.explain("bcast", holder).algorithm == "native"
    with pytest.raises(mpicoll.ArgumentError, match="MPI's to judge"):
        comm.Allreduce(MPI.IN_PLACE, holder, algorithm="ring")


def test_without_cupy_the_interface_is_for_mpi(comm, monkeypatch):
    monkeypatch.setattr(buffers.device, "optional_cupy", lambda: None)
    data = np.arange(4.0)
    holder = type("Array", (), {"__cuda_array_interface__": {**data.__array_interface__, "version": 3}})()
    comm.Allreduce(MPI.IN_PLACE, holder)
    same(data, SIZE * np.arange(4.0))


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
