"""`Communicator` is an MPI.Intracomm: everything that makes communicators, their ends, and what wrappers share."""

import threading

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll.communicator import release
from mpicoll.execute.context import Context
from mpicoll.failure import outnumbers
from mpicoll.support.turn import FOR_EVER
from tests.support.cases import RANK, SIZE, WORLD, same

pytestmark = pytest.mark.mpi


def everybody(comm):
    return comm.Get_group()


MAKERS = {
    "Dup": lambda comm: comm.Dup(),
    "Clone": lambda comm: comm.Clone(),
    "Dup_with_info": lambda comm: comm.Dup_with_info(MPI.INFO_NULL),
    "Split": lambda comm: comm.Split(0, -RANK),
    "Split in two": lambda comm: comm.Split(RANK % 2, RANK),
    "Split_type": lambda comm: comm.Split_type(MPI.COMM_TYPE_SHARED),
    "Create": lambda comm: comm.Create(everybody(comm)),
    "Create_group": lambda comm: comm.Create_group(everybody(comm)),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_made_communicators_work(comm, make):
    comm.Allreduce(MPI.IN_PLACE, np.ones(3), algorithm="ring")
    made = make(comm)
    assert type(made) is mpicoll.Communicator and made != comm
    assert made.sent == (0, 0)  # the counters of a new communicator are its own
    data = np.full(5, float(RANK))
    made.Allreduce(MPI.IN_PLACE, data, algorithm="ring")
    same(data, np.full(5, float(sum(made.allgather(RANK)))))
    made.Free()
    assert made == MPI.COMM_NULL


def test_left_out_of_a_communicator(comm):
    """Ranks that are no members get COMM_NULL."""
    first = comm.Create(comm.Get_group().Incl([0]))
    apart = comm.Split(0 if RANK == 0 else MPI.UNDEFINED)
    for made in (first, apart):
        assert (made == MPI.COMM_NULL) == (RANK > 0)
        if made:
            made.Free()


def test_it_is_an_intracomm(comm):
    assert isinstance(comm, MPI.Intracomm) and comm.Get_size() == SIZE and comm == mpicoll.Communicator(comm)
    assert comm.bcast("text", 0) == "text" and comm.allreduce(1) == SIZE
    comm.Barrier()


def test_subclasses_stay_themselves():
    class Mine(mpicoll.Communicator):
        pass

    made = Mine(WORLD).Split(0, RANK)
    assert type(made) is Mine
    made.Free()


def test_wrappers_of_one_handle_share_counters(comm):
    other = mpicoll.Communicator(comm)
    comm.Allreduce(MPI.IN_PLACE, np.ones(SIZE), algorithm="ring")
    other.Allreduce(MPI.IN_PLACE, np.ones(SIZE), algorithm="ring")
    assert comm.sent == other.sent == (4 * (SIZE - 1), 32 * (SIZE - 1))


def test_free_releases_everything():
    """The private duplicate goes with its communicator: more of them than MPICH has at one time."""
    before = len(Context.living())
    for _ in range(100):
        comm = mpicoll.Communicator(WORLD.Dup())
        comm.Allreduce(MPI.IN_PLACE, np.ones(2), algorithm="recursive_doubling")
        comm.Free()
    assert len(Context.living()) == before


def test_a_thread_that_looks_around_late_leaves_a_freed_communicator_alone():
    """The thread that makes progress may look at a call that stood still when its communicator is gone."""
    comm = mpicoll.Communicator(MPI.COMM_WORLD.Dup())
    context = Context.of(comm)
    comm.Free()
    context.look()  # MPI ends the job where it is asked about a freed communicator


def test_no_thread_uses_a_communicator_that_is_freed_by_its_own_handle():
    """`Free` of a plain handle comes to us from within MPI, where nothing can be waited for."""
    part = WORLD.Split(0, RANK)
    context = Context.of(mpicoll.Communicator(part))
    part.Free()
    assert not context.channel.open
    context.look()


def test_a_thread_that_is_within_mpi_keeps_what_it_uses():
    """With MPICH it may wait there for the one that frees the communicator: that one does not wait for it."""
    part = WORLD.Split(0, RANK)
    channel = Context.of(mpicoll.Communicator(part)).channel
    is_looking, is_freed = threading.Event(), threading.Event()

    def watch():
        is_looking.set()
        is_freed.wait()

    watcher = threading.Thread(target=channel.looking.take, args=(watch,), kwargs={"patience": FOR_EVER})
    watcher.start()
    is_looking.wait()
    part.Free()
    assert channel.wire.comm.Get_size() == SIZE
    is_freed.set()
    watcher.join()


@pytest.mark.parametrize("algorithm", ["ring", "recursive_doubling"])
def test_what_is_under_way_ends_well_where_the_handle_is_freed(algorithm):
    """As MPI does it: a communicator is freed when its operations are over."""
    part = WORLD.Split(0, RANK)
    comm = mpicoll.Communicator(part)
    x, y = np.arange(50_000.0), np.empty(50_000)
    if RANK == SIZE - 1:
        WORLD.gather(None, SIZE - 1)  # the others have begun, and nothing of theirs can be over
    request = comm.Iallreduce(x, y, algorithm=algorithm)
    if RANK < SIZE - 1:
        WORLD.gather(None, SIZE - 1)
    part.Free()
    request.Wait()
    same(y, x * SIZE)


def test_reports_name_the_ranks_of_a_freed_communicator_without_mpi():
    """The watcher is another thread: it may come when a communicator is being freed, or when MPI admits no thread."""
    part = WORLD.Split(0, -RANK)
    comm = mpicoll.Communicator(part)
    channel = Context.of(comm).channel
    comm.Free()
    assert list(channel.world_ranks) == list(reversed(range(SIZE)))


def test_null_communicator():
    null = mpicoll.Communicator(MPI.COMM_NULL)
    assert null == MPI.COMM_NULL and not null and mpicoll.Communicator() == MPI.COMM_NULL
    for count in (1, 1 << 15):
        with pytest.raises(mpicoll.ArgumentError, match="freed"):
            null.Allreduce(np.zeros(count), np.zeros(count))


@pytest.mark.mpi(min_size=2)
def test_intercommunicators_are_refused():
    halves = WORLD.Split(RANK % 2, RANK)
    inter = halves.Create_intercomm(0, WORLD, 1 - RANK % 2)
    with pytest.raises(mpicoll.ArgumentError, match="Merge"):
        mpicoll.Communicator(inter)
    merged = mpicoll.Communicator(inter.Merge(RANK % 2))
    assert merged.Get_size() == SIZE
    for made in (merged, inter, halves):
        made.Free()


@pytest.mark.parametrize("lost", range(SIZE))
def test_only_one_part_of_the_ranks_goes_on_where_heartbeats_may_be_wrong(monkeypatch, lost):
    """Two parts each take the other for dead: the larger goes on, of two halves that with rank 0."""
    part = WORLD.Split(RANK < lost, RANK)
    assert outnumbers(WORLD, part)
    monkeypatch.setenv("OMPI_MCA_mpi_ft_detector", "true")
    going_on = WORLD.allgather(outnumbers(WORLD, part))
    assert going_on == [(rank < lost) == (2 * lost >= SIZE) for rank in range(SIZE)]
    part.Free()


def test_what_a_finalizer_releases_is_freed_when_the_next_communicator_is_made(comm):
    """Not at once: the finalizer may run within mpi4py, which holds a lock that its `Free` takes (seen: a deadlock)."""
    other = comm.Dup()
    other.allgather(None)  # mpi4py makes that lock
    release(other)
    assert other != MPI.COMM_NULL
    assert other.allreduce(1) == SIZE
    comm.Dup().Free()
    assert other == MPI.COMM_NULL
