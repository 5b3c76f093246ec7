"""Element types and operations: all that MPI defines, half precision, pairs, and functions of the user."""

from functools import reduce

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from tests.support.cases import (
    RANK,
    REDUCTIONS,
    SEGMENT,
    SIZE,
    WORLD,
    Case,
    expected,
    forms_of,
    roots_of,
    same,
    small_integers,
    words,
)

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

pytestmark = pytest.mark.mpi

DTYPES = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8", "g", "F", "D", "?"]
HALVES = ["float16", pytest.param("bfloat16", marks=pytest.mark.skipif(not ml_dtypes, reason="ml_dtypes is missing"))]
OPS = {"SUM": np.add, "PROD": np.multiply, "MAX": np.maximum, "MIN": np.minimum, "LAND": np.logical_and,
       "LOR": np.logical_or, "LXOR": np.logical_xor, "BAND": np.bitwise_and, "BOR": np.bitwise_or,
       "BXOR": np.bitwise_xor}  # fmt: skip
COUNT = 2 * SIZE + 1


def defined_by_mpi(op, dtype):
    """Ask MPI itself, without traffic."""
    one, other = (small_integers(rank, 1, np.dtype(dtype)) for rank in range(2))
    try:
        op.Reduce_local(one, other)
    except MPI.Exception:
        return False
    return True


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_and_op(comm, dtype, name):
    op = getattr(MPI, name)
    if not defined_by_mpi(op, dtype):
        refused(comm, dtype, op)
        return
    if MPI.get_vendor()[0] == "Intel MPI" and name in ("LAND", "LOR", "LXOR") and np.dtype(dtype).kind in "fc":
        pytest.skip("Intel MPI takes logical operations on floats, which MPI does not define; its results are no truth values")
    number = DTYPES.index(dtype) + list(OPS).index(name)
    method, root = REDUCTIONS[number % len(REDUCTIONS)], number % SIZE
    for algorithm in (None, words(method)[number % len(words(method))]):
        result = Case(method, COUNT, root, dtype=dtype, op=op).call(comm, algorithm=algorithm)
        same(result, expected(method, COUNT, root, dtype, name))


def refused(comm, dtype, op):
    """An op that MPI does not define is the same error at every length, from every algorithm, and nothing is sent."""
    for method in REDUCTIONS:
        for count, algorithm in ((0, None), (1, None), (COUNT, words(method)[0]), (COUNT, "native"), (1 << 15, None)):
            with pytest.raises(mpicoll.BufferError, match="does not define"):
                Case(method, count, dtype=dtype, op=op).call(comm, algorithm=algorithm)
    assert comm.sent == (0, 0)


def test_what_mpi_defines():
    """The question is answered as the standard has it."""
    assert defined_by_mpi(MPI.SUM, "f8") and defined_by_mpi(MPI.BAND, "i4") and defined_by_mpi(MPI.LOR, "?")
    assert not defined_by_mpi(MPI.BAND, "f8") and not defined_by_mpi(MPI.MAX, "D")


# ---- half precision: MPI has no type for it, the library reduces it itself


@pytest.mark.parametrize("name", ["SUM", "PROD", "MAX", "MIN"])
@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision(comm, dtype, name):
    wanted = reduce(OPS[name], (small_integers(rank, COUNT, np.dtype(dtype)) for rank in range(SIZE)))
    for number, word in enumerate((None, *words("Allreduce"))):
        case = Case("Allreduce", COUNT, form=("apart", "in place")[number % 2], dtype=dtype, op=getattr(MPI, name))
        same(case.call(comm, algorithm=word, segment_bytes=SEGMENT), wanted)


@pytest.mark.parametrize("method", REDUCTIONS)
@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_everywhere(comm, dtype, method):
    for word in (None, *words(method)):
        case = Case(method, COUNT, dtype=dtype)
        terms = case.collective.contributors(RANK, 0, SIZE, 1)
        wanted = sum(small_integers(rank, case.edges[-1], np.dtype(dtype)) for rank in terms)
        part = case.part(case.collective.postcondition)
        if not terms:  # rank 0 of an Exscan keeps what it has
            wanted, part = case.result.copy(), slice(None)
        same(case.call(comm, algorithm=word), None if part is None else wanted[part])


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_has_no_bits_to_combine_and_no_native(comm, dtype):
    for name in ("LAND", "LXOR", "BAND", "BXOR"):
        with pytest.raises(mpicoll.BufferError, match="does not define"):
            Case("Allreduce", COUNT, dtype=dtype, op=getattr(MPI, name)).call(comm)
    with pytest.raises(mpicoll.ArgumentError, match="native"):
        Case("Allreduce", COUNT, dtype=dtype).call(comm, algorithm="native")
    assert "MPI has no such reduction" in comm.explain("allreduce", np.zeros(4, np.dtype(dtype))).reason


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_is_moved(comm, dtype):
    whole = np.concatenate([small_integers(rank, 3, np.dtype(dtype)) for rank in range(SIZE)])
    result = np.empty_like(whole)
    for word in (None, *words("Allgather")):
        comm.Allgather(small_integers(RANK, 3, np.dtype(dtype)), result, algorithm=word)
        same(result, whole)


# ---- pairs


@pytest.mark.parametrize("op", [MPI.MAXLOC, MPI.MINLOC], ids=["MAXLOC", "MINLOC"])
@pytest.mark.parametrize(("datatype", "value"), [(MPI.DOUBLE_INT, "f8"), (MPI.SHORT_INT, "i2")], ids=["f8", "i2"])
def test_pairs_go_to_mpi(comm, op, datatype, value):
    pair = np.dtype([("value", value), ("rank", "i4")], align=True)
    mine = np.array([((RANK * 3 + element) % 5, RANK) for element in range(4)], pair)
    result, wanted = np.zeros(4, pair), np.zeros(4, pair)
    comm.Allreduce([mine, 4, datatype], [result, 4, datatype], op)
    WORLD.Allreduce([mine, 4, datatype], [wanted, 4, datatype], op)
    same(result, wanted)
    comm.Allreduce(MPI.IN_PLACE, [mine, 4, datatype], op)
    same(mine, wanted)
    said = comm.explain("allreduce", [mine, 4, datatype], op=op)
    assert said.algorithm == "native" and "no schedule reduces M" in said.reason
    with pytest.raises(mpicoll.ArgumentError, match="no schedule reduces M"):
        comm.Allreduce(MPI.IN_PLACE, [mine, 4, datatype], op, algorithm="ring")


# ---- functions of the user


def clamped_sum(a, b, _):
    lower, higher = (np.frombuffer(memory, "i8") for memory in (a, b))
    higher[:] = np.minimum(lower + higher, 5)


def matrix_product(a, b, _):
    """An element is a 2 x 2 matrix of 16-bit integers: associative, exact, and any other order has another result."""
    lower, higher = (np.frombuffer(memory, "i2").reshape(-1, 2, 2) for memory in (a, b))
    higher[:] = lower @ higher


def any_bits(rank, count, dtype):
    """What a rank contributes to a matrix product."""
    return np.random.default_rng([rank, count]).integers(0, 1 << 62, count).astype(dtype)


@pytest.fixture
def commutative():
    op = MPI.Op.Create(clamped_sum, True)
    yield op
    op.Free()


@pytest.fixture
def ordered():
    op = MPI.Op.Create(matrix_product, False)
    yield op
    op.Free()


def same_as_mpi(comm, method, word, **what):
    for root in roots_of(method):
        wanted = Case(method, COUNT, root, **what).call(WORLD)
        for form in forms_of(method)[:: 1 if root == 0 else 2]:
            same(Case(method, COUNT, root, form, **what).call(comm, algorithm=word, segment_bytes=64), wanted)


@pytest.mark.parametrize(("method", "word"), [(m, word) for m in REDUCTIONS for word in (None, *words(m))])
def test_commutative_function(comm, commutative, method, word):
    same_as_mpi(comm, method, word, op=commutative)


@pytest.mark.parametrize(("method", "word"), [(m, w) for m in REDUCTIONS for w in (None, *words(m, ordered=True))])
def test_function_that_does_not_commute(comm, ordered, method, word):
    same_as_mpi(comm, method, word, op=ordered, fill=any_bits)


@pytest.mark.parametrize("method", REDUCTIONS)
def test_unordered_algorithms_are_refused(comm, ordered, method):
    for word in sorted(set(words(method)) - set(words(method, ordered=True))):
        with pytest.raises(mpicoll.ArgumentError, match="not commutative.*these do"):
            Case(method, COUNT, op=ordered).call(comm, algorithm=word)
    assert comm.sent == (0, 0)


def test_large_calls_keep_the_order(comm, ordered):
    """What is chosen by size must be able to serve the op."""
    wanted = Case("Allreduce", 1 << 15, op=ordered, fill=any_bits).call(WORLD)
    same(Case("Allreduce", 1 << 15, op=ordered, fill=any_bits).call(comm), wanted)


def test_function_on_a_derived_type_goes_to_mpi(comm, ordered):
    matrix = MPI.INT16_T.Create_contiguous(4).Commit()
    mine, result, wanted = any_bits(RANK, COUNT, "i8"), np.zeros(COUNT, "i8"), np.zeros(COUNT, "i8")
    comm.Allreduce([mine, COUNT, matrix], [result, COUNT, matrix], ordered)
    WORLD.Allreduce([mine, COUNT, matrix], [wanted, COUNT, matrix], ordered)
    same(result, wanted)
    with pytest.raises(mpicoll.ArgumentError, match="no schedule reduces a user-defined op"):
        comm.Allreduce([mine, COUNT, matrix], [result, COUNT, matrix], ordered, algorithm="pairwise")
    matrix.Free()


@pytest.mark.parametrize("algorithm", ["native", "ring", None])
@pytest.mark.parametrize("spaced", [False, True], ids=["as it is", "packed"])
def test_two_names_of_one_type(comm, algorithm, spaced):
    """long and long long: one rank alone has both, and an error there would leave the others waiting."""
    sent = np.ones(2 * SIZE if spaced else SIZE, "l")[:: 2 if spaced else 1]
    for kind in ("l", "q" if RANK == 0 else "l"):
        received = np.zeros(SIZE, kind)
        for _ in range(2):
            comm.Allreduce(sent, received, algorithm=algorithm)
            assert (received == SIZE).all()
        comm.Iallreduce(sent, received, algorithm=algorithm).Wait()
        assert (received == SIZE).all()
        block = np.zeros(1, kind)
        comm.Reduce_scatter_block(sent, block, algorithm=algorithm)
        assert block[0] == SIZE
