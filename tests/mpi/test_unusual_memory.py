"""Arrays in memory of unusual kinds, with each interpreter: huge pages, no alignment, freed while a call is under way."""

import ctypes
import gc
import mmap
import weakref
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from tests.support.cases import RANK, SIZE, WORLD, same

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.interpreters("python", "c")]
HUGE = 2 << 20
#: longer than a slot, and than what goes through MPI where it is not shared
COUNTS = (100, 3 * HUGE // 8)
SIZES_OF_POOL = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")


def transparent(count):
    """An array of float64 in an anonymous mapping that the kernel may back by huge pages."""
    memory = mmap.mmap(-1, count * 8 + 2 * HUGE)
    memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory)
    start = -whole.ctypes.data % HUGE // 8
    return whole[start:][:count]


def of_the_pool(count):
    """An array in pages of the pool of huge pages."""
    free = int(SIZES_OF_POOL.read_text()) if SIZES_OF_POOL.exists() else 0
    if min(WORLD.allgather(free)) < 4 * SIZE:
        pytest.skip("no pool of huge pages here")
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000  # MAP_HUGETLB
    return np.frombuffer(mmap.mmap(-1, 4 * HUGE, flags=flags))[:count]


@pytest.fixture
def advise():
    """A function that has the kernel back an array of the heap by huge pages, where it does that for files in memory."""
    libc = ctypes.CDLL(None, use_errno=True)

    def advise(array):
        start = array.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
        length = array.ctypes.data + array.nbytes - start
        assert libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), mmap.MADV_HUGEPAGE) == 0
        return array

    return advise


@pytest.mark.parametrize("kind", ["transparent", "of the pool", "shared"])
@pytest.mark.parametrize("word", ["ring", "direct"])
def test_huge_pages(comm, advise, kind, word):
    for count in COUNTS:
        if kind == "shared":
            x, y = advise(comm.empty(count)), advise(comm.empty(count))
        else:
            make = transparent if kind == "transparent" else of_the_pool
            x, y = make(count), make(count)
        for step in range(4):
            x[:] = RANK + step
            comm.Allreduce(x, y, algorithm=word)
            same(y, np.full(count, float(SIZE * step + sum(range(SIZE)))))


@pytest.mark.parametrize("datatype", [MPI.FLOAT, MPI.DOUBLE, MPI.SHORT, MPI.C_FLOAT_COMPLEX], ids=str)
@pytest.mark.parametrize("word", ["recursive_doubling", "ring"])
def test_bytes_at_any_address(comm, datatype, word):
    """A call that was made with bytes at aligned addresses is repeated with others, which are not."""
    dtype = np.dtype(datatype.tocode())
    count = 1009
    wanted = np.full(count, SIZE * (SIZE + 1) // 2, dtype)
    memory = np.zeros((count + 2) * dtype.itemsize, np.uint8)
    for shift in (0, 0, 0, 0, 0, 1, 3, 0, 1):
        x = memory[shift:][: count * dtype.itemsize]
        x[:] = np.frombuffer(np.full(count, RANK + 1, dtype).tobytes(), np.uint8)
        comm.Allreduce(MPI.IN_PLACE, [x, datatype], algorithm=word)
        assert x.tobytes() == wanted.tobytes(), shift


@pytest.mark.parametrize("kind", ["ordinary", "shared"])
@pytest.mark.parametrize("count", COUNTS)
def test_arrays_that_are_forgotten_while_a_call_is_under_way(comm, kind, count):
    """The call keeps them, and no others take their place meanwhile."""
    make = comm.empty if kind == "shared" else np.empty
    for step in range(6):  # from the second one on without a task, where it ends at once
        x, y = make(count), make(count)
        x[:] = RANK + step
        result = weakref.ref(y)
        request = comm.Iallreduce(x, y, algorithm="ring")
        del x, y
        gc.collect()
        others = [make(count) for _ in range(4)]
        for other in others:
            other[:] = -1
        WORLD.Barrier()
        kept = result()
        request.Wait()
        if kept is not None:  # else it had ended before it was forgotten
            same(kept, np.full(count, float(SIZE * step + sum(range(SIZE)))))
        assert all((other == -1).all() for other in others)
        del request, kept
        gc.collect()
        assert result() is None


@pytest.mark.parametrize("word", ["native", "ring"])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("count", [1, *COUNTS])
def test_arrays_that_are_forgotten_with_their_request(comm, word, persistent, count):
    """Messages may be written to them: they live until the call has ended."""
    for _ in range(4):
        x = np.full(count, RANK + 1.0)
        left = weakref.ref(x)
        plan = comm.Allreduce_init(MPI.IN_PLACE, x, algorithm=word) if persistent else None
        for is_first in (True, False):
            if (RANK == 0) == is_first:
                if persistent:
                    plan.Start()
                else:
                    comm.Iallreduce(MPI.IN_PLACE, x, algorithm=word)
                del plan, x
                gc.collect()
                assert left() is not None or RANK
            WORLD.Barrier()
    x = np.ones(count)
    is_plan_of_ours = persistent and word == "ring"  # nobody can wait for it: it keeps its memory
    while not WORLD.allreduce(left() is None or is_plan_of_ours, MPI.LAND):  # later calls see that it has ended
        comm.Iallreduce(MPI.IN_PLACE, x, algorithm=word).Wait()
        gc.collect()
