"""Ranks of a node that read each other's memory: every algorithm on ordinary and on shared arrays, and what may go wrong."""

import errno
import gc
import os
import resource
import threading
from contextlib import suppress

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll import algorithms
from mpicoll.execute import Context
from mpicoll.shared_memory import HEAP
from mpicoll.shared_memory.neighbours import refusal
from tests.support.cases import RANK, SIZE, WORLD

pytestmark = [pytest.mark.mpi, pytest.mark.interpreters("python", "c")]

#: elements: below and above a slot, and from where on messages that are not shared go through MPI
COUNTS = (0, 1, SIZE + 1, 1009, 200_003, 150_000 * SIZE + 7)


def words(*names):
    """(collective, word) of the algorithms to choose from, and of MPI's own call."""
    return [(name, word) for name in names for word in [*(each.name for each in algorithms.proposed(name)), "native"]]


REDUCING = words("allreduce", "reduce_scatter")
MOVING = words("bcast", "allgather", "gather", "scatter")


def here(comm):
    return Context.of(comm).links is not None


def arrays(comm, kind, count):
    """An array of this kind: `mixed` is shared on every second rank alone."""
    shared = kind == "shared" or kind == "mixed" and RANK % 2
    return comm.empty(count, "i8") if shared else np.empty(count, "i8")


@pytest.mark.parametrize("kind", ["ordinary", "shared", "mixed"])
@pytest.mark.parametrize(("name", "word"), REDUCING)
def test_sums(comm, name, word, kind):
    """Called again and again on the same memory: what a rank sends must not be written before the others have read it."""
    for count in COUNTS:
        size = count if name == "allreduce" else count // SIZE * SIZE
        x, y = arrays(comm, kind, size), arrays(comm, kind, size if name == "allreduce" else size // SIZE)
        total = np.arange(size) * (SIZE * (SIZE + 1) // 2)
        if name == "reduce_scatter":
            total = total[RANK * y.size : (RANK + 1) * y.size]
        for times in (1, 2, 3):
            x[:] = np.arange(size) * (RANK + 1) * times
            if name == "allreduce":
                comm.Allreduce(x, y, algorithm=word)
            else:
                comm.Reduce_scatter_block(x, y, algorithm=word)
            assert (y == total * times).all() and (x == np.arange(size) * (RANK + 1) * times).all()
        if name == "allreduce":
            comm.Allreduce(MPI.IN_PLACE, x, algorithm=word)
            assert (x == total * 3).all()


@pytest.mark.parametrize("kind", ["ordinary", "shared", "mixed"])
@pytest.mark.parametrize(("name", "word"), MOVING)
def test_moves(comm, name, word, kind):
    for count in COUNTS:
        block, whole = arrays(comm, kind, count), arrays(comm, kind, count * SIZE)
        for times, root in ((1, 0), (2, SIZE - 1)):
            mine, all_of_them = np.arange(count) + RANK * times, np.arange(count) + np.arange(SIZE)[:, None] * times
            if name == "bcast":
                block[:] = mine if RANK == root else -1
                comm.Bcast(block, root, algorithm=word)
                assert (block == np.arange(count) + root * times).all()
            elif name == "scatter":
                whole[:] = all_of_them.ravel()
                comm.Scatter(whole if RANK == root else None, block, root, algorithm=word)
                assert (block == mine).all()
            else:
                block[:], whole[:] = mine, -1
                call = comm.Allgather if name == "allgather" else comm.Gather
                where = () if name == "allgather" else (root,)
                call(block, whole if name == "allgather" or RANK == root else None, *where, algorithm=word)
                assert (whole == (all_of_them.ravel() if name == "allgather" or RANK == root else -1)).all()


@pytest.mark.parametrize("kind", ["ordinary", "shared", "mixed"])
@pytest.mark.parametrize("word", mpicoll.list_algorithms("alltoall"))
def test_exchanges(comm, word, kind):
    for count in COUNTS:
        x, y = arrays(comm, kind, count * SIZE), arrays(comm, kind, count * SIZE)
        for times in (1, 2, 3):
            x[:] = np.arange(x.size) + RANK * times
            wanted = np.concatenate([np.arange(count * RANK, count * (RANK + 1)) + rank * times for rank in range(SIZE)])
            comm.Alltoall(x, y, algorithm=word)
            assert (y == wanted).all() and (x == np.arange(x.size) + RANK * times).all()
            comm.Alltoall(MPI.IN_PLACE, x, algorithm=word)
            assert (x == wanted).all()


@pytest.mark.parametrize("kind", ["ordinary", "shared"])
def test_several_in_flight(comm, kind):
    """Calls that do not block, plans and blocking calls: none takes what is another's, in whatever order they end."""
    vectors = [arrays(comm, kind, 40_000 + 7 * number) for number in range(9)]
    planned = arrays(comm, kind, 300_000)
    plan = comm.Allreduce_init(MPI.IN_PLACE, planned, algorithm="ring")
    for times in range(4):
        for number, vector in enumerate(vectors):
            vector[:] = (RANK + 1) * (number + 1)
        planned[:] = RANK + times
        plan.Start()
        begun = [comm.Iallreduce(MPI.IN_PLACE, vector, algorithm="circulant") for vector in vectors[:-1]]
        comm.Allreduce(MPI.IN_PLACE, vectors[-1], algorithm="ring")
        for request in begun[::-1]:
            request.Wait()
        plan.Wait()
        for number, vector in enumerate(vectors):
            assert (vector == (number + 1) * SIZE * (SIZE + 1) // 2).all()
        assert (planned == SIZE * (SIZE - 1) // 2 + SIZE * times).all()
    plan.Free()


def test_a_large_message_of_mpis_is_on_its_way(comm):
    """A rank that waits in a collective must let MPI move what others of its program have begun."""
    if SIZE == 1:
        return
    out, into = np.full(4_000_000, RANK), np.empty(4_000_000, int)
    begun = [WORLD.Isend(out, (RANK + 1) % SIZE), WORLD.Irecv(into, (RANK - 1) % SIZE)]
    if RANK == 0:
        MPI.Request.Waitall(begun)
    x = np.full(1000, RANK)
    comm.Allreduce(MPI.IN_PLACE, x, algorithm="recursive_doubling")
    MPI.Request.Waitall(begun)
    assert x[0] == SIZE * (SIZE - 1) // 2 and into[0] == (RANK - 1) % SIZE


def test_reduced_in_rank_order_where_they_lie(comm):
    """A user's function that does not commute, and one sum in floating point, the same bits as through MPI."""
    first = MPI.Op.Create(lambda one, other, datatype: None, commute=False)  # leaves the second: the last rank's
    x = comm.empty(5000, "i8")
    for word in ("recursive_doubling", "pairwise", "allgather_reduce"):
        x[:] = RANK
        comm.Allreduce(MPI.IN_PLACE, x, first, algorithm=word)
        assert (x == SIZE - 1).all()
    first.Free()
    given, results = np.random.default_rng(RANK).standard_normal(50_000), []
    for x in (comm.empty(50_000), np.empty(50_000)):
        x[:] = given
        comm.Allreduce(MPI.IN_PLACE, x, algorithm="pairwise")
        results.append(x.tobytes())
    assert results[0] == results[1] == WORLD.bcast(results[0])


# Arrays that are shared.


def test_shared_arrays_are_arrays(comm):
    x = comm.zeros((3, 4), "f4")
    assert x.shape == (3, 4) and x.dtype == np.float32 and x.flags.c_contiguous and not x.any()
    assert comm.empty(0).shape == (0,) and comm.zeros(()).shape == () and comm.empty(3).dtype == float
    if here(comm):
        assert HEAP.location(x.ctypes.data, x.nbytes) is not None
        assert HEAP.location(x.ctypes.data, 1 << 40) is None
    np.testing.assert_array_equal(np.sort(np.concatenate([x, x + 1])), np.repeat([[0.0], [1.0]], 3, 0) + np.zeros(4))


def test_memory_comes_back_with_the_last_view(comm):
    """And is used again; large pieces go back to the system at once."""
    if not here(comm):
        return
    gc.collect()  # what other tests have left, whose memory would come first
    x = comm.empty(1_000_000)
    where, view = x.ctypes.data, x[5:].reshape(-1, 5)[::2]
    x[:] = 1
    del x
    gc.collect()
    other = comm.empty(1_000_000)
    assert other.ctypes.data != where and (view == 1).all()
    del view, other
    gc.collect()
    again = comm.empty(1_000_000)
    assert again.ctypes.data == where and not again[1000:-1000].any()  # whole pages


def test_arrays_live_longer_than_their_communicator(comm):
    own = mpicoll.Communicator(WORLD.Dup())
    x = own.zeros(200_000)
    own.Free()
    with pytest.raises(mpicoll.ArgumentError, match="freed"):
        own.empty(5)
    x += RANK
    comm.Allreduce(MPI.IN_PLACE, x, algorithm="ring")
    assert (x == SIZE * (SIZE - 1) / 2).all()


@pytest.mark.parametrize(("shape", "dtype", "said"), [
    (-1, "f8", "negative"), ((2, -3), "f8", "negative"), (2.5, "f8", "no array"), ("abc", "f8", "no array"), (None, "f8", "no"),
    (3, "no such type", "no array"), (3, object, "Python objects"), (1 << 62, "f8", "bytes of memory"),
    ((1 << 40, 1 << 40), "f8", "bytes of memory"),
])  # fmt: skip
def test_nonsense(comm, shape, dtype, said):
    with pytest.raises(mpicoll.ArgumentError, match=said):
        comm.empty(shape, dtype)


# Other processes: children, and what few descriptors allow.


def in_child(function):
    """What a forked child returns; it ends without MPI noticing."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, repr(function()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def test_a_child_reads_and_never_writes(comm):
    """A worker of a data loader sums a shared array; what it writes, forgets and makes, stays with it."""
    x = comm.empty(100_000)
    x[:] = np.arange(x.size)
    wanted = x.copy()

    def work():
        nonlocal x
        total = x.sum()
        x[:] = -1
        private = x[5]
        del x
        gc.collect()
        others = [comm.zeros(100_000) for _ in range(3)]
        others[0] += 7
        return total, private, others[0].sum()

    said = in_child(work)
    assert said == repr((wanted.sum(), np.float64(-1), np.float64(700_000)))
    np.testing.assert_array_equal(x, wanted)
    comm.Allreduce(MPI.IN_PLACE, x, algorithm="ring")
    np.testing.assert_array_equal(x, SIZE * wanted)


def test_a_grandchild_keeps_what_the_child_wrote(comm):
    x = comm.zeros(1000)

    def work():
        x[:] = 3
        return in_child(lambda: x.sum())

    assert "3000" in in_child(work) and not x.any()


def test_arrays_that_grow_take_no_descriptors(comm):
    """Each is larger than all before, and served; those before are forgotten."""
    comm.Allreduce(MPI.IN_PLACE, comm.zeros(20_000), algorithm="ring")
    before = len(os.listdir("/proc/self/fd"))
    for number in range(1100):
        x = comm.empty((64 << 20) + (number << 12), "u1")
        if not number % 100:
            part = x[-100_000:]
            part[:] = 1
            comm.Allreduce(MPI.IN_PLACE, part, algorithm="ring")
            assert (part == SIZE).all()
        del x
    assert len(os.listdir("/proc/self/fd")) == before


def test_many_large_arrays_at_a_time(comm):
    """None needs a descriptor in the middle of a call."""
    first = comm.zeros(20_000)
    comm.Allreduce(MPI.IN_PLACE, first, algorithm="ring")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")), hard))
    try:
        arrays = [comm.empty(65 << 20, "u1") for _ in range(10)]
        for x in arrays:
            part = x[:100_000]
            part[:] = 1
            comm.Allreduce(MPI.IN_PLACE, part, algorithm="ring")
            assert (part == SIZE).all()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="threads may not use MPI")
def test_threads_make_and_forget_arrays(comm):
    """Each has a communicator of its own; two that saw a new piece of memory at once unmapped it under each other."""
    comms = [mpicoll.Communicator(WORLD.Dup()) for _ in range(3)]
    together, wrong = threading.Barrier(len(comms)), []

    def work(number):
        with suppress(threading.BrokenBarrierError):
            try:
                for step in range(3):
                    kept = []
                    for _ in range(10):
                        together.wait()
                        kept.append(comms[number].empty(1_000_000 * (step + 1) + number))
                        part = kept[-1][-20_000:]
                        part[:] = RANK + 1
                        comms[number].Allreduce(MPI.IN_PLACE, part, algorithm="ring")
                        assert (part == SIZE * (SIZE + 1) // 2).all()
            except BaseException as error:
                wrong.append(error)
                together.abort()
                raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(comms))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    for one in comms:
        one.Free()


@pytest.fixture
def full_heap(comm):
    """A function that leaves the last rank without more memory to share."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    kept = []

    def fill():
        if RANK < SIZE - 1:
            return
        end = os.fstat(HEAP.descriptor()).st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (end, hard))
        for nbytes in (1 << 20, 1 << 12, 1):
            with pytest.raises(OSError, match="File too large"):
                while True:
                    kept.append(HEAP.acquire(nbytes))
        with pytest.raises(mpicoll.ArgumentError, match="ranks can share: .*File too large"):
            comm.empty(1)

    yield fill
    for block in kept:
        HEAP.release(block)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.skipif(SIZE == 1, reason="one rank has nobody to share with")
def test_memory_to_share_has_run_out(comm, full_heap):
    """Calls as before work on, others have smaller pieces, what is made later goes through MPI.

    What needs more of it is an error on all ranks.
    """

    def call(comm, count):
        x = np.ones(count)
        comm.Allreduce(MPI.IN_PLACE, x, algorithm="ring")
        assert (x == SIZE).all()

    counts = (10, 1000, 100_000)
    for count in counts:
        call(comm, count)
    other_sizes = (2, 200, 9000)
    comm.Bcast(np.zeros(1), root=SIZE - 1, algorithm="binomial")  # has its pipes
    without_pipes = [mpicoll.Communicator(WORLD.Dup()) for _ in range(20)]
    full_heap()
    WORLD.Barrier()
    later = mpicoll.Communicator(WORLD.Dup())
    reason = Context.of(later).topology.refusal
    assert not here(later) and f"rank {SIZE - 1}: no memory to share" in reason
    for count in counts:
        call(comm, count)
        call(later, count)
    for count in other_sizes:
        call(comm, count)
        comm.Bcast(np.zeros(count, "c16"), root=SIZE - 1, algorithm="binomial")
    with pytest.raises(mpicoll.MpicollError, match="File too large") as caught:
        for refused in without_pipes:  # memory of former communicators may have come back
            full_heap()
            call(refused, 10)
    for part in (f"on rank {SIZE - 1}", "bytes", "which shares", "ulimit -f"):
        assert part in str(caught.value)
    assert isinstance(caught.value, mpicoll.SharedMemoryError) == (RANK == SIZE - 1)
    assert RANK == SIZE - 1 or f"rank {SIZE - 1} gave this communicator up" in str(caught.value)
    with pytest.raises(mpicoll.MpicollError, match="cannot be used any more"):
        call(refused, 10)
    for communicator in (later, *without_pipes):
        communicator.Free()


@pytest.mark.skipif(SIZE == 1, reason="one rank has nobody to share with")
def test_a_call_is_given_up_where_memory_has_run_out(comm, full_heap):
    """There are no new pages for its arrays: they keep their own, and all else is as without that."""
    x = comm.zeros(1000)
    comm.Allreduce(MPI.IN_PLACE, x, algorithm="ring")
    full_heap()
    given_up = mpicoll.Communicator(WORLD.Dup(), timeout=0.3)
    address, location = MPI.Get_address(x), HEAP.location(MPI.Get_address(x), x.nbytes)
    x[:] = RANK
    HEAP.detach(address, x.nbytes)
    assert (HEAP.location(address, x.nbytes) == location) == (RANK == SIZE - 1) and (x == RANK).all()
    if RANK:
        with pytest.raises(mpicoll.MpicollError):
            given_up.Allreduce(MPI.IN_PLACE, x, algorithm="ring")
        assert (x == RANK).all()
    WORLD.Barrier()
    given_up.Free()


@pytest.mark.skipif(SIZE == 1, reason="one rank has nobody to share with")
def test_memory_of_another_rank_that_cannot_be_mapped(monkeypatch):
    """Whether it is that of an array, or that of the pipes: an error on this rank, and the others are told."""
    from mpicoll.shared_memory import neighbours

    def fail(*arguments):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    for what in ("array", "pipes"):
        comm = mpicoll.Communicator(WORLD.Dup())
        small, large = np.zeros(10), comm.empty(10_000_000)
        large[:] = RANK
        if what == "array":
            comm.Bcast(small, algorithm="binomial")
        with monkeypatch.context() as patched:
            if RANK == SIZE - 1:
                comm._context.links._rings.clear()
                comm._context.links.peers.clear()
                patched.setattr(neighbours.Neighbour, "_find", lambda neighbour, location: None)
                patched.setattr(neighbours, "Mapping", fail)
            text = "to map [0-9]+ bytes of another rank.*Cannot allocate.*ulimit -v"
            with pytest.raises(mpicoll.MpicollError, match=text) as caught:
                while True:
                    comm.Bcast(large if what == "array" else small, algorithm="binomial")
                    comm.Allreduce(MPI.IN_PLACE, small, algorithm="ring")
        assert isinstance(caught.value, mpicoll.SharedMemoryError) == (RANK == SIZE - 1)
        WORLD.Barrier()
        comm.Free()


# Where memory is not shared.


def test_it_can_be_switched_off(monkeypatch):
    monkeypatch.setenv("MPICOLL_SHARED_MEMORY", "off")
    assert refusal() == "MPICOLL_SHARED_MEMORY=off"
    comm = mpicoll.Communicator(WORLD.Dup())
    x = comm.zeros(100_000)
    comm.Allreduce(MPI.IN_PLACE, x, algorithm="ring")
    assert not here(comm)
    if SIZE > 1:
        assert "through MPI: rank 0: MPICOLL_SHARED_MEMORY=off" in comm.explain("allreduce", x, algorithm="ring").reason
    comm.Free()


@pytest.mark.skipif(SIZE == 1, reason="one rank has nobody to share with")
@pytest.mark.parametrize("fault", ["another process", "may not"])
def test_one_rank_that_cannot_map_the_others(monkeypatch, fault):
    """All of the node go through MPI, and know why: process numbers of another namespace; a process that nobody may open."""
    from mpicoll.shared_memory import neighbours

    if RANK == SIZE - 1:
        if fault == "another process":
            own_card = neighbours._card
            monkeypatch.setattr(neighbours, "_card", lambda *given: own_card(*given)._replace(pid=os.getppid(), token=5))
        else:
            monkeypatch.setattr(neighbours.Neighbour, "of", _refused)
    comm = mpicoll.Communicator(WORLD.Dup())
    x = np.ones(50_000)
    comm.Allreduce(MPI.IN_PLACE, x, algorithm="ring")
    assert (x == SIZE).all() and not here(comm)
    assert "cannot be mapped" in Context.of(comm).topology.refusal
    comm.Free()


def _refused(card):
    raise PermissionError(13, "Permission denied")
