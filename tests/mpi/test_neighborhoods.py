"""Collectives of neighbours: MPI's own results on grids and graphs, in all forms, and what ranks do wrong."""

import random
from itertools import product

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll import algorithms, engine
from mpicoll.communicator.communicator import CartCommunicator, DistgraphCommunicator, GraphCommunicator
from mpicoll.execute.context import Context
from mpicoll.graphs import Graph
from mpicoll.support.quirks import applies
from tests.support.cases import RANK, SIZE, WORLD, same

pytestmark = pytest.mark.mpi
WORDS = algorithms.list_algorithms("neighbor_alltoall")
METHODS = ("Neighbor_allgather", "Neighbor_allgatherv", "Neighbor_alltoall", "Neighbor_alltoallv")
NODES = ((0,) * SIZE, tuple(rank // 2 for rank in range(SIZE)), tuple(rank % 2 for rank in range(SIZE)), tuple(range(SIZE)))
DOUBLE = MPI.DOUBLE


@pytest.fixture
def parent():
    """A communicator that makes others, whose ranks seem to lie on other nodes."""
    communicator = mpicoll.Communicator(WORLD.Dup(), timeout=60)
    yield communicator
    if communicator != MPI.COMM_NULL:
        communicator.Free()


def place(comm, nodes):
    """Schedules for ranks of these nodes."""
    context = Context.of(comm)
    context.topology = context.topology._replace(nodes=nodes)


def forms(comm, method, send, recv, **options):
    """The call in each form, those that do not block awaited; the plan is started twice."""
    getattr(comm, method)(send, recv, **options)
    yield "blocking"
    getattr(comm, method)(send, recv, **options)
    yield "again"
    if options.get("algorithm") == "native" and swaps(comm, method):
        return
    getattr(comm, f"I{method.lower()}")(send, recv, **options).Wait()
    yield "non-blocking"
    plan = getattr(comm, f"{method}_init")(send, recv, **options)
    for _ in range(2):
        plan.Start()
        plan.Wait()
    plan.Free()
    yield "plan"


def swaps(comm, method):
    """Whether MPI's own calls that return before their end have the wrong result."""
    small = comm.Get_topology() == MPI.CART and any(
        length < 3 and periodic for length, periodic in zip(comm.dims, comm.periods))
    return small and "alltoall" in method and applies("neighbor-directions")


def equals_mpi(comm, plain, method, sent, received, dtype="f8", words=WORDS):
    """Compare with MPI's result. sent, received: elements of the block of each place; of an allgather: one block."""
    datatype = MPI._typedict[np.dtype(dtype).char]
    x = (np.arange(sum(sent)) + 100 * RANK).astype(dtype)
    wanted = np.full(sum(received), 7, dtype)
    result = wanted.copy()
    if method.endswith("v"):
        into = [wanted, received], [result, received]
        send = x if "allgather" in method else [x, sent]
    else:  # a count, which Open MPI needs of a rank without places
        count = (sent or received or [0])[0]
        into = [wanted, count, datatype], [result, count, datatype]
        send = [x, count, datatype]
    getattr(plain, method)(send, into[0])
    for word in words:
        for form in forms(comm, method, send, into[1], algorithm=word):
            assert np.array_equal(result, wanted), (word, form)
            result[...] = 7


# ---- grids


def grids():
    """Those that some of these ranks can make."""
    for dims in ([1], [2], [1, 2], [3], [2, 2], [SIZE], [], [1, 1]):
        if np.prod(dims, dtype=int) <= SIZE:
            for periodic in (True, False):
                yield dims, periodic


@pytest.mark.parametrize("nodes", NODES[:2])
def test_grids(parent, nodes):
    place(parent, nodes)
    for dims, periodic in grids():
        grid = parent.Create_cart(dims, [periodic] * len(dims), reorder=True)
        if grid == MPI.COMM_NULL:
            continue
        assert isinstance(grid, CartCommunicator)
        plain = MPI.Cartcomm(grid)
        assert [grid.Shift(0, 1)] == [plain.Shift(0, 1)] if dims else True
        places = 2 * len(dims)
        for method in METHODS if places else ():
            sent = 3 if "allgather" in method else 3 * places
            x = np.arange(float(sent)) + 100 * grid.Get_rank()
            wanted, result = np.full(3 * places, 7.0), np.full(3 * places, 7.0)
            getattr(plain, method)(x, wanted)
            for word in (None, *WORDS):
                for _ in forms(grid, method, x, result, algorithm=word):
                    same(result, wanted)
                    result[...] = 7
        if not places:
            grid.Neighbor_alltoall(np.empty(0), np.empty(0))
        grid.Free()


def test_which_directions_of_mpi_are_wrong(parent):
    """The table of special cases says which; none is served by those that are, and nobody gets one by name."""
    plain = WORLD.Create_cart([1], [True])
    if plain == MPI.COMM_NULL:
        return
    x, result = np.array([0.0, 1.0]), np.zeros(2)
    plain.Neighbor_alltoall(x, result)
    same(result, x[::-1])
    plain.Ineighbor_alltoall(x, result).Wait()
    same(result, x if applies("neighbor-directions") else x[::-1])
    grid = mpicoll.Communicator(plain)
    for form in forms(grid, "Neighbor_alltoall", x, result):
        assert np.array_equal(result, x[::-1]), form
    if applies("neighbor-directions"):
        with pytest.raises(mpicoll.ArgumentError, match="swap the two blocks"):
            grid.Ineighbor_alltoall(x, result, algorithm="native")


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.mpi(min_size=2)
def test_ranks_with_destinations_only(parent, step):
    """step: between the elements of the buffer that has some; the other one has none."""
    comm = parent.Create_dist_graph_adjacent([0] if RANK == 1 else [], [1] if RANK == 0 else [])
    result = np.zeros(3 * step)[::step] if RANK == 1 else np.zeros(0)
    for method, has_all in (("Neighbor_alltoall", False), ("Neighbor_allgather", True), ("Neighbor_allgather", False)):
        x = np.full(3 * step if RANK == 0 or has_all else 0, 5.0)[::step]
        for word in WORDS:
            for form in forms(comm, method, x, result, algorithm=word):
                assert (result == 5).all(), (method, word, form)
                result[...] = 0


def test_parts_and_duplicates_of_a_grid(parent):
    grid = parent.Create_cart([SIZE, 1], [True, True])
    for made in (grid.Dup(), grid.Sub([True, False]), idup(grid)):
        places = 2 * made.Get_dim()
        x = np.arange(float(places)) + 10 * RANK
        wanted, result = np.empty(places), np.empty(places)
        MPI.Cartcomm(made).Neighbor_alltoall(x, wanted)
        made.Neighbor_alltoall(x, result, algorithm="direct")
        same(result, wanted)
        made.Free()


def idup(comm):
    made, request = comm.Idup()
    request.Wait()
    return made


# ---- graphs


def test_a_graph_of_which_all_ranks_know_all(parent):
    around = [[(rank - 1) % SIZE, (rank + 1) % SIZE, rank] for rank in range(SIZE)]
    comm = parent.Create_graph(list(range(3, 3 * SIZE + 1, 3)), sum(around, []), reorder=True)
    assert isinstance(comm, GraphCommunicator)
    for method in METHODS:
        sent = [2] if "allgather" in method else [2] * 3
        equals_mpi(comm, MPI.Graphcomm(comm), method, sent, [2] * 3)


def drawn(seed):
    """Any graph, with ranks without neighbours, loops and edges that occur twice: destinations and sources."""
    draw = random.Random(seed)
    targets, sources = [[[] for _ in range(SIZE)] for _ in range(2)]
    for _ in range(draw.randrange(3 * SIZE + 1)):
        source, target = draw.randrange(SIZE), draw.randrange(SIZE)
        for _ in range(draw.choice((1, 1, 2))):
            targets[source].append(target)
            sources[target].append(source)
    for peers in targets + sources:
        draw.shuffle(peers)
    return draw, targets, sources


@pytest.mark.parametrize("seed", range(5))
def test_any_graph_with_any_counts(parent, seed):
    draw, targets, sources = drawn(seed)
    place(parent, draw.choice(NODES))
    weights = {"sourceweights": [1] * len(sources[RANK]), "destweights": [2] * len(targets[RANK])} if seed % 2 else {}
    comm = parent.Create_dist_graph_adjacent(sources[RANK], targets[RANK], **weights)
    assert isinstance(comm, DistgraphCommunicator)
    plain = MPI.Distgraphcomm(comm)
    graph = Graph.adjacent(targets, sources)
    counts = [[draw.choice((0, 1, 5, 300)) for _ in peers] for peers in targets]
    each = [draw.choice((0, 1, 40)) for _ in range(SIZE)]
    count = draw.choice((0, 1, 17))
    dtype = draw.choice(("f8", "i4", "u1", "F"))
    blocks = graph.sources[RANK]
    equals_mpi(comm, plain, "Neighbor_alltoallv", counts[RANK], [counts[one.source][one.place] for one in blocks], dtype)
    equals_mpi(comm, plain, "Neighbor_alltoall", [count] * len(targets[RANK]), [count] * len(blocks), dtype)
    equals_mpi(comm, plain, "Neighbor_allgather", [count], [count] * len(blocks), dtype)
    equals_mpi(comm, plain, "Neighbor_allgatherv", [each[RANK]], [each[one.source] for one in blocks], dtype)
    comm.Free()


def test_create_dist_graph_by_one_rank(parent):
    """The edges of all ranks, named by one."""
    degrees = [2] * SIZE if RANK == 0 else []
    targets = sum(([(rank + 1) % SIZE, (rank + 1) % SIZE] for rank in range(SIZE)), []) if RANK == 0 else []
    comm = parent.Create_dist_graph(list(range(SIZE)) if RANK == 0 else [], degrees, targets, reorder=True)
    for method in METHODS:
        equals_mpi(comm, MPI.Distgraphcomm(comm), method, [4] if "allgather" in method else [4, 4], [4, 4])


def test_communicators_of_mpi4py_keep_their_topology(parent):
    plain = WORLD.Create_cart([SIZE], [True])
    grid = mpicoll.Communicator(plain)
    assert isinstance(grid, CartCommunicator) and grid.Get_coords(RANK) == [RANK]
    result = np.empty(2)
    grid.Neighbor_allgather(np.array([float(RANK)]), result, algorithm="packed")
    same(result, np.array([(RANK - 1) % SIZE, (RANK + 1) % SIZE], float))


# ---- buffers


def ring(parent):
    return parent.Create_cart([SIZE], [True])


@pytest.mark.parametrize("word", WORDS)
def test_strides_and_derived_types(parent, word):
    place(parent, NODES[1])
    grid = ring(parent)
    whole, wanted = np.arange(24.0).reshape(4, 6) + 100 * RANK, np.zeros((4, 6))
    result = np.full((4, 6), 7.0)
    column = MPI.DOUBLE.Create_vector(4, 1, 6).Create_resized(0, 8)
    column.Commit()
    plain = MPI.Cartcomm(grid)
    wanted[...] = 7
    send = [whole, [1, 1], [1, 4], column]
    into = [[wanted, [1, 1], [0, 5], column], [result, [1, 1], [0, 5], column]]
    plain.Neighbor_alltoallv(send, into[0])
    for form in forms(grid, "Neighbor_alltoallv", send, into[1], algorithm=word):
        same(result, wanted)
        result[...] = 7
    column.Free()
    strided, room = np.arange(8.0)[::2] + RANK, np.zeros(8)
    grid.Neighbor_alltoall(strided, room[1::2], algorithm=word)
    both = np.empty(4)
    plain.Neighbor_alltoall(strided.copy(), both)
    same(room[1::2], both)
    assert not room[::2].any()


@pytest.mark.parametrize("word", WORDS)
def test_a_datatype_for_each_block(parent, word):
    """A column to one neighbour, a row to the other, as the faces of an array with a halo."""
    place(parent, NODES[1])
    grid = ring(parent)
    column = MPI.DOUBLE.Create_vector(4, 1, 6).Commit()
    row = MPI.DOUBLE.Create_contiguous(4).Commit()
    whole = np.arange(24.0).reshape(4, 6) + 100 * RANK
    wanted, result = np.full((4, 6), 7.0), np.full((4, 6), 7.0)
    send = [whole, ([1, 1], [8, 32]), [column, column]]
    room = [1, 1], [0, 40]
    MPI.Cartcomm(grid).Neighbor_alltoallw(send, [wanted, room, [column, column]])
    for form in forms(grid, "Neighbor_alltoallw", send, [result, room, [column, column]], algorithm=word):
        assert np.array_equal(result, wanted), form
        result[...] = 7
    flat = np.zeros(8)
    grid.Neighbor_alltoallw(send, [flat, ([1, 1], [0, 32]), [row, row]], algorithm=word)
    same(flat, np.concatenate([wanted[:, 0], wanted[:, 5]]))
    column.Free()
    row.Free()


@pytest.mark.parametrize("word", WORDS)
def test_shared_arrays_on_some_ranks(parent, word):
    place(parent, NODES[1])
    grid = ring(parent)
    make = grid.empty if RANK % 2 else np.empty
    for count in (1, 5000):
        x, result, wanted = make(2 * count), make(2 * count), np.empty(2 * count)
        x[...] = np.arange(2 * count) + 10**6 * RANK
        MPI.Cartcomm(grid).Neighbor_alltoall(x, wanted)
        for form in forms(grid, "Neighbor_alltoall", x, result, algorithm=word):
            same(result, wanted)
            result[...] = 7


def test_blocks_of_nobody_are_left_alone(parent):
    grid = parent.Create_cart([SIZE], [False])
    for word, strided in product(WORDS, (False, True)):
        room = np.full(8, 7.0)
        result = room[::2] if strided else room[:4]
        grid.Neighbor_alltoall(np.full(4, float(RANK)), result, algorithm=word)
        below, above = (RANK - 1 if RANK else 7), (RANK + 1 if RANK < SIZE - 1 else 7)
        same(result, np.array([below, below, above, above], float))


@pytest.mark.parametrize("method", METHODS)
def test_buffers_that_are_wrong(parent, method):
    grid = ring(parent)
    x = np.zeros(4)
    call = getattr(grid, method)
    with pytest.raises(mpicoll.ArgumentError, match="MPI has no IN_PLACE for neighbours"):
        call(MPI.IN_PLACE, x)
    with pytest.raises(mpicoll.BufferError, match="overlap"):
        call(x[:2], x[:4] if "allgather" in method else x[:2])
    if not method.endswith("v"):
        with pytest.raises(mpicoll.BufferError, match="the send buffer has blocks of"):
            call(np.zeros(2), np.zeros(6))
        with pytest.raises(mpicoll.BufferError, match="cannot be cut into 2 equal blocks"):
            call(np.zeros(2), np.zeros(3))
    with pytest.raises(mpicoll.ArgumentError, match="has no algorithm 'rign'"):
        call(np.zeros(2), np.zeros(4) if "allgather" in method else np.zeros(2), algorithm="rign")


# ---- ranks that differ


@pytest.mark.mpi(min_size=2)
def test_a_graph_that_does_not_match(parent):
    """Rank 0 names rank 1 as a destination, which does not name it: an error on all ranks, in all forms, and no hang."""
    comm = parent.Create_dist_graph_adjacent([], [1] if RANK == 0 else [])
    for call in (comm.Neighbor_alltoall, comm.Ineighbor_alltoall, comm.Neighbor_alltoall_init):
        with pytest.raises(mpicoll.ArgumentError) as raised:
            call(np.zeros(int(RANK == 0)), np.zeros(0))
        assert "rank 0 names rank 1 as a destination once, rank 1 names rank 0 as a source never" in str(raised.value)
    total = np.zeros(1)
    comm.Allreduce(np.ones(1), total)  # all else works
    assert total[0] == SIZE


@pytest.mark.mpi(min_size=2)
def test_blocks_of_other_sizes_than_expected(parent):
    grid = ring(parent)
    counts = [2, 3] if RANK == 0 else [2, 2]
    with pytest.raises(mpicoll.CollectiveMismatch, match="blocks have other sizes than expected"):
        grid.Neighbor_alltoallv([np.zeros(sum(counts)), counts], [np.zeros(4), [2, 2]], algorithm="direct")


@pytest.mark.mpi(min_size=2)
def test_other_calls_are_named(parent):
    grid = ring(parent)
    with pytest.raises(mpicoll.CollectiveMismatch) as raised:
        if RANK:
            grid.Neighbor_alltoall(np.zeros(2), np.zeros(2))
        else:
            grid.Neighbor_allgather(np.zeros(1), np.zeros(2))
    assert "Neighbor_alltoall of blocks of 8 bytes" in str(raised.value)
    assert "Neighbor_allgather of blocks of 8 bytes" in str(raised.value)


@pytest.mark.mpi(min_size=2)
def test_a_rank_that_does_not_come(parent):
    grid = mpicoll.Communicator(WORLD.Create_cart([SIZE], [True]), check="off", timeout=100)
    x, y = np.zeros(2), np.zeros(2)
    grid.Neighbor_alltoall(x, y, algorithm="direct")
    mpicoll.Communicator(grid, timeout=1)  # from here on: a busy machine is slow to start all ranks
    if RANK:
        with pytest.raises(mpicoll.CollectiveTimeout):
            for _ in range(SIZE):  # a rank that has no neighbour among the missing waits for the others
                grid.Neighbor_alltoall(x, y, algorithm="direct")
    WORLD.Barrier()


def test_plans_of_a_communicator_that_was_freed(parent):
    grid = ring(parent)
    plan = grid.Neighbor_alltoall_init(np.zeros(2), np.zeros(2), algorithm="direct")
    plan.Start()
    plan.Wait()
    grid.Free()
    with pytest.raises(RuntimeError, match="plan that was freed"):
        plan.Start()
    with pytest.raises(mpicoll.ArgumentError, match="a communicator that was freed"):
        grid.Neighbor_alltoall(np.zeros(2), np.zeros(2))


def test_ranks_compare_every_call():
    compared = mpicoll.Communicator(WORLD.Dup(), check="always")
    grid = compared.Create_cart([SIZE], [True])
    result = np.zeros(2)
    for form in forms(grid, "Neighbor_allgather", np.array([RANK + 1.0]), result, algorithm="packed"):
        assert result.sum() == (RANK - 1) % SIZE + (RANK + 1) % SIZE + 2
    grid.Free()
    compared.Free()


# ---- how it is served


@pytest.mark.mpi(min_size=2)
def test_a_repeated_call_is_bound_once(parent):
    grid = ring(parent)
    x, y = np.zeros(2), np.zeros(2)
    cache = Context.of(grid).cache
    kept = []
    for number in range(4):
        grid.Neighbor_alltoall(x, y, algorithm="direct")
        [entry] = cache.values() if number else [None]
        idle = [operation for operation in entry.idle.values()] if entry else []
        if number > 1:
            assert idle == kept
        kept = idle


@pytest.mark.mpi(min_size=4)
def test_the_choice_by_the_graph(parent):
    """Of repeated blocking calls that run in C on all ranks; plans are MPI's own, unless that has the wrong result."""
    for nodes, expected in ((NODES[0], ["direct", "direct", "native"]), (NODES[1], ["combined", "packed", "native"])):
        place(parent, nodes)
        grid = parent.Create_cart([2, 2], [True, True])
        if grid == MPI.COMM_NULL:
            continue
        found = []
        for count in (256, 1024, 4096):
            x, result, wanted = np.arange(4.0 * count) + RANK, np.zeros(4 * count), np.zeros(4 * count)
            MPI.Cartcomm(grid).Neighbor_alltoall(x, wanted)
            for _ in range(4):
                grid.Neighbor_alltoall(x, result)
                same(result, wanted)
                result[...] = 7
            found.append(grid.explain("neighbor_alltoall", x, result).algorithm)
            instead = "direct" if nodes == NODES[0] or count == 4096 else "packed"
            begun = grid.explain("ineighbor_alltoall", x, result).algorithm
            assert begun == (instead if applies("neighbor-directions") else "native")
        assert found == (expected if engine.has_doors() else ["native"] * 3)
        grid.Free()


def test_explained(parent):
    place(parent, NODES[1])
    grid = ring(parent)
    x, y = np.zeros(2), np.zeros(2)
    explained = grid.explain("neighbor_alltoall", x, y, algorithm="direct")
    assert (explained.nbytes, explained.rounds) == (16, int(SIZE > 1)) and explained.messages == (2 if SIZE > 1 else 0)
    assert grid.explain("Ineighbor_allgather", x[:1], y, algorithm="combined").algorithm == "combined"
    assert grid.explain("allreduce", x).collective == "allreduce"
    sent = grid.sent
    grid.Neighbor_alltoall(x, y, algorithm="direct")
    assert grid.sent == (sent[0] + explained.messages, sent[1] + explained.bytes_sent)
