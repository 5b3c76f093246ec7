"""What only Alltoall and Alltoallv have: blocks that differ between ranks, holes, both ways of blocks that do not fit."""

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from tests.support.cases import PRIME, RANK, SEGMENT, SIZE, WORLD, Case, expected, same, words

pytestmark = pytest.mark.mpi

DTYPES = "bhilqBHILQfdFDg?"
WORDS = ["native", *words("Alltoallv")]


def counts(rank, shape):
    """Elements that a rank has for each rank."""
    return {
        "all different": [(3 * rank + 5 * other) % 7 + other for other in range(SIZE)],
        "some are nothing": [PRIME * (rank < other) for other in range(SIZE)],
        "one rank has all": [PRIME * (rank == SIZE - 1)] * SIZE,
        "one rank gets all": [PRIME * (other == 0) for other in range(SIZE)],
        "nothing": [0] * SIZE,
        "long": [PRIME + rank - other for other in range(SIZE)],
    }[shape]


SHAPES = ("all different", "some are nothing", "one rank has all", "one rank gets all", "nothing", "long")


def dealt(shape):
    """What this rank sends to each, and gets from each."""
    return counts(RANK, shape), [counts(rank, shape)[RANK] for rank in range(SIZE)]


def scattered(blocks):
    """Displacements of such blocks, the last one first, and a hole of two elements before each; and the room they take."""
    starts, room = [], 0
    for count in reversed(blocks):
        starts.append(room + 2)
        room += count + 2
    return starts[::-1], room


@pytest.mark.parametrize("word", WORDS)
def test_blocks_of_any_sizes(comm, word):
    for shape in SHAPES:
        sent, received = dealt(shape)
        x, y, wanted = np.arange(sum(sent)) + 10**6 * RANK, np.empty(sum(received), int), np.empty(sum(received), int)
        WORLD.Alltoallv([x, sent], [wanted, received])
        for pieces in (None, SEGMENT):
            options = {"algorithm": word, "segment_bytes": pieces}
            plan = comm.Alltoallv_init([x, sent], [y, received], **options)
            for call in (
                lambda: comm.Alltoallv([x, sent], [y, received], **options),
                lambda: comm.Ialltoallv([x, sent], [y, received], **options).Wait(),
                lambda: (plan.Start(), plan.Wait()),
                lambda: (plan.Start(), plan.Wait()),
            ):
                y[...] = 7
                call()
                same(y, wanted)
            plan.Free()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("word", WORDS)
def test_displacements_and_types(comm, word, dtype):
    """Between the blocks nothing is written."""
    kind = MPI.Datatype.fromcode(dtype)
    for shape in SHAPES[:3]:
        sent, received = dealt(shape)
        (there, room), (here, space) = scattered(sent), scattered(received)
        x, y = (np.arange(room) % 2 if dtype == "?" else np.arange(room) % 100 + RANK).astype(dtype), np.ones(space, dtype)
        wanted = y.copy()
        WORLD.Alltoallv([x, sent, there, kind], [wanted, received, here, kind])
        comm.Alltoallv([x, (sent, there)], [y, received, here, kind], algorithm=word)
        same(y, wanted)


@pytest.mark.parametrize("word", ["native", *words("Alltoall")])
def test_derived_types(comm, word):
    """A matrix with a column for each rank; those that come are rows."""
    column = MPI.DOUBLE.Create_vector(PRIME, 1, SIZE).Create_resized(0, 8).Commit()
    x = np.arange(PRIME * SIZE, dtype="d").reshape(PRIME, SIZE) + 10**6 * RANK
    y, wanted = np.zeros((SIZE, PRIME)), np.zeros((SIZE, PRIME))
    WORLD.Alltoall([x, 1, column], wanted)
    comm.Alltoall([x, 1, column], y, algorithm=word)
    same(y, wanted)
    column.Free()


@pytest.mark.parametrize("dtype", DTYPES)
def test_types(comm, dtype):
    for word in ("native", *words("Alltoall")):
        same(Case("Alltoall", 5, dtype=dtype).call(comm, algorithm=word), expected("Alltoall", 5, dtype=dtype))


@pytest.mark.parametrize("word", ["native", *words("Alltoall")])
def test_a_repeated_call_finds_its_plan_on_any_memory(comm, word):
    for repetition in range(4):
        x, y = np.arange(PRIME * SIZE) + 10**6 * RANK + repetition, np.zeros(PRIME * SIZE, int)
        comm.Alltoall(x, y, algorithm=word)
        comm.Alltoall(MPI.IN_PLACE, x, algorithm=word)
        wanted = [np.arange(PRIME * RANK, PRIME * (RANK + 1)) + 10**6 * rank + repetition for rank in range(SIZE)]
        same(y, np.concatenate(wanted))
        same(x, y)


def test_alltoallv_is_mpis_own_unless_the_environment_names_another(comm):
    before = comm.sent
    comm.Alltoallv([np.zeros(SIZE), [1] * SIZE], [np.zeros(SIZE), [1] * SIZE])
    assert comm.sent == before


def test_bruck_moves_blocks_of_one_size(comm):
    message = "blocks may have any sizes, and bruck moves blocks of one size"
    with pytest.raises(mpicoll.ArgumentError, match=message):
        comm.Alltoallv([np.zeros(SIZE), [1] * SIZE], [np.zeros(SIZE), [1] * SIZE], algorithm="bruck")


BAD = {
    "blocks of other sizes": (lambda c: c.Alltoall(np.zeros(2 * SIZE), np.zeros(SIZE)), "blocks of 16 bytes, .* room for 8"),
    "no equal blocks": (lambda c: c.Alltoall(np.zeros(SIZE + 1), np.zeros(SIZE + 1)), "cannot be cut into . equal blocks"),
    "its own block": (lambda c: c.Alltoallv([np.zeros(2 * SIZE), [2] * SIZE], [np.zeros(SIZE), [1] * SIZE]),
                      f"rank {RANK} has a block for itself of 16 bytes, the receive buffer room for 8"),
    "too few counts": (lambda c: c.Alltoallv([np.zeros(SIZE), [1] * (SIZE + 1)], np.zeros(SIZE)), f"expected {SIZE} counts"),
    "read-only": (lambda c: c.Alltoall(np.zeros(SIZE), bytes(8 * SIZE)), "read-only"),
}


@pytest.mark.parametrize(("call", "message"), BAD.values(), ids=BAD)
def test_bad_calls(comm, call, message):
    if SIZE == 1 and "equal" in message:
        pytest.skip("any vector is one block")
    with pytest.raises(mpicoll.BufferError, match=message):
        call(comm)
    same(Case("Alltoall").call(comm, algorithm="pairwise"), expected("Alltoall"))


@pytest.mark.mpi(min_size=3)
def test_one_array_for_both_has_the_same_counts_for_both(comm):
    x, sent, received = np.zeros(3 * SIZE), [3] * SIZE, [3] * SIZE
    received[RANK - 1], received[RANK - 2] = 2, 4
    with pytest.raises(mpicoll.BufferError, match="one array for both, but other counts"):
        comm.Alltoallv([x, sent], [x, received])


@pytest.mark.mpi(min_size=2)
def test_all_learn_of_blocks_that_have_other_sizes_than_expected():
    comm = mpicoll.Communicator(WORLD.Dup())
    sent, received = [5] * SIZE, [5] * SIZE
    received[0] -= RANK == SIZE - 1
    with pytest.raises(mpicoll.CollectiveMismatch) as error:
        comm.Alltoallv([np.zeros(sum(sent)), sent], [np.zeros(sum(received)), received], algorithm="pairwise")
    text = str(error.value)
    assert WORLD.allgather(text) == [text] * SIZE
    assert f"rank {SIZE - 1}: it expects 32 bytes of rank 0, which has 40 for it" in text
    comm.Free()
