"""Ways to write a buffer: counts, displacements, types, foreign containers; always against MPI's result."""

import array

import numpy as np
import pytest
from mpi4py import MPI

from tests.support.cases import RANK, SIZE, WORLD, same, words
from tests.support.fakes.arrays import OnlyDLPack

pytestmark = pytest.mark.mpi

ALLGATHERS, GATHERS, SCATTERS = ([None, *words(method)] for method in ("Allgatherv", "Gatherv", "Scatterv"))
UNEVEN = [(3 * rank + 1) % 5 for rank in range(SIZE)]  # 1, 4, 2, 0, 3
GAPS = [sum(UNEVEN[:rank]) + 2 * rank for rank in range(SIZE)]
#: the blocks in memory from the last rank's to the first's, with gaps
PERMUTED = [sum(UNEVEN[rank + 1 :]) + (SIZE - rank) for rank in range(SIZE)]
ROOM = sum(UNEVEN) + 2 * SIZE + 1


def mine(rank=RANK, dtype="f8"):
    """What a rank contributes."""
    return np.arange(UNEVEN[rank], dtype=dtype) + 10 * (rank + 1)


def specifications(buffer):
    """Every way to write uneven blocks of a buffer, with displacements and without."""
    counts, code = tuple(UNEVEN), buffer.dtype.char
    yield [buffer, UNEVEN]
    yield [buffer, UNEVEN, MPI.DOUBLE]
    yield [buffer, UNEVEN, None, MPI.DOUBLE]
    yield (buffer, UNEVEN, code)
    for displacements in (GAPS, PERMUTED):
        yield [buffer, (counts, displacements)]
        yield [buffer, UNEVEN, displacements, code]
        yield [buffer, (UNEVEN, displacements), MPI.DOUBLE]
        yield [buffer, np.array(UNEVEN), np.array(displacements), MPI.DOUBLE]


class UnevenBlocks:
    """A collective with a block per rank, against MPI's own, for all specifications of the whole and all roots."""

    method, algorithms, roots = None, (), range(SIZE)

    def arguments(self, specification, part, root):
        raise NotImplementedError

    def serve(self, comm, whole, part, root, number, **options):
        specification = list(specifications(whole))[number]
        getattr(comm, self.method)(*self.arguments(specification, part, root), **options)
        return whole, part

    def check(self, comm, number, words):
        root = self.roots[number % len(self.roots)]
        reference = self.serve(WORLD, *self.data(), root, number)
        for word in words:
            for result, wanted in zip(self.serve(comm, *self.data(), root, number, algorithm=word), reference):
                same(result, wanted)

    def test_specifications(self, comm):
        for number in range(len(list(specifications(np.zeros(ROOM))))):
            self.check(comm, number, [self.algorithms[number % len(self.algorithms)]])

    def test_every_algorithm_with_gaps(self, comm):
        self.check(comm, -1, self.algorithms)


class TestAllgatherv(UnevenBlocks):
    method, algorithms, roots = "Allgatherv", ALLGATHERS, (0,)

    def data(self):
        return np.full(ROOM, -1.0), mine()

    def arguments(self, specification, part, root):
        return part, specification


class TestGatherv(TestAllgatherv):
    method, algorithms, roots = "Gatherv", GATHERS, range(SIZE)

    def arguments(self, specification, part, root):
        return part, specification if RANK == root else None, root


class TestScatterv(UnevenBlocks):
    method, algorithms = "Scatterv", SCATTERS

    def data(self):
        return np.arange(ROOM) * 1.0, np.zeros(UNEVEN[RANK])

    def arguments(self, specification, part, root):
        return specification if RANK == root else None, part, root


@pytest.mark.parametrize("word", SCATTERS)
def test_scatterv_blocks_may_overlap(comm, word):
    result, whole = np.zeros(2), np.arange(SIZE + 1.0)
    comm.Scatterv([whole, ([2] * SIZE, list(range(SIZE)))] if RANK == 0 else None, result, algorithm=word)
    same(result, whole[RANK : RANK + 2])


@pytest.mark.parametrize("word", [None, *words("Reduce_scatter")])
def test_reduce_scatter_counts(comm, word):
    send, result, wanted = np.arange(sum(UNEVEN)) + RANK, np.zeros(UNEVEN[RANK], "i8"), np.zeros(UNEVEN[RANK], "i8")
    WORLD.Reduce_scatter(send, wanted, UNEVEN)
    for counts in (UNEVEN, tuple(UNEVEN), np.array(UNEVEN), None):
        result[:] = -1
        comm.Reduce_scatter(send, result, counts, algorithm=word)
        same(result, wanted)


# ---- containers and types


SUMMED = {
    "list with type": lambda data: [data, MPI.DOUBLE],
    "list with code": lambda data: [data, "d"],
    "count and type": lambda data: [data, data.size, MPI.DOUBLE],
    "tuple": lambda data: (data, data.size, "d"),
    "count and displacement": lambda data: [data, (data.size, 0), MPI.DOUBLE],
    "memoryview": memoryview,
    "DLPack": OnlyDLPack,
    "bytes of a memoryview": lambda data: [memoryview(data).cast("B"), MPI.DOUBLE],
}


@pytest.mark.parametrize("write", SUMMED.values(), ids=SUMMED)
@pytest.mark.parametrize("word", [None, "ring", "native"])
def test_reduced(comm, write, word):
    send, result = np.arange(11.0) + RANK, np.zeros(11)
    comm.Allreduce(write(send), write(result), algorithm=word)
    same(result, sum(np.arange(11.0) + rank for rank in range(SIZE)))
    comm.Allreduce(MPI.IN_PLACE, write(send), algorithm=word)
    same(send, result)


CONTAINERS = {
    "array": lambda values: array.array("i", values),
    "bytearray": bytearray,
    "memoryview": lambda values: memoryview(bytearray(values)),
    "DLPack": lambda values: OnlyDLPack(np.array(values)),
}


@pytest.mark.parametrize("word", [None, *words("Bcast")])
@pytest.mark.parametrize("kind", CONTAINERS)
def test_containers_are_broadcast(comm, kind, word):
    data, root = CONTAINERS[kind](list(range(9)) if RANK == SIZE - 1 else [0] * 9), SIZE - 1
    comm.Bcast(data, root, algorithm=word)
    assert list(data.array if kind == "DLPack" else data) == list(range(9))


@pytest.mark.parametrize("word", [None, "ring"])
def test_a_part_of_a_buffer(comm, word):
    """A count and a displacement leave the rest alone."""
    data = np.arange(10.0)
    comm.Allreduce(MPI.IN_PLACE, [data, (4, 3), MPI.DOUBLE], algorithm=word)
    wanted = np.arange(10.0)
    wanted[3:7] *= SIZE
    same(data, wanted)


@pytest.fixture
def committed():
    """A function that commits a datatype and frees it after the test."""
    made = []

    def commit(datatype):
        made.append(datatype.Commit())
        return datatype

    yield commit
    for datatype in made:
        datatype.Free()


@pytest.mark.parametrize("word", [None, *words("Bcast")])
def test_bcast_with_a_vector_type_on_the_root_only(comm, committed, word):
    column = committed(MPI.DOUBLE.Create_vector(6, 1, 4))
    for root in range(SIZE):
        matrix, result = np.arange(24.0).reshape(6, 4), np.zeros(6)
        comm.Bcast([matrix, 1, column] if RANK == root else result, root, algorithm=word)
        same(matrix[:, 0].copy() if RANK == root else result, np.arange(0, 24, 4.0))
        same(matrix, np.arange(24.0).reshape(6, 4))


@pytest.mark.parametrize("word", [None, *words("Bcast")])
def test_bcast_into_a_vector_type(comm, committed, word):
    """The gaps of the receiving type stay as they were."""
    column = committed(MPI.DOUBLE.Create_vector(6, 1, 4))
    matrix = np.full((6, 4), -1.0)
    data = np.arange(6.0) if RANK == 0 else None
    comm.Bcast(data if RANK == 0 else [matrix, 1, column], 0, algorithm=word)
    if RANK:
        wanted = np.full((6, 4), -1.0)
        wanted[:, 0] = np.arange(6)
        same(matrix, wanted)


@pytest.mark.parametrize("word", [None, *words("Gather")])
def test_gather_with_derived_types(comm, committed, word):
    triple, picked = MPI.INT.Create_contiguous(3), MPI.INT.Create_indexed([2, 1], [4, 0])
    committed(triple), committed(picked)
    for root in range(SIZE):
        data, result = np.arange(6, dtype="i4") + 10 * RANK, np.zeros((SIZE, 3), "i4")
        comm.Gather([data, 1, picked], [result, 1, triple] if RANK == root else None, root, algorithm=word)
        if RANK == root:
            same(result, np.array([[4, 5, 0]] * SIZE, "i4") + 10 * np.arange(SIZE, dtype="i4")[:, None])


@pytest.mark.parametrize("word", [None, *words("Allgather")])
def test_allgather_of_resized_types(comm, committed, word):
    """A column type of one element's extent: each rank's block becomes a column."""
    column = MPI.INT.Create_vector(4, 1, SIZE)
    block = committed(column.Create_resized(0, 4))
    column.Free()
    result = np.zeros((4, SIZE), "i4")
    comm.Allgather(np.arange(4, dtype="i4") + 10 * RANK, [result, 1, block], algorithm=word)
    same(result, np.arange(4, dtype="i4")[:, None] + 10 * np.arange(SIZE, dtype="i4"))


@pytest.mark.parametrize("word", [None, *words("Bcast")])
def test_bottom_with_an_absolute_address(comm, committed, word):
    data = np.arange(5.0) * (RANK == 0)
    absolute = committed(MPI.DOUBLE.Create_hindexed([5], [MPI.Get_address(data)]))
    comm.Bcast([MPI.BOTTOM, 1, absolute], 0, algorithm=word)
    same(data, np.arange(5.0))


@pytest.mark.parametrize("word", [None, "binomial"])
def test_a_type_may_be_freed_before_its_plan(comm, word):
    column = MPI.DOUBLE.Create_vector(6, 1, 4).Commit()
    matrix = np.arange(24.0).reshape(6, 4) * (RANK == 0)
    plan = comm.Bcast_init([matrix, 1, column], 0, algorithm=word)
    column.Free()
    plan.Start()
    plan.Wait()
    plan.Free()
    same(matrix[:, 0].copy(), np.arange(0, 24, 4.0))


MOVED = {
    "datetime64": np.arange("2024-01-01", "2024-01-08", dtype="M8[D]"),
    "structured": np.array([(n, n / 2, b"x") for n in range(7)], "i2,f8,S3"),
    "big-endian": np.arange(7, dtype=">i4"),
    "strings": np.array(["a", "bc", "", "d", "e", "f", "ghi"]),
    "void": np.zeros(7, "V5"),
}


@pytest.mark.parametrize("data", MOVED.values(), ids=MOVED)
@pytest.mark.parametrize("word", [None, "ring", "native"])
def test_other_types_move_as_bytes(comm, data, word):
    result = np.empty(7 * SIZE, data.dtype)
    comm.Allgather(data, result, algorithm=word)
    assert result.tobytes() == data.tobytes() * SIZE
    strided = np.empty(14, data.dtype)[::2]
    strided[:] = data
    comm.Allgather(strided, result, algorithm=word)
    assert result.tobytes() == data.tobytes() * SIZE
