"""Kinds of memory that only a real device has: managed, of the asynchronous pool, page-locked; and other devices."""

import numpy as np
import pytest
from mpi4py import MPI

from mpicoll import BufferError
from tests.support.cases import SIZE, same
from tests.support.fakes.arrays import Foreign

pytestmark = [pytest.mark.mpi, pytest.mark.gpu]

ALLOCATORS = {
    "managed": lambda cupy: cupy.cuda.malloc_managed,
    "asynchronous pool": lambda cupy: cupy.cuda.MemoryAsyncPool().malloc,
    "no pool": lambda cupy: None,
}


@pytest.mark.parametrize("kind", ALLOCATORS)
@pytest.mark.parametrize("word", [None, "ring", "native"])
def test_memory_of_every_kind(xp, mode, comm, kind, word):
    with xp.cuda.using_allocator(ALLOCATORS[kind](xp)):
        one, total = xp.ones(1 << 18, "f4"), xp.zeros(1 << 18, "f4")
        comm.Allreduce(one, total, algorithm=word)
        comm.Iallreduce(MPI.IN_PLACE, one, algorithm=word).Wait()
    for array in (one, total):
        same(array, np.full(1 << 18, SIZE, "f4"))


@pytest.mark.parametrize("word", [None, "ring", "native"])
def test_page_locked_memory_is_the_hosts(xp, mode, comm, word):
    import cupyx

    data = cupyx.empty_pinned(999, "f4")
    data[:] = 1
    comm.Allreduce(MPI.IN_PLACE, data, algorithm=word)
    same(np.asarray(data), np.full(999, SIZE, "f4"))


def test_read_only_memory_is_not_written(xp, mode, comm):
    data = xp.ones(9, "f4")
    with pytest.raises(BufferError, match="read-only"):
        comm.Allreduce(MPI.IN_PLACE, Foreign(data, read_only=True), algorithm="ring")
    same(data, np.ones(9, "f4"))


@pytest.fixture
def other(xp):
    """A device beside the rank's own."""
    count, mine = xp.cuda.runtime.getDeviceCount(), xp.cuda.runtime.getDevice()
    if count < 2:
        pytest.skip("needs two devices that each rank sees")
    return xp.cuda.Device((mine + 1) % count)


def test_an_array_on_another_device(xp, mode, comm, other):
    with other:
        data = xp.ones(9)
    with pytest.raises(BufferError, match="the array is on device"):
        comm.Allreduce(MPI.IN_PLACE, data)
    with other:
        comm.Allreduce(MPI.IN_PLACE, data, algorithm="ring")
        same(data, np.full(9, 1.0 * SIZE))


def test_one_device_after_the_other(xp, mode, comm, other):
    mine = xp.cuda.Device()
    for device in (mine, other) * 2:
        with device:
            data = xp.ones(9)
            comm.Allreduce(MPI.IN_PLACE, data, algorithm="ring")
            comm.Iallreduce(MPI.IN_PLACE, data, algorithm="ring").Wait()
            same(data, np.full(9, 1.0 * SIZE * SIZE))
