"""mpi4py's spellings of a call: whatever is recognised of an earlier one, each gets its own result."""

import gc
import mmap
from array import array

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from tests.support.cases import RANK, SIZE, same

pytestmark = pytest.mark.mpi
COUNT, PLENTY = 12, 1000
WORDS = [None, "ring"]
SUM = sum(range(SIZE))


def mapped(nbytes):
    return mmap.mmap(-1, nbytes)


#: how memory of so many float32 may be given, and how a list names its type
SPELLINGS = {
    "array": lambda x: x,
    "type": lambda x: [x, MPI.FLOAT],
    "tuple": lambda x: (x, MPI.FLOAT),
    "code": lambda x: [x, "f"],
    "count": lambda x: [x, x.size, MPI.FLOAT],
    "displacement": lambda x: [x, (2, x.size - 2), MPI.FLOAT],
    "index": lambda x: [x, np.int32(x.size), MPI.FLOAT],
    "memoryview": lambda x: memoryview(x),
    "bytes": lambda x: [memoryview(x).cast("B"), MPI.FLOAT],
    "buffer": lambda x: [MPI.buffer(x), MPI.FLOAT],
    "view": lambda x: x[1:],
}


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("sends", SPELLINGS)
def test_allreduce(comm, sends, word):
    for receives in SPELLINGS:
        check_allreduce(comm, sends, receives, word)


def check_allreduce(comm, sends, receives, word):
    """On new memory and on the same again; what is not described stays."""
    skipped = {"displacement": COUNT - 2, "view": 1}
    before, behind = (skipped.get(name, 0) for name in (sends, receives))
    length = 2 if "displacement" in (sends, receives) else COUNT
    rooms = [(np.zeros(before + length, np.float32), np.zeros(behind + length, np.float32)) for _ in range(3)]
    for repetition, room in enumerate((0, 0, 1, 2, 1)):
        x, y = rooms[room]
        x[:], y[:] = RANK + repetition, -1
        comm.Allreduce(SPELLINGS[sends](x), SPELLINGS[receives](y), algorithm=word)
        same(y[behind:], np.full(length, SUM + SIZE * repetition, np.float32))
        same(y[:behind], np.full(behind, -1, np.float32))


@pytest.mark.parametrize("word", [None, "binomial"])
@pytest.mark.parametrize("made", [bytearray, mapped, lambda n: array("b", bytes(n)), lambda n: np.zeros(n, "u1")])
def test_bcast_of_bytes(comm, made, word):
    """A buffer, a part of it, its length changed, its memory taken by another."""
    for spelled in (lambda b, n: b if n is None else [b, n, MPI.BYTE], lambda b, n: [b, n, MPI.BYTE]):
        for repetition in range(3):
            for length, count in ((24, None), (24, 8), (24, 0), (48, None), (48, 8), (8, 8)):
                buffer = made(length)
                memoryview(buffer).cast("B")[:] = bytes([RANK + repetition]) * length
                comm.Bcast(spelled(buffer, count), SIZE - 1, algorithm=word)
                count = length if count is None else count
                got = bytes(memoryview(buffer).cast("B"))
                assert got == bytes([SIZE - 1 + repetition]) * count + bytes([RANK + repetition]) * (length - count)
                del buffer


@pytest.mark.parametrize("word", [None, "binomial"])
def test_a_list_whose_items_are_replaced(comm, word):
    """The same list object says something else the next time."""
    message = [np.zeros(4), MPI.DOUBLE]
    for repetition in range(3):
        for buffer, *rest in ([np.zeros(4), MPI.DOUBLE], [np.zeros(6), MPI.DOUBLE], [np.zeros(4), 2, MPI.DOUBLE],
                              [np.zeros(4, "i4"), MPI.INT], [bytearray(32), 16, MPI.BYTE]):  # fmt: skip
            message[:] = [buffer, *rest]
            raw = np.frombuffer(buffer, "u1")
            raw[:] = RANK + repetition
            comm.Bcast(message, algorithm=word)
            sent = 16 if len(rest) == 2 else raw.size
            assert (raw[:sent] == repetition).all() and (raw[sent:] == RANK + repetition).all()


def counts_of(kind, counts):
    makers = {"list": list, "array": np.array, "i4": lambda c: np.array(c, "i4"), "stdlib": lambda c: array("i", c)}
    return makers[kind](counts)


@pytest.mark.parametrize("word", [None, "ring", "bruck"])
@pytest.mark.parametrize("kind", ["list", "array", "i4", "stdlib"])
def test_counts_that_change_in_place(comm, kind, word):
    """The contents of counts and displacements are part of the call, whatever holds them."""
    counts, displs = counts_of(kind, [1] * SIZE), counts_of(kind, [0] * SIZE)
    gathered = np.empty(4 * SIZE)
    for repetition in range(2):
        for each, gap in ((1, 0), (2, 0), (1, 1), (2, 1), (1, 0)):
            for rank in range(SIZE):
                counts[rank], displs[rank] = each, (each + gap) * rank
            gathered[:] = -1
            comm.Allgatherv(np.full(each, RANK + 1.0), [gathered, counts, displs, MPI.DOUBLE], algorithm=word)
            expected = np.full(4 * SIZE, -1.0)
            for rank in range(SIZE):
                expected[(each + gap) * rank :][:each] = rank + 1
            same(gathered, expected)


@pytest.mark.parametrize("word", [None, "linear", "binomial"])
def test_counts_of_gatherv_and_scatterv(comm, word):
    for repetition in range(2):
        for each in (1, 3, 2):
            counts, root = [each] * SIZE, SIZE - 1
            whole = np.arange(each * SIZE) + 0.5 if RANK == root else None
            mine = np.empty(each)
            comm.Scatterv([whole, counts] if RANK == root else None, mine, root, algorithm=word)
            same(mine, np.arange(each * RANK, each * (RANK + 1)) + 0.5)
            back = np.empty(each * SIZE) if RANK == root else None
            comm.Gatherv(mine, [back, counts, MPI.DOUBLE] if RANK == root else None, root, algorithm=word)
            if RANK == root:
                same(back, whole)


@pytest.mark.parametrize("word", [None, "circulant"])
@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_counts_of_reduce_scatter(comm, kind, word):
    for repetition in range(3):
        for first in (1, 3):
            counts = kind([first] + [2] * (SIZE - 1))
            whole = np.full(sum(counts), RANK + repetition)
            mine = np.empty(counts[RANK], int)
            comm.Reduce_scatter(whole, mine, counts, algorithm=word)
            same(mine, np.full(counts[RANK], SUM + SIZE * repetition))


@pytest.mark.parametrize("word", [None, "binomial"])
def test_derived_datatypes_that_are_freed_and_made_again(comm, word):
    """Handles are used again: another type under the handle of a freed one is another call."""
    for stride in (1, 2, 3, 1, 2, 3):
        datatype = MPI.DOUBLE.Create_vector(2, 1, stride).Commit()
        buffer = np.full(8, float(RANK))
        comm.Bcast([buffer, 1, datatype], algorithm=word)
        expected = np.full(8, float(RANK))
        expected[[0, stride]] = 0
        same(buffer, expected)
        datatype.Free()


@pytest.mark.parametrize("word", WORDS)
def test_ranks_spell_one_call_differently(comm, word):
    """Whoever recognises its call and whoever does not meet each other; any may be the first that is compared."""
    names = [name for name in SPELLINGS if name != "displacement"]
    for repetition in range(2 * len(names)):
        name = names[(repetition + RANK) % len(names)]
        x, y = np.full(COUNT + (name == "view"), RANK + 1, np.float32), np.zeros(COUNT, np.float32)
        comm.Allreduce(SPELLINGS[name](x), y if repetition % 3 else [y, MPI.FLOAT], algorithm=word)
        same(y, np.full(COUNT, SIZE * (SIZE + 1) // 2, np.float32))


@pytest.mark.parametrize("word", WORDS)
def test_overlap_is_found_each_time(comm, word):
    """Two buffers of a shape that was served before, now overlapping."""
    whole = np.zeros(32, np.float32)
    for spelled in (lambda x: x, lambda x: [x, MPI.FLOAT], lambda x: [x, 8, MPI.FLOAT], memoryview):
        for _ in range(3):
            comm.Allreduce(spelled(whole[:8]), spelled(whole[8:16]), algorithm=word)
            comm.Allreduce(spelled(np.zeros(8, np.float32)), spelled(np.zeros(8, np.float32)), algorithm=word)
        with pytest.raises(mpicoll.BufferError, match="overlap"):
            comm.Allreduce(spelled(whole[:8]), spelled(whole[4:12]), algorithm=word)
    for owner in (np.zeros(8, np.float32), bytearray(32)):
        view = memoryview(owner) if isinstance(owner, bytearray) else owner[:]
        for _ in range(3):
            fresh = type(owner)(owner) if isinstance(owner, bytearray) else owner.copy()
            comm.Allreduce([fresh, MPI.FLOAT], [owner, MPI.FLOAT], algorithm=word)
            comm.Allreduce([view, MPI.FLOAT], [owner, MPI.FLOAT], algorithm=word)  # the same bytes: in place
            comm.Allreduce([owner, MPI.FLOAT], [owner, MPI.FLOAT], algorithm=word)


@pytest.mark.parametrize("word", [None, "binomial"])
def test_read_only_memory_is_refused_each_time(comm, word):
    for made in (lambda: np.zeros(4), lambda: bytearray(32)):
        for repetition in range(3):
            buffer = made()
            comm.Bcast([buffer, MPI.BYTE], SIZE - 1, algorithm=word)
            if RANK != SIZE - 1:
                with pytest.raises(mpicoll.BufferError, match="read-only"):
                    comm.Bcast([memoryview(buffer).toreadonly(), MPI.BYTE], SIZE - 1, algorithm=word)


@pytest.mark.parametrize("word", ["ring", "circulant", "recursive_doubling"])
@pytest.mark.parametrize("form", ["apart", "in place", "the same"])
def test_memory_not_seen_before(comm, form, word):
    """Plans move to new memory and back, whatever lies where the old one was."""
    kept = []
    for repetition in range(12):
        for dtype in ("f8", "i8", "f4"):
            x = np.full(PLENTY, RANK + repetition, dtype)
            y = {"apart": np.empty_like(x), "in place": x, "the same": x}[form]
            comm.Allreduce(MPI.IN_PLACE if form == "in place" else x, y, algorithm=word)
            same(y, np.full(PLENTY, SUM + SIZE * repetition, dtype))
            if form == "apart":
                same(x, np.full(PLENTY, RANK + repetition, dtype))
            kept.append((x, y, y.copy()))
            if repetition % 3 == 0:
                del kept[:: 1 + repetition % 2]
    gc.collect()
    for x, y, result in kept:
        same(y, result)


@pytest.mark.parametrize("segment", [None, 512])
@pytest.mark.parametrize("word", ["ring", "circulant"])
def test_reduce_scatter_in_place_on_new_memory(comm, word, segment):
    for repetition in range(6):
        x = np.full(PLENTY * SIZE, RANK + repetition)
        comm.Reduce_scatter_block(MPI.IN_PLACE, x, algorithm=word, segment_bytes=segment)
        same(x[:PLENTY], np.full(PLENTY, SUM + SIZE * repetition))


def test_a_resized_array(comm):
    x = np.zeros(4)
    for size in (4, 4, 8, 8, 4, 4):
        x.resize(size, refcheck=False)
        x[:] = RANK
        comm.Allreduce(MPI.IN_PLACE, x)
        same(x, np.full(size, float(SUM)))
        comm.Allreduce(MPI.IN_PLACE, [x, MPI.DOUBLE])
        same(x, np.full(size, float(SUM * SIZE)))


# ---- non-blocking


@pytest.mark.parametrize("word", ["ring", "circulant", "native", None])
@pytest.mark.parametrize("spelled", [lambda x: x, lambda x: [x, MPI.DOUBLE], memoryview])
def test_several_under_way_on_memory_not_seen_before(comm, spelled, word):
    """More than there are idle plans, waited for in any order, each on memory of its own or of an earlier one."""
    kept = [(np.empty(PLENTY), np.empty(PLENTY)) for _ in range(5)]
    for repetition in range(6):
        pairs = kept if repetition % 2 else [(np.empty(PLENTY), np.empty(PLENTY)) for _ in kept]
        requests = []
        for number, (x, y) in enumerate(pairs):
            x[:] = RANK + repetition + number
            requests.append(comm.Iallreduce(spelled(x), spelled(y), algorithm=word))
        for number in np.random.default_rng(RANK + repetition).permutation(len(pairs)):
            requests[number].Wait()
            same(pairs[number][1], np.full(PLENTY, SUM + SIZE * (repetition + number), float))


@pytest.mark.parametrize("word", [None, "binomial"])
def test_small_ones_in_any_spelling(comm, word):
    strided = np.zeros(8)[::2]
    for repetition in range(4):
        for buffer in (np.zeros(4), [np.zeros(4), MPI.DOUBLE], [bytearray(32), 32, MPI.BYTE], bytearray(32), strided):
            raw = buffer[0] if isinstance(buffer, list) else buffer
            raw = raw if raw is strided else np.frombuffer(raw, float)
            raw[:] = RANK + repetition
            comm.Ibcast(buffer, SIZE - 1, algorithm=word).Wait()
            same(raw, np.full(4, SIZE - 1.0 + repetition))
        whole = np.zeros(2 * SIZE)
        comm.Iallgather(np.full(2, RANK + repetition, float), [whole, 2, MPI.DOUBLE] if repetition % 2 else whole).Wait()
        same(whole, np.repeat(np.arange(SIZE) + repetition, 2) * 1.0)


def test_a_blocking_call_between_others_of_its_shape(comm):
    """Blocking and non-blocking calls of one shape have plans of their own."""
    x, y = np.full(PLENTY, 1.0), np.full(PLENTY, 2.0)
    for _ in range(4):
        x[:], y[:] = 1, 2
        request = comm.Iallreduce(MPI.IN_PLACE, x, algorithm="ring")
        comm.Allreduce(MPI.IN_PLACE, y, algorithm="ring")
        request.Wait()
        same(x, np.full(PLENTY, 1.0 * SIZE))
        same(y, np.full(PLENTY, 2.0 * SIZE))


@pytest.mark.parametrize("word", [None, "linear"])
def test_gather_and_scatter_of_lists(comm, word):
    """The vector counts at the root, the block elsewhere; in place and apart, and roots in turn."""
    for repetition in range(3):
        for root in range(SIZE):
            for shared in (True, False):
                whole, block = np.arange(2 * SIZE) * 1.0 + repetition, np.full(2, -1.0)
                vector, mine = [whole, 2, MPI.DOUBLE], [block, 2, MPI.DOUBLE]
                at_root, in_place = RANK == root, shared and RANK == root
                comm.Scatter(vector if at_root else None, MPI.IN_PLACE if in_place else mine, root, algorithm=word)
                if not in_place:
                    same(block, np.arange(2 * RANK, 2 * RANK + 2) * 1.0 + repetition)
                whole[: 2 * root], whole[2 * root + 2 :] = -1, -1
                comm.Gather(MPI.IN_PLACE if in_place else mine, vector if at_root else None, root, algorithm=word)
                if at_root:
                    same(whole, np.arange(2 * SIZE) * 1.0 + repetition)
