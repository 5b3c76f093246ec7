"""Communicators that are made from a Communicator: of its class, with its settings, whoever waits for whom meanwhile."""

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll.execute.context import Context
from mpicoll.shared_memory import HEAP
from mpicoll.transport import channel, topology
from tests.support.cases import RANK, SIZE, WORLD, same

pytestmark = pytest.mark.mpi
EVERYONE = list(range(SIZE))


def idup(comm):
    made, request = comm.Idup()
    request.Wait()
    return made


def idup_with_info(comm):
    made, request = comm.Idup_with_info(MPI.INFO_NULL)
    request.Wait()
    return made


WAYS = {
    "Dup": lambda comm: comm.Dup(),
    "Idup": idup,
    "Idup_with_info": idup_with_info,
    "Split": lambda comm: comm.Split(0, RANK),
    "Create": lambda comm: comm.Create(comm.Get_group()),
    "Create_cart": lambda comm: comm.Create_cart([SIZE], [True]),
    "Sub": lambda comm: comm.Create_cart([SIZE], [True]).Sub([True]),
    "Create_graph": lambda comm: comm.Create_graph(list(range(1, SIZE + 1)), [(rank + 1) % SIZE for rank in EVERYONE]),
    "Create_dist_graph": lambda comm: comm.Create_dist_graph([RANK], [1], [(RANK + 1) % SIZE]),
    "Create_dist_graph_adjacent": lambda comm: comm.Create_dist_graph_adjacent([(RANK - 1) % SIZE], [(RANK + 1) % SIZE]),
}


@pytest.mark.parametrize("way", WAYS)
def test_it_has_the_class_and_the_settings(way):
    parent = mpicoll.Communicator(WORLD.Dup(), deterministic=True, check="always", timeout=50)
    made = WAYS[way](parent)
    assert isinstance(made, mpicoll.Communicator) and made.deterministic
    x = np.arange(1000.0)
    for form in (made.Dup(), idup(made), made):
        y = np.empty_like(x)
        form.Allreduce(x, y, algorithm="pairwise")
        same(y, x * SIZE)
        form.Iallreduce(x, y).Wait()
        same(y, x * SIZE)
        assert form.explain("allreduce", x).algorithm != "native"  # which says in no order what it adds
        if SIZE > 1:
            broken = idup(form)
            with pytest.raises(mpicoll.CollectiveMismatch):  # of the second such call: each is compared
                for count in (8, 8, 8 + RANK):
                    broken.Allreduce(np.ones(count), np.empty(count))
        form.Free()
    parent.Free()


def test_a_grid_is_a_grid(comm):
    grid = comm.Create_cart([SIZE], [True])
    assert isinstance(grid, MPI.Cartcomm) and grid.Get_coords(RANK) == [RANK]
    assert grid.Shift(0, 1) == ((RANK - 1) % SIZE, (RANK + 1) % SIZE)
    assert isinstance(grid.Dup(), MPI.Cartcomm) and not isinstance(grid.Split(0), MPI.Cartcomm)
    assert isinstance(grid.Split(0), mpicoll.Communicator)


def test_ranks_without_a_place_get_none(comm):
    grid = comm.Create_cart([1])
    assert (grid == MPI.COMM_NULL) == (RANK > 0)


def test_idup_is_over_where_other_ranks_wait_for_this_one(comm):
    """Rank 0 begins a call on the duplicate before the others have waited for theirs."""
    made, request = comm.Idup()
    x, y = np.ones(100_000), np.empty(100_000)
    if RANK == 0:
        request.Wait()
        reduced = made.Iallreduce(x, y, algorithm="ring")
        for rank in range(1, SIZE):
            comm.send("go on", rank)
    else:
        assert comm.recv(source=0) == "go on"
        request.Wait()
        reduced = made.Iallreduce(x, y, algorithm="ring")
    reduced.Wait()
    same(y, SIZE * x)
    made.Free()


def test_an_idup_begins_no_other_beside_it(comm):
    """Open MPI gives two at a time an error, or never ends them, when another thread looks for messages meanwhile."""
    wire = Context.of(comm).channel.wire
    users = wire._users
    x = np.arange(1000.0)
    for _ in range(20):
        made, again = idup(comm), idup(comm)
        y = np.empty_like(x)
        made.Allreduce(x, y, algorithm="ring")
        again.Allreduce(y, x, algorithm="ring")
        same(x, np.arange(1000.0) * SIZE**2)
        x = np.arange(1000.0)
        made.Free()
        again.Free()
    assert Context.of(comm).channel.wire is wire and wire._users == users


@pytest.mark.skipif(SIZE < 2, reason="needs a part")
@pytest.mark.parametrize("first", [lambda comm: None, lambda comm: comm.Dup().Free()], ids=["first", "later"])
def test_an_idup_of_a_part(comm, first):
    half = comm.Split(min(RANK, 1))
    first(half)
    made = idup(half)
    y = np.empty(1000)
    made.Iallreduce(np.ones(1000), y, algorithm="ring").Wait()
    same(y, np.full(1000, float(half.Get_size())))
    made.Free()
    half.Free()


def test_duplicates_that_were_never_used_are_freed(comm):
    for _ in range(3):
        idup(comm).Free()
    same(np.array(comm.allreduce(1)), np.array(SIZE))


@pytest.mark.skipif(SIZE < 2, reason="needs a part")
def test_a_handle_that_is_used_again_inherits_nothing_of_a_duplicate(comm):
    """Freed by a plain handle before its first use; MPI gives the handle to the next communicator, of other ranks."""
    wire = Context.of(comm).channel.wire
    users = wire._users
    for _ in range(2):
        MPI.Intracomm(idup(comm)).Free()
        assert wire._users == users
        part = mpicoll.Communicator(WORLD.Split(RANK % 2, -RANK))
        assert Context.of(part).channel.wire is not wire
        y = np.empty(1000)
        part.Allreduce(np.ones(1000), y, algorithm="ring")
        same(y, np.full(1000, float(part.Get_size())))
        part.Free()


def test_a_plain_duplicate_of_a_duplicate_is_promised_nothing(comm):
    made = idup(comm)
    again = mpicoll.Communicator(MPI.Intracomm(made).Dup())
    for one in (made, again):
        one.Barrier(algorithm="dissemination")
    assert Context.of(made).channel.wire is not Context.of(again).channel.wire
    again.Free()
    made.Free()


# What it costs, counted.


def refuses(*_):
    raise AssertionError("not needed")


def test_ranks_meet_once_for_all_that_is_made_from_a_communicator(monkeypatch):
    """A duplicate and parts of it look for no processes, translate no ranks and take no memory before they are used."""
    parent = mpicoll.Communicator(WORLD.Dup())
    for place in ("meet", "Wire"):
        monkeypatch.setattr(channel, place, refuses)
    monkeypatch.setattr(type(HEAP), "acquire", refuses)
    made = [WAYS[way](parent) for way in ("Dup", "Idup", "Split", "Create", "Create_cart")]
    monkeypatch.undo()
    x = np.arange(1000.0)
    for one in made:
        y = np.empty_like(x)
        one.Allreduce(x, y, algorithm="ring")
        same(y, x * SIZE)
        one.Free()
    parent.Free()


def test_a_communicator_of_another_session():
    """MPI forbids to compare it with COMM_WORLD."""
    try:
        session = MPI.Session.Init()
    except (AttributeError, NotImplementedError):
        pytest.skip("needs MPI with sessions")
    group = session.Create_group("mpi://WORLD")
    for make in (mpicoll.Communicator.Create_from_group, lambda *arguments: mpicoll.Communicator(
            MPI.Intracomm.Create_from_group(*arguments))):  # fmt: skip
        comm = make(group, "test_made_from")
        assert list(Context.of(comm).channel.world_ranks) == EVERYONE
        y = np.empty(500)
        comm.Allreduce(np.ones(500), y, algorithm="ring")
        same(y, np.full(500, float(SIZE)))
        comm.Free()
    group.Free()
    session.Finalize()


def test_ranks_that_agree_tell_each_other_numbers_alone(monkeypatch):
    monkeypatch.setattr(topology, "_raise_difference", refuses)
    mpicoll.Communicator(WORLD.Dup(), timeout=100).Free()
    monkeypatch.undo()
    mpicoll.Communicator(WORLD.Dup(), timeout=100 if RANK else 100.0).Free()  # equal, though they do not print alike


@pytest.mark.skipif(SIZE < 2, reason="needs a part")
def test_parts_of_a_part_share_what_their_messages_travel_on():
    """MPI has about 2,000 contexts: each takes one, not two."""
    half = mpicoll.Communicator(WORLD.Dup()).Split(RANK % 2)
    made = [half.Split(0, -RANK) for _ in range(5)]
    assert len({id(Context.of(one).channel.wire) for one in made}) == 1
    for one in made:
        y = np.empty(500)
        one.Allreduce(np.ones(500), y, algorithm="ring")
        same(y, np.full(500, float(half.size)))
    assert len({Context.of(one).channel.own_name for one in made}) == len(made)
    for one in made:
        one.Free()
    half.Free()
