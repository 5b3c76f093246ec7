"""Buffers that are legal but odd, and some that are not: several layouts over one array, gaps, orders, ops that are none."""

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll.collectives import COLLECTIVES
from tests.support.cases import RANK, REDUCTIONS, SIZE, Case, everywhere, expected, same, words

pytestmark = pytest.mark.mpi

ALLREDUCE = [None, "native", *words("Allreduce")[:3]]


# ---- op


@pytest.mark.parametrize("op", [None, MPI.OP_NULL, sum, "sum", 0, np.add], ids=repr)
@pytest.mark.parametrize("method", REDUCTIONS)
def test_an_op_that_is_none(comm, method, op):
    """One sentence from every form of the call; small calls, which are MPI's own, among them."""
    for count in (3, 1 << 15):
        for form in (Case.call, Case.begin, Case.init):
            with pytest.raises(mpicoll.ArgumentError, match=f"{method}: expected an MPI.Op such as MPI.SUM"):
                form(Case(method, count, op=op), comm)
    assert comm.sent == (0, 0)
    same(Case(method).call(comm), expected(method))


def test_explaining_an_op_that_is_none(comm):
    with pytest.raises(mpicoll.ArgumentError, match="expected an MPI.Op"):
        comm.explain("allreduce", np.zeros(3), op=None)


# ---- several layouts over one array: the bytes that are touched count

ROWS = 4


@pytest.fixture
def columns():
    """The type of a column of a (ROWS, SIZE + 2) matrix of float64; the next one begins 8 bytes on."""
    vector = MPI.DOUBLE.Create_vector(ROWS, 1, SIZE + 2)
    column = vector.Create_resized(0, 8).Commit()
    vector.Free()
    yield column
    column.Free()


def part(rank):
    return np.arange(ROWS) + 10.0 * rank


def matrix_of(number):
    """What this rank contributes in column `number`, -1 elsewhere."""
    matrix = np.full((ROWS, SIZE + 2), -1.0)
    matrix[:, number] = part(RANK)
    return matrix


WHOLE = np.stack([part(rank) for rank in range(SIZE)], axis=1)


@pytest.mark.parametrize("word", [None, "native", *words("Allgather")])
def test_columns_of_one_matrix_are_gathered(comm, columns, word):
    """Column 0 goes to columns 1, 2, … of the same array: at one rank too."""
    matrix = matrix_of(0)
    comm.Allgather([matrix, (1, 0), columns], [matrix, (1, 1), columns], algorithm=word)
    same(matrix, np.column_stack([part(RANK), WHOLE, np.full(ROWS, -1.0)]))


@pytest.mark.parametrize("word", [None, "native", *words("Gatherv")])
def test_columns_of_one_matrix_with_displacements(comm, columns, word):
    matrix, places = matrix_of(1), [0, *range(2, SIZE + 1)]
    comm.Gatherv([matrix, (1, 1), columns], [matrix, ([1] * SIZE, places), columns], 0, algorithm=word)
    wanted = matrix_of(1)
    if RANK == 0:
        wanted[:, places] = WHOLE
    same(matrix, wanted)


@pytest.mark.parametrize("word", [None, "native", *words("Scatter")])
def test_columns_of_one_matrix_are_dealt_out(comm, columns, word):
    matrix = np.full((ROWS, SIZE + 2), -1.0)
    matrix[:, 1:-1] = WHOLE
    comm.Scatter([matrix, (1, 1), columns], [matrix, (1, 0), columns], 0, algorithm=word)
    same(matrix[:, 0].copy(), part(RANK))
    same(matrix[:, 1:-1].copy(), WHOLE)


@pytest.mark.parametrize("form", [Case.call, Case.begin, Case.init])
def test_layouts_that_share_bytes(comm, columns, form):
    """A row crosses the columns, others begin in one of them or run backwards: no order of copies would be right."""
    def call(send, recv):
        case = Case("Allgather")
        case.arguments, case.sent = (send, recv), None
        form(case, comm)

    matrix = matrix_of(0)
    for send in ([matrix, ROWS, MPI.DOUBLE], matrix.reshape(-1)[1::2][:ROWS], matrix[::-1, 1]):
        with pytest.raises(mpicoll.BufferError, match="overlap"):
            call(send, [matrix, (1, 1), columns])
    same(matrix, matrix_of(0))
    assert comm.sent == (0, 0)


@pytest.mark.parametrize("word", [None, "native"])
def test_one_layout_twice_means_in_place(comm, word):
    """Also where the two are written differently, and where MPI alone knows how to reduce them."""
    triple = MPI.INT32_T.Create_contiguous(3).Commit()
    add = MPI.Op.Create(lambda a, b, _: np.frombuffer(b, "i4").__iadd__(np.frombuffer(a, "i4")), True)
    for send, recv, op in (
        (lambda x: [x, 4, triple], lambda x: [x, 4, triple], add),
        (lambda x: x, lambda x: [x, 12, MPI.INT32_T], MPI.SUM),
        (lambda x: [x[:], MPI.INT32_T], lambda x: x.reshape(3, 4), MPI.SUM),
    ):
        data = np.arange(12, dtype="i4") + RANK
        comm.Allreduce(send(data), recv(data), op, algorithm=word)
        same(data, sum(np.arange(12, dtype="i4") + rank for rank in range(SIZE)))
    add.Free()
    triple.Free()


@pytest.mark.parametrize("word", [None, "native", "linear"])
@pytest.mark.parametrize("method", ["Scatter", "Scatterv", "Gather", "Gatherv", "Allgather", "Allgatherv"])
def test_one_array_for_both_buffers_of_a_single_rank(method, word):
    """MPI's IN_PLACE belongs in the receive buffer of a scatter, and in the send buffer of the others."""
    alone = mpicoll.Communicator(MPI.COMM_SELF.Dup())
    for count in (5, 1 << 15):
        data = np.arange(count, dtype="i4")
        many = [data, [count]] if method.endswith("v") else data
        send, recv = (many, data) if method.startswith("Scatter") else (data, many)
        getattr(alone, method)(send, recv, algorithm="ring" if word == "linear" and method.startswith("All") else word)
        same(data, np.arange(count, dtype="i4"))
    alone.Free()


@pytest.mark.parametrize("word", ALLREDUCE)
def test_a_fortran_array_that_is_not_aligned(comm, word):
    """Its elements go in the order of memory, as those of any array without gaps."""
    given = np.empty(2 * 500 * 8 + 1, np.uint8)[1:].view(np.int64).reshape((2, -1), order="F")
    given.reshape(-1, order="A")[:] = np.arange(1000)
    result = np.zeros(1000, np.int64)
    comm.Allreduce(given, result, algorithm=word)
    same(result, SIZE * np.arange(1000))


@pytest.mark.parametrize("word", [None, "native", *words("Alltoall")])
@pytest.mark.parametrize("code", ["d", "g"])
def test_one_array_of_spaced_elements_for_both_buffers(comm, code, word):
    """MPI may leave the padding of long doubles out, so that their bytes do not come back as they were."""
    element = MPI.Datatype.fromcode(code)
    spaced = element.Create_resized(0, 2 * element.Get_extent()[1]).Commit()
    whole = np.full(2 * SIZE, RANK, code)
    comm.Alltoall([whole, 1, spaced], [whole, 1, spaced], algorithm=word)
    spaced.Free()
    same(whole[::2], np.arange(SIZE, dtype=code))
    same(whole[1::2], np.full(SIZE, RANK, code))


@pytest.mark.parametrize("form", [Case.call, Case.begin, Case.init])
@pytest.mark.parametrize("step", [1, 2])
def test_a_large_block_behind_a_small_one_in_place(comm, form, step):
    """MPICH's own call moves the large one over itself, and ends the job."""
    counts = [5] * (SIZE - 1) + [120_000]
    x = np.ones(step * sum(counts))[::step]
    case = Case("Reduce_scatter")
    case.arguments, case.sent = (MPI.IN_PLACE, x, counts), None
    made = form(case, comm, algorithm="native")
    if form is Case.init:
        made.Start()
    if form is not Case.call:
        made.Wait()
    same(x[: counts[RANK]].copy(), np.full(counts[RANK], float(SIZE)))


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize("form", [Case.call, Case.begin, Case.init])
@pytest.mark.parametrize("step", [1, 2])
def test_gather_of_complex_long_doubles(comm, form, step):
    """MPICH's own call ends the job or has wrong data."""
    count = 1000
    x = np.arange(step * count).astype("G")[::step] + RANK
    y = np.zeros((SIZE, count), "G")
    for root in range(SIZE):
        y[...] = 0
        case = Case("Gather")
        case.arguments = (x, y if root == RANK else None, root)
        case.sent = None
        made = form(case, comm, algorithm="native")
        if form is Case.init:
            made.Start()
        if form is not Case.call:
            made.Wait()
        if root == RANK:
            same(y, np.array([x - RANK + rank for rank in range(SIZE)]))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("form", ["Ialltoallv", "Alltoallv_init", "Ialltoallw", "Alltoallw_init"])
@pytest.mark.parametrize("step", [1, 2])
def test_exchanges_in_place_of_which_blocks_are_empty(comm, form, step):
    """Open MPI's own calls that return early have wrong data on four ranks or more, or do not end."""
    draw = np.random.default_rng(7)
    for _ in range(20):
        table = np.triu(draw.choice([0, 0, 1, 300], (SIZE, SIZE)))
        table += np.triu(table, 1).T
        counts = table[RANK].tolist()
        starts = [step * sum(counts[:rank]) for rank in range(SIZE)]
        y = np.zeros(step * sum(counts))
        expected = y.copy()
        for rank, (count, start) in enumerate(zip(counts, starts)):
            y[start : start + count] = 10 * RANK + rank
            expected[start : start + count] = 10 * rank + RANK
        message = [y, counts, starts, MPI.DOUBLE]
        if "toallw" in form:
            message = [y, counts, [8 * start for start in starts], [MPI.DOUBLE] * SIZE]
        made = getattr(comm, form)(MPI.IN_PLACE, message, algorithm="native")
        if form.endswith("init"):
            made.Start()
        made.Wait()
        same(y, expected)
        if form.endswith("init"):
            made.Free()


@pytest.mark.parametrize("counts", [[3], (3,), (1, 1, 1), []])
def test_counts_that_are_no_pair(comm, counts):
    with pytest.raises(mpicoll.BufferError, match="expected .counts, displacements., got"):
        comm.Allreduce([np.zeros(3), counts, MPI.DOUBLE], np.zeros(3))


@pytest.mark.parametrize("form", ["Reduce_scatter", "Ireduce_scatter", "Reduce_scatter_init"])
@pytest.mark.parametrize("word", [None, "native", "ring"])
def test_an_empty_block_beside_the_input(comm, form, word):
    """NumPy's x[n:n] lies where x does."""
    counts = [9] + [0] * (SIZE - 1)
    x = np.arange(9.0)
    result = np.zeros(9) if RANK == 0 else x[9:]
    made = getattr(comm, form)(x, result, counts, algorithm=word)
    if form.endswith("init"):
        made.Start()
    if made is not None:
        made.Wait()
    assert RANK > 0 or (result == SIZE * np.arange(9.0)).all()


@pytest.mark.parametrize("code", ["l", "q", "L", "Q"])
def test_long_and_long_long_are_types_of_their_own(comm, code):
    """NumPy's are equal where MPI's are not; one buffer has to be packed, the other goes to MPI as it is."""
    for method in REDUCTIONS:
        case = Case(method, dtype=code)
        send, *rest = case.arguments
        case.arguments, case.sent = (np.repeat(send, 2)[::2], *rest), None
        same(case.call(comm, algorithm="native"), expected(method, dtype=code))


# ---- one buffer in the gaps of the other


@pytest.mark.parametrize("word", ALLREDUCE)
def test_interleaved_arrays(comm, word):
    for send, recv in (np.s_[1::2], np.s_[::2]), (np.s_[::2], np.s_[1::2]), (np.s_[:8], np.s_[8:]), (np.s_[::3], np.s_[1::3]):
        data, wanted = np.arange(16.0), np.arange(16.0)
        length = min(data[send].size, data[recv].size)
        wanted[recv][:length] = SIZE * wanted[send][:length]
        comm.Allreduce(data[send][:length], data[recv][:length], algorithm=word)
        same(data, wanted)


@pytest.mark.parametrize("word", [None, "native", *words("Allgatherv")])
def test_a_block_in_a_gap(comm, word):
    """The own block lies where the blocks that are received leave room."""
    data = np.full(3 * SIZE + 3, -1.0)
    gap = 3 * RANK + 2
    data[gap] = data[-2] = RANK
    displacements = [3 * rank for rank in range(SIZE)]
    for send in (data[gap : gap + 1], data[-2:-1]):
        wanted = data.copy()
        wanted[displacements] = range(SIZE)
        data[displacements] = -1
        comm.Allgatherv(send, [data, ([1] * SIZE, displacements), MPI.DOUBLE], algorithm=word)
        same(data, wanted)


@pytest.mark.parametrize("word", [None, "native", *words("Allgather")])
def test_a_strided_array_in_the_gaps_of_a_type(comm, columns, word):
    matrix = matrix_of(0)
    comm.Allgather(matrix[::-1, 0], [matrix, (1, 1), columns], algorithm=word)
    same(matrix[:, 1:-1].copy(), WHOLE[::-1])
    same(matrix[:, 0].copy(), part(RANK))


def test_strides_that_are_hard_to_tell_apart(comm):
    """NumPy's exact answer may take for ever: coprime strides in many dimensions. They share no byte, as one is odd."""
    shape, strides = (5,) * 6, tuple(2 * step for step in (1009, 1013, 1019, 1021, 1031, 1033))
    room = np.zeros(4 * sum(strides) + 2, "i1")
    one, other = (np.lib.stride_tricks.as_strided(room[start:], shape, strides) for start in (0, 1))
    one[...] = 1 + RANK
    comm.Allreduce(one, other)
    assert (other == sum(range(1, SIZE + 1))).all() and (one == 1 + RANK).all()
    with pytest.raises(mpicoll.BufferError, match="overlap"):
        comm.Allreduce(one, np.lib.stride_tricks.as_strided(room[2 * 1009:], shape, strides))


# ---- the order of elements: of memory where there are no gaps, else of the indices

GRID = np.arange(12.0).reshape(3, 4)
#: how the same elements may lie, and how they are then sent: one after the other in memory, or by rising indices
ORDERS = {
    "C": (GRID.copy, GRID.ravel()),
    "F": (lambda: np.asfortranarray(GRID), GRID.ravel(order="F")),
    "every second column": (lambda: np.repeat(GRID, 2, axis=1)[:, ::2], GRID.ravel()),
    "every second column, F": (lambda: np.repeat(np.asfortranarray(GRID), 2, axis=0)[::2], GRID.ravel()),
    "backwards": (lambda: GRID[::-1, ::-1].copy()[::-1, ::-1], GRID.ravel()),
}


@pytest.mark.parametrize("receive", ORDERS)
@pytest.mark.parametrize("send", ORDERS)
@pytest.mark.parametrize("word", ALLREDUCE)
def test_the_order_of_elements(comm, word, send, receive):
    """Each buffer by itself decides how its elements follow each other; MPI's own call does not know of shapes either."""
    (make, sent), (make_result, _) = ORDERS[send], ORDERS[receive]
    given, result = make(), make_result()
    comm.Allreduce(given, result, algorithm=word)
    same(np.ascontiguousarray(result).ravel(order="F" if receive == "F" else "C"), SIZE * sent)
    same(given, GRID)
    if {send, receive} <= {"C", "F"}:
        own = make_result()
        MPI.Intracomm.Allreduce(comm, given, own)
        same(result, own)


# ---- more elements than an int counts

HUGE = 2**31 + 11


@pytest.mark.parametrize("name", sorted(set(COLLECTIVES) - {"barrier"}))
def test_huge_calls_are_served_by_what_can(comm, name):
    """MPI's own call where it takes such counts, else a schedule, whatever tables say; on all ranks alike."""
    reduces = COLLECTIVES[name].reduces
    share = -(-HUGE // SIZE)
    # addresses alone: nothing is read or written
    vector = np.empty(share if name in ("gather", "allgather") else share * SIZE, "i1")
    said = comm.explain(name, vector)
    everywhere(said.algorithm)
    if takes_huge_counts():
        assert "takes no count" not in said.reason
        return
    assert said.algorithm != "native"
    assert "takes no count above 2147483647" in said.reason or "table, from" in said.reason
    if reduces:
        with pytest.raises(mpicoll.ArgumentError, match="takes no count above 2147483647"):
            comm.explain(name, vector, algorithm="native")
    else:
        assert comm.explain(name, vector, algorithm="native").algorithm == "native"


def takes_huge_counts():
    """Ask MPI itself, without traffic."""
    try:
        MPI.COMM_SELF.Allreduce(MPI.IN_PLACE, np.empty(HUGE, "i1"))
    except MPI.Exception:
        return False
    return True


@pytest.mark.thorough
@pytest.mark.skipif(SIZE != 2, reason="each rank takes 3 GiB")
def test_a_huge_call_has_the_right_result(comm):
    """Most of the vector is memory that only the result takes."""
    x = np.zeros(HUGE, "i1")
    edges = [0, 2**31 - 1, 2**31, HUGE - 1]
    x[edges] = np.arange(1, 5) * (RANK + 1)
    comm.Allreduce(MPI.IN_PLACE, x, algorithm="ring")
    assert x[edges].tolist() == [3, 6, 9, 12] and np.count_nonzero(x) == len(edges)


def test_as_many_bytes_of_wider_elements_are_no_huge_call(comm):
    assert "takes no count" not in comm.explain("allreduce", np.empty(HUGE // 8, "f8")).reason
