"""Alltoallw: a block per rank with its own type, against MPI's own result on the same buffers."""

import gc
import json
import random
import weakref

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll.buffers import decoded
from mpicoll.select import table
from tests.support.cases import RANK, SEGMENT, SIZE, WORLD, same, words

pytestmark = pytest.mark.mpi

WORDS = words("Alltoallw")
ONES, ZEROS = [1] * SIZE, [0] * SIZE


def bounds(length, rank):
    return length * rank // SIZE, length * (rank + 1) // SIZE


def subarrays(shape, axis, kind=MPI.DOUBLE, order=MPI.ORDER_C):
    """A type for each rank: the array is cut along an axis, as mpi4py-fft cuts it."""
    made = []
    for rank in range(SIZE):
        low, high = bounds(shape[axis], rank)
        lengths, starts = list(shape), [0] * len(shape)
        lengths[axis], starts[axis] = high - low, low
        if high == low:  # no subarray may be empty
            made.append(kind.Create_contiguous(0).Commit())
        else:
            made.append(kind.Create_subarray(shape, lengths, starts, order).Commit())
    return made


def transposed(length, axis, other, dtype="d"):
    """What a transpose of a cube needs: cut along `other` before, along `axis` after it."""
    low, high = bounds(length, RANK)
    before, after = [length] * 3, [length] * 3
    before[other] = after[axis] = high - low
    kind = MPI.Datatype.fromcode(dtype)
    x = np.random.default_rng(RANK).integers(0, 100, before).astype(dtype)
    return x, np.full(after, 7, dtype), subarrays(before, axis, kind), subarrays(after, other, kind)


def free(*lists):
    for datatype in sum(lists, []):
        if not datatype.is_predefined:
            datatype.Free()


def as_mpi(comm, send, recv, **options):
    """The call in all forms writes what MPI's own writes, and nothing else."""
    result = recv[0]
    before = result.copy()
    WORLD.Alltoallw(send, recv)
    wanted = result.copy()
    for word in (None, "native", *WORDS):
        plan = comm.Alltoallw_init(send, recv, algorithm=word, **options)
        for call in (
            lambda: comm.Alltoallw(send, recv, algorithm=word, **options),
            lambda: comm.Alltoallw(send, recv, algorithm=word, **options),
            lambda: comm.Ialltoallw(send, recv, algorithm=word, **options).Wait(),
            lambda: (plan.Start(), plan.Wait()),
            lambda: (plan.Start(), plan.Wait()),
        ):
            result[...] = before
            call()
            same(result, wanted)
        plan.Free()
    return wanted


@pytest.mark.parametrize(("axis", "other"), [(1, 0), (0, 1), (2, 1), (1, 2), (2, 0), (0, 2)])
def test_transposes(comm, axis, other):
    x, y, cut, joined = transposed(7, axis, other)
    as_mpi(comm, [x, (ONES, ZEROS), cut], [y, (ONES, ZEROS), joined])
    as_mpi(comm, [x, ONES, ZEROS, cut], [y, (ONES, ZEROS), joined], segment_bytes=SEGMENT)
    free(cut, joined)


@pytest.mark.interpreters("python", "c")
@pytest.mark.parametrize("dtype", "bfdFD")
def test_large_transposes(comm, dtype):
    """Blocks that other ranks read where they were packed."""
    for axis, other in ((1, 0), (0, 1), (2, 0)):
        x, y, cut, joined = transposed(54, axis, other, dtype)
        as_mpi(comm, [x, cut], [y, joined])
        free(cut, joined)


def test_large_transposes_in_shared_arrays(comm):
    x, y, cut, joined = transposed(54, 0, 1)
    shared = comm.empty(x.shape, "d"), comm.empty(y.shape, "d")
    shared[0][...] = x
    as_mpi(comm, [shared[0], cut], [shared[1], joined])
    free(cut, joined)


def test_orders_of_arrays(comm):
    low, high = bounds(5, RANK)
    x = np.asfortranarray(np.random.default_rng(RANK).random((4, 5)))
    y = np.zeros((high - low, 4 * SIZE))
    columns = subarrays((4, 5), 1, order=MPI.ORDER_F)
    rows = [MPI.DOUBLE.Create_contiguous(4 * (high - low)).Commit() for _ in range(SIZE)]
    places = [8 * 4 * (high - low) * rank for rank in range(SIZE)]
    as_mpi(comm, [x, ONES, ZEROS, columns], [y, ONES, places, rows])
    free(columns, rows)


def test_other_types_at_each_rank(comm):
    """Also the same bytes in another type at the receiver, types of MPI's own, and a pair."""
    kinds = [MPI.INT, MPI.DOUBLE, MPI.SHORT, MPI.C_DOUBLE_COMPLEX, MPI.BYTE, MPI.DOUBLE_INT]
    sent = [kinds[(RANK + rank) % 6] for rank in range(SIZE)]
    counts = [(2 * (RANK + rank)) % 5 for rank in range(SIZE)]
    room = 16 * 6
    places = [room * (SIZE - 1 - rank) for rank in range(SIZE)]
    x = np.random.default_rng(RANK).integers(0, 100, room * SIZE).astype("u1")
    as_mpi(comm, [x, counts, places, sent], [np.zeros(room * SIZE, "u1"), counts, places, sent])


def test_irregular_types(comm):
    """Which MPI packs: of several types, and at irregular places."""
    record = MPI.Datatype.Create_struct([1, 2], [0, 8], [MPI.INT, MPI.DOUBLE]).Create_resized(0, 32).Commit()
    scattered = MPI.INT.Create_indexed([1, 2, 1], [0, 3, 7]).Commit()
    assert decoded(record).pattern is None and decoded(scattered).pattern is None
    kinds = [(record, scattered)[(RANK + rank) % 2] for rank in range(SIZE)]
    places = [100 * rank for rank in range(SIZE)]
    x = np.random.default_rng(RANK).integers(0, 100, 100 * SIZE).astype("u1")
    for _ in range(2):
        as_mpi(comm, [x, [2] * SIZE, places, kinds], [np.zeros(100 * SIZE, "u1"), [2] * SIZE, places, kinds])
    record.Free()
    scattered.Free()


def test_blocks_of_nothing(comm):
    """Types of size zero, and counts of zero, whatever their displacements."""
    nothing = MPI.DOUBLE.Create_contiguous(0).Commit()
    x, y = np.arange(2.0 * SIZE) + 100 * RANK, np.full(2 * SIZE, 7.0)
    sent = [nothing if (RANK + rank) % 2 else MPI.DOUBLE for rank in range(SIZE)]
    counts = [2 if kind is nothing or rank % 2 == RANK % 2 else 0 for rank, kind in enumerate(sent)]
    places = [16 * rank if kind is not nothing else -800 for rank, kind in enumerate(sent)]
    as_mpi(comm, [x, counts, places, sent], [y, counts, places, sent])
    as_mpi(comm, [x, [0] * SIZE, [10**6] * SIZE, [MPI.DOUBLE] * SIZE], [y, [5] * SIZE, ZEROS, [nothing] * SIZE])
    comm.Alltoallw([None, [0] * SIZE, ZEROS, [MPI.INT] * SIZE], [None, [0] * SIZE, ZEROS, [MPI.INT] * SIZE],
                   algorithm="pairwise")
    nothing.Free()


def test_negative_displacements(comm):
    """Before a view, in the array that it is a view of; and types that begin behind their place."""
    whole, result = np.arange(4.0 * SIZE) + 100 * RANK, np.zeros(4 * SIZE)
    places = [16 * (rank - SIZE) for rank in range(SIZE)]
    kinds = [MPI.DOUBLE] * SIZE
    send, recv = [whole[2 * SIZE :], [2] * SIZE, places, kinds], [result[2 * SIZE :], [2] * SIZE, places, kinds]
    wanted = np.concatenate([np.arange(2.0 * RANK, 2 * RANK + 2) + 100 * rank for rank in range(SIZE)])
    for word in ("native", *WORDS):
        result[...] = 0
        comm.Alltoallw(send, recv, algorithm=word)
        same(result[: 2 * SIZE], wanted)
        assert not result[2 * SIZE :].any()
    behind = MPI.DOUBLE.Create_hindexed([2], [16 * SIZE]).Commit()
    as_mpi(comm, [whole, ONES, places, [behind] * SIZE], [result, ONES, places, [behind] * SIZE])
    backwards = MPI.DOUBLE.Create_vector(3, 1, -1).Commit()
    ends = [8 * (3 * rank + 2) for rank in range(SIZE)]
    as_mpi(comm, [whole, ONES, ends, [backwards] * SIZE], [result, [3] * SIZE, [24 * r for r in range(SIZE)], kinds])
    free([behind, backwards])


def test_resized_types_with_gaps(comm):
    """Columns that lie side by side; the same extent smaller than what a type spans."""
    column = MPI.INT.Create_vector(3, 1, 2 * SIZE).Create_resized(0, 4).Commit()
    x = np.arange(6 * SIZE, dtype="i").reshape(3, 2 * SIZE) + 1000 * RANK
    y = np.zeros((3, 2 * SIZE), "i")
    places = [8 * rank for rank in range(SIZE)]
    as_mpi(comm, [x, [2] * SIZE, places, [column] * SIZE], [y, [2] * SIZE, places, [column] * SIZE])
    column.Free()


def test_in_place(comm):
    for length, (axis, other) in ((3, (0, 0)), (24, (1, 1)), (40, (2, 2))):
        x = np.random.default_rng(RANK).random([length * SIZE] * 2 + [length] if axis < 2 else [length, 2, length * SIZE])
        cut = subarrays(x.shape, axis)
        before = x.copy()
        WORLD.Alltoallw([before.copy(), cut], [x, cut])
        wanted = x.copy()
        for word in ("native", *WORDS):
            for send in (MPI.IN_PLACE, None, [x, ONES, ZEROS, cut]):
                x[...] = before
                comm.Alltoallw(send, [x, cut], algorithm=word)
                same(x, wanted)
                x[...] = before
                comm.Ialltoallw(send, [x, cut], algorithm=word).Wait()
                same(x, wanted)
        free(cut)


def test_bottom_and_addresses(comm):
    x, y = np.arange(2.0 * SIZE) + 100 * RANK, np.zeros(2 * SIZE)
    kinds = [MPI.DOUBLE] * SIZE
    places = [[MPI.Get_address(array) + 16 * rank for rank in range(SIZE)] for array in (x, y)]
    wanted = np.concatenate([np.arange(2.0 * RANK, 2 * RANK + 2) + 100 * rank for rank in range(SIZE)])
    # Open MPI's own refuses it, as a null pointer
    for word in WORDS if MPI.get_vendor()[0] == "Open MPI" else ("native", *WORDS):
        y[...] = 0
        comm.Alltoallw([MPI.BOTTOM, [2] * SIZE, places[0], kinds], [MPI.BOTTOM, [2] * SIZE, places[1], kinds],
                       algorithm=word)
        same(y, wanted)


def test_types_may_be_freed_during_the_call(comm):
    x, y, cut, joined = transposed(30, 1, 0)
    WORLD.Alltoallw([x, cut], [y, joined])
    wanted = y.copy()
    y[...] = 0
    request = comm.Ialltoallw([x, cut], [y, joined], algorithm="pairwise")
    plan = comm.Alltoallw_init([x, cut], [y, joined], algorithm="pairwise")
    free(cut, joined)
    request.Wait()
    same(y, wanted)
    y[...] = 0
    plan.Start()
    plan.Wait()
    plan.Free()
    same(y, wanted)


def test_types_may_be_freed_and_lists_reused_while_calls_wait_for_their_turn(comm):
    """The other ranks begin when all calls of rank 0 have begun: it parses most of them later."""
    if RANK:
        comm.recv(source=0)
    results = np.full((5, SIZE, 2), -1.0)
    send, recv = [None, None, None, None], [None, None, None, None]
    requests = []
    for number, result in enumerate(results):
        spaced = [MPI.DOUBLE.Create_resized(0, 16).Commit() for _ in range(SIZE)]
        places = np.arange(SIZE) * 16
        send[:] = np.repeat(10.0 * number + RANK, 2 * SIZE), list(ONES), places, spaced
        recv[:] = result, list(ONES), places, list(spaced)
        requests.append(comm.Ialltoallw(send, recv, algorithm="direct"))
        free(spaced)
        places[:] = 0
        recv[1][:] = [0] * SIZE
    send[0] = None
    if RANK == 0:
        for rank in range(1, SIZE):
            comm.send("go", rank)
    MPI.Request.Waitall(requests)
    same(results[:, :, 0], 10.0 * np.arange(5)[:, None] + np.arange(SIZE))
    assert (results[:, :, 1] == -1).all()


def test_handles_that_are_used_again_are_other_types(comm):
    """A freed type's handle goes to the next one: the call must not take it for the old one."""
    x, y = np.arange(4.0 * SIZE) + 100 * RANK, np.zeros(2 * SIZE)
    recv = [y, [2] * SIZE, [16 * rank for rank in range(SIZE)], [MPI.DOUBLE] * SIZE]
    handles = set()
    for stride in (1, 2, 1, 2):
        kind = MPI.DOUBLE.Create_vector(2, 1, stride).Commit()
        handles.add(kind.handle)
        for word in WORDS:
            comm.Alltoallw([x, ONES, [32 * rank for rank in range(SIZE)], [kind] * SIZE], recv, algorithm=word)
            same(y.reshape(SIZE, 2)[:, 1] - y.reshape(SIZE, 2)[:, 0], np.full(SIZE, float(stride)))
        kind.Free()


def test_random_types(comm):
    """What NumPy copies is what MPI packs."""
    for number in range(12):
        source = random.Random(number)
        made = [_random_type(source, source.randint(1, 3)) for _ in range(SIZE)]
        counts = [source.randint(0, 2) for _ in range(SIZE)]
        room = max(max(map(abs, (kind.Get_true_extent()[0], sum(kind.Get_true_extent()), kind.extent))) for kind in made)
        places = [5 * room * (rank + 1) for rank in range(SIZE)]
        x = np.random.default_rng([number, RANK]).integers(0, 255, 8 * room * (SIZE + 1)).astype("u1")
        # all ranks have the same lists, so rank r sends what rank s gets from it in the type of rank r
        mine = [made[RANK]] * SIZE, [counts[RANK]] * SIZE
        sizes = [kind.size * count for kind, count in zip(made, counts)]
        y = np.zeros(sum(sizes), "u1")
        starts = [sum(sizes[:rank]) for rank in range(SIZE)]
        recv = [y, sizes, starts, [MPI.BYTE] * SIZE]
        as_mpi(comm, [x, mine[1], [places[RANK]] * SIZE, mine[0]], recv)
        free(made)


def _random_type(source, depth):
    if not depth:
        return source.choice([MPI.BYTE, MPI.SHORT, MPI.INT, MPI.DOUBLE])
    inner = _random_type(source, depth - 1)
    which = source.randrange(5)
    if which == 0:
        made = inner.Create_contiguous(source.randint(1, 3))
    elif which == 1:
        made = inner.Create_vector(source.randint(1, 3), source.randint(1, 2), source.randint(2, 4))
    elif which == 2:
        made = inner.Create_indexed([1, source.randint(0, 2)], [0, source.randint(2, 5)])
    elif which == 3:
        made = inner.Create_subarray([3, 4], [2, 3], [1, 0], source.choice([MPI.ORDER_C, MPI.ORDER_F]))
    else:
        made = inner.Create_resized(0, inner.extent + source.choice([0, 3, 8]))
    return made.Commit()


# ---- repeated calls, and what is chosen for them


def test_a_repeated_call_finds_its_plan(comm):
    """Also where its types are new ones of the same layout; the plan keeps no array alive."""
    recv = [np.zeros(2 * SIZE), [2] * SIZE, [16 * rank for rank in range(SIZE)], [MPI.DOUBLE] * SIZE]
    x = np.arange(4.0 * SIZE) + 100 * RANK
    plans = set()
    for repetition in range(4):
        x += 1
        kind = MPI.DOUBLE.Create_vector(2, 1, 2).Commit()
        comm.Alltoallw([x, ONES, [32 * rank for rank in range(SIZE)], [kind] * SIZE], recv, algorithm="pairwise")
        kind.Free()
        block = np.array([4.0 * RANK, 4 * RANK + 2]) + repetition + 1
        same(recv[0], np.concatenate([block + 100 * rank for rank in range(SIZE)]))
        if repetition:  # after the first call all are chosen anew
            plans.add(tuple(id(plan) for entry in comm._context.cache.values() for plan in entry.idle.values()))
    assert len(plans) == 1 and len(*plans) == 1
    gone = weakref.ref(x)
    del x
    gc.collect()
    assert gone() is None


def test_plans_of_many_buffers_do_not_pile_up(comm):
    x, y, cut, joined = transposed(54, 1, 0)
    for _ in range(6):
        comm.Alltoallw([x.copy(), cut], [y.copy(), joined], algorithm="pairwise")
    (entry,) = comm._context.cache.values()
    assert sum(plan.scratch for plan in entry.idle.values()) <= max(64 << 20, 3 * x.nbytes)
    free(cut, joined)


@pytest.mark.mpi(min_size=2)
def test_ranks_choose_by_the_size_that_they_agreed_on(comm, monkeypatch):
    """After the first call, the second, the fourth: each rank knows the bytes of its own blocks alone."""
    topology = comm._context.topology
    place = {"mpi": topology.library.split()[0], "transport": "any", "ranks": "any", "nodes": "any"}
    rules = [{"from": "0", "algorithm": "native"}, {"from": "4K", "algorithm": "pairwise"}]
    entry = {**place, "mpi": topology.library, "collective": "alltoall", "typed": True, "rules": rules}
    shipped = table.parse(json.dumps({"schema": 1, "entries": [entry]}), "a table")
    monkeypatch.setattr(table, "shipped", lambda: shipped)

    def messages(count):
        """What a call of so many elements from rank 0 to each sends; others send one."""
        before = comm.sent[0]
        sent = [count if RANK == 0 else 1] * SIZE
        received = [count if rank == 0 else 1 for rank in range(SIZE)]
        room = [8 * count * rank for rank in range(SIZE)]
        y = np.zeros(count * SIZE)
        kinds = [MPI.DOUBLE] * SIZE
        comm.Alltoallw([np.arange(1.0 * count * SIZE), sent, room, kinds], [y, received, room, kinds])
        assert [y[at // 8] for at in room] == [count * RANK] * SIZE
        return comm.sent[0] - before

    assert [messages(1000) for _ in range(3)] == [0, SIZE - 1, SIZE - 1]
    assert messages(1) == SIZE - 1  # the fourth call; from now on they are small
    assert messages(1) == 0
    assert [messages(1000) for _ in range(4)] == [0, 0, 0, SIZE - 1]
    places, kinds = [8 * rank for rank in range(SIZE)], [MPI.DOUBLE] * SIZE
    plan = comm.Alltoallw_init([np.zeros(SIZE), kinds], [np.zeros(SIZE), ONES, places, kinds])
    assert not hasattr(plan, "program")  # of a small call
    plan.Free()


@pytest.mark.mpi(min_size=2)
def test_the_default_is_mpis_own_call_but_with_mpich_inside_a_node(comm):
    """Open MPI's own call takes less CPU time than ours (benchmarks.run.transposes)."""
    x, y, cut, joined = transposed(64 * SIZE, 1, 0)
    for _ in range(2):  # after the first call ranks know the size
        comm.Alltoallw([x, cut], [y, joined])
    topology = comm._context.topology
    has_gain = topology.library.startswith("MPICH") and topology.node_count == 1
    said = comm.explain("Alltoallw", [x, cut], [y, joined])
    assert said.algorithm == ("direct" if has_gain else "native"), topology
    free(cut, joined)


# ---- mistakes: an error before anything is sent


def overlapping(kinds, counts=None, places=None):
    def call(comm):
        made = kinds()
        try:
            room = np.zeros(100 * SIZE, "u1")
            send = [room.copy(), ONES, ZEROS, made]
            comm.Alltoallw(send, [room, counts or ONES, places or ZEROS, made], algorithm="pairwise")
        finally:
            free(made)

    return call


def wrong(send=None, **items):
    """A call with some items of the receive buffer replaced."""

    def call(comm):
        recv = {"buffer": np.zeros(SIZE), "counts": ONES, "places": [8 * rank for rank in range(SIZE)],
                "types": [MPI.DOUBLE] * SIZE} | items
        comm.Alltoallw(send or list((recv | {"buffer": np.zeros(SIZE)}).values()), list(recv.values()), algorithm="pairwise")

    return call


BAD = {
    "within a type": (overlapping(lambda: [MPI.INT.Create_hvector(2, 1, 2).Commit() for _ in range(SIZE)],
                                  places=[16 * rank for rank in range(SIZE)]), "receive buffer overlap"),
    "by a small extent": (overlapping(lambda: [MPI.INT.Create_resized(0, 2).Commit() for _ in range(SIZE)],
                                      counts=[2] * SIZE), "overlap|for itself"),
    "within an irregular type": (
        overlapping(lambda: [MPI.INT.Create_indexed([2, 1, 1], [0, 1, 9]).Commit() for _ in range(SIZE)],
                    places=[48 * rank for rank in range(SIZE)]), "receive buffer overlap"),
    "too few types": (wrong(types=[MPI.DOUBLE] * (SIZE + 1)), f"expected a list of {SIZE} datatypes"),
    "one type": (wrong(types=MPI.DOUBLE), f"expected a list of {SIZE} datatypes"),
    "codes": (wrong(types=["d"] * SIZE), "expected an MPI datatype for each block"),
    "no type": (wrong(types=[MPI.DATATYPE_NULL] * SIZE), "expected an MPI datatype for each block"),
    "too few counts": (wrong(counts=[1] * (SIZE + 1)), f"expected {SIZE} counts, one per rank"),
    "one count": (wrong(counts=1), f"expected {SIZE} counts"),
    "negative counts": (wrong(counts=[-1] * SIZE), "must not be negative"),
    "too few displacements": (wrong(places=[0] * (SIZE + 1)), f"expected {SIZE} displacements in bytes"),
    "too small": (wrong(buffer=np.zeros(SIZE, "f")), f"block {SIZE // 2} reaches bytes .* of a buffer of {4 * SIZE} bytes"),
    "before it": (wrong(places=[8 * rank - 8 for rank in range(SIZE)]), "block 0 reaches bytes -8 to 0"),
    "no buffer": (wrong(buffer=None), "the buffer is None"),
    "read-only": (wrong(buffer=bytes(8 * SIZE)), "read-only"),
    "objects": (wrong(buffer=np.empty(SIZE, object)), "Python objects"),
    "an array alone": (lambda c: c.Alltoallw(np.zeros(SIZE), np.zeros(SIZE)), "expected a list of 2 to 4 items"),
    "three items": (lambda c: c.Alltoallw([np.zeros(SIZE), ONES, [MPI.INT] * SIZE], [np.zeros(SIZE), ONES, [MPI.INT] * SIZE]),
                    "expected|items"),
    "its own block": (wrong(send=[np.zeros(2 * SIZE), [2] * SIZE, ZEROS, [MPI.DOUBLE] * SIZE]),
                      f"rank {RANK} has a block for itself of 16 bytes, the receive buffer room for 8"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BAD.values(), ids=BAD)
def test_bad_calls(comm, call, message):
    with pytest.raises(mpicoll.BufferError, match=message):
        call(comm)
    assert comm.sent == (0, 0)
    x, y = np.arange(1.0 * SIZE), np.zeros(SIZE)
    comm.Alltoallw([x, ONES, [8 * r for r in range(SIZE)], [MPI.DOUBLE] * SIZE],
                   [y, ONES, [8 * r for r in range(SIZE)], [MPI.DOUBLE] * SIZE], algorithm="pairwise")
    same(y, np.full(SIZE, float(RANK)))


@pytest.mark.mpi(min_size=2)
def test_receive_types_of_several_ranks_overlap(comm):
    x, y = np.zeros((4, 2 * SIZE)), np.zeros((4, 2 * SIZE))
    column = MPI.DOUBLE.Create_vector(4, 1, 2 * SIZE).Commit()
    apart = [8 * 2 * rank for rank in range(SIZE)]
    comm.Alltoallw([x, ONES, apart, [column] * SIZE], [y, ONES, apart, [column] * SIZE], algorithm="pairwise")
    together = [8 * 2 * (rank // 2 * 2) for rank in range(SIZE)]
    for kind in (column, MPI.DOUBLE):
        with pytest.raises(mpicoll.BufferError, match="types and displacements of the receive buffer overlap"):
            comm.Alltoallw([x, ONES, apart, [kind] * SIZE], [y, ONES, together, [kind] * SIZE], algorithm="pairwise")
    comm.Alltoallw([x, ONES, together, [column] * SIZE], [y, ONES, apart, [column] * SIZE], algorithm="pairwise")
    column.Free()


@pytest.mark.mpi(min_size=2)
def test_all_learn_of_blocks_that_have_other_sizes_than_expected():
    comm = mpicoll.Communicator(WORLD.Dup())
    counts = [5] * SIZE
    received = [5 - (rank == 0 and RANK == SIZE - 1) for rank in range(SIZE)]
    places, kinds = [40 * rank for rank in range(SIZE)], [MPI.DOUBLE] * SIZE
    with pytest.raises(mpicoll.CollectiveMismatch) as error:
        comm.Alltoallw([np.zeros(5 * SIZE), counts, places, kinds], [np.zeros(5 * SIZE), received, places, kinds],
                       algorithm="pairwise")
    text = str(error.value)
    assert WORLD.allgather(text) == [text] * SIZE
    assert f"rank {SIZE - 1}: it expects 32 bytes of rank 0, which has 40 for it" in text
    comm.Free()


def test_explain(comm):
    x, y, cut, joined = transposed(6, 1, 0)
    said = comm.explain("Alltoallw", [x, cut], [y, joined], algorithm="pairwise")
    own = decoded(cut[RANK]).size
    assert (said.algorithm, said.rounds, said.bytes_sent) == ("pairwise", SIZE - 1, x.nbytes - own)
    assert comm.explain("Alltoallw", MPI.IN_PLACE, [y, joined]).algorithm in mpicoll.list_algorithms("alltoall")
    with pytest.raises(mpicoll.ArgumentError, match="blocks may have any sizes"):
        comm.Alltoallw([x, cut], [y, joined], algorithm="bruck")
    free(cut, joined)
