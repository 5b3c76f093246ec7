"""Bad input: one clear error on every rank, before anything is sent; the next good call works."""

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll import ArgumentError, BufferError
from tests.support.cases import METHODS, RANK, SIZE, Case, expected, same, words

pytestmark = pytest.mark.mpi


def read_only(count):
    array = np.zeros(count)
    array.flags.writeable = False
    return array


def ten():
    return np.zeros(10)


def blocks(count=1):
    return np.zeros(count * SIZE)


def overlapping(length=15):
    whole = np.zeros(length)
    return whole[:10], whole[5:15]


NOT_COMMUTATIVE = MPI.Op.Create(lambda a, b, _: None, False)
IN = MPI.IN_PLACE
PAIR = MPI.DOUBLE.Create_contiguous(2).Commit()

#: what is done, and words the message of its BufferError must have
BUFFERS = {
    "types": (lambda c: c.Allreduce(ten(), np.zeros(10, "f4")), "types differ.*float64.*float32"),
    "types of one size": (lambda c: c.Allreduce(ten(), np.zeros(10, "i8")), "types differ"),
    "types, scheduled": (lambda c: c.Allreduce(ten(), np.zeros(10, "i8"), algorithm="ring"), "types differ"),
    "receive size": (lambda c: c.Allreduce(ten(), np.zeros(9)), "72 bytes, expected 80"),
    "receive size, too long": (lambda c: c.Allreduce(ten(), np.zeros(11)), "88 bytes, expected 80"),
    "block size of Allgather": (lambda c: c.Allgather(ten(), blocks(9)), "80 bytes, expected 72"),
    "no equal blocks": (lambda c: c.Allgather(ten(), np.zeros(SIZE + 1)), "equal blocks|one block"),
    "Reduce_scatter_block size": (lambda c: c.Reduce_scatter_block(blocks(2), np.zeros(3)), "expected 16"),
    "too many counts": (lambda c: c.Reduce_scatter(blocks(2), np.zeros(2), [2] * (SIZE + 1)), "receive counts"),
    "another total": (lambda c: c.Reduce_scatter(blocks(2), np.zeros(2), [3] * SIZE), "receive counts"),
    "negative counts": (lambda c: c.Reduce_scatter(blocks(2), np.zeros(2), [-1] * SIZE), "receive counts"),
    "read-only output": (lambda c: c.Allreduce(ten(), read_only(10)), "read-only"),
    "read-only in place": (lambda c: c.Allreduce(IN, read_only(10)), "read-only"),
    "read-only bytes": (lambda c: c.Allgather(np.zeros(1, "u1"), bytes(SIZE)), "read-only"),
    "objects": (lambda c: c.Bcast(np.array([None])), "lower-case"),
    "no buffer": (lambda c: c.Bcast(3), "expected an array"),
    "None": (lambda c: c.Bcast(None), "None without a datatype"),
    "None, twice": (lambda c: c.Alltoall(None, None), "None without a datatype"),
    "None, begun": (lambda c: c.Ibcast(None), "None without a datatype"),
    "None of a plan": (lambda c: c.Bcast_init(None), "None without a datatype"),
    "None in a list": (lambda c: c.Bcast([None, 0]), "None without a datatype"),
    "BOTTOM": (lambda c: c.Bcast(MPI.BOTTOM), "BOTTOM without a datatype"),
    "BOTTOM and types": (lambda c: c.Alltoallw(IN, [MPI.BOTTOM, [MPI.INT] * SIZE]), "BOTTOM"),
    "elements of None": (lambda c: c.Bcast([None, 1, MPI.DOUBLE]), "count is not 0"),
    "derived elements of None": (lambda c: c.Bcast([None, 1, PAIR]), "count is not 0"),
    "derived elements of None to send": (lambda c: c.Allgather([None, 1, PAIR], blocks(2)), "count is not 0"),
    "no elements beyond": (lambda c: c.Bcast([ten(), 0, 11, MPI.DOUBLE]), "displacement 11 reaches byte 88"),
    "no list": (lambda c: c.Bcast([]), "2 to 4 items"),
    "type code": (lambda c: c.Allreduce(IN, [ten(), "nonsense"]), "type code"),
    "displacements as a type": (lambda c: c.Allgatherv(ten(), [blocks(), [1] * SIZE, [0] * SIZE]), "type code"),
    "count beyond the buffer": (lambda c: c.Bcast([ten(), 11, MPI.DOUBLE]), "of a buffer of 80 bytes"),
    "negative count": (lambda c: c.Bcast([ten(), -1, MPI.DOUBLE]), "negative"),
    "displacement beyond": (lambda c: c.Bcast([ten(), (9, 2), MPI.DOUBLE]), "of a buffer of 80 bytes"),
    "v counts beyond": (lambda c: c.Allgatherv(ten(), [blocks(9), [10] * SIZE]), "of a buffer of"),
    "v number of counts": (lambda c: c.Allgatherv(ten(), [blocks(10), [10] * (SIZE + 1)]), "one per rank"),
    "v displacements": (lambda c: c.Allgatherv(ten(), [blocks(10), ([10] * SIZE, [])]), "displacements, one per rank"),
    "v negative counts": (lambda c: c.Allgatherv(ten(), [blocks(10), [-10] * SIZE]), "negative"),
    "v negative place": (lambda c: c.Allgatherv(ten(), [blocks(10), ([10] * SIZE, [-1] * SIZE)]), "reach bytes -"),
    "v own block": (lambda c: c.Allgatherv(np.zeros(9), [blocks(10), [10] * SIZE]), "72 bytes, expected 80"),
    "BAND on float": (lambda c: c.Allreduce(IN, ten(), MPI.BAND), "BAND on float64"),
    "MAX on complex": (lambda c: c.Allreduce(IN, np.zeros(3, "D"), MPI.MAX), "MAX on complex128"),
    "MAX, scheduled": (lambda c: c.Allreduce(IN, np.zeros(3, "D"), MPI.MAX, algorithm="ring"), "MAX on complex128"),
    "SUM of dates": (lambda c: c.Allreduce(IN, np.zeros(3, "M8[s]")), "SUM on datetime64"),
    "SUM of a copy": (lambda c: c.Allreduce(IN, [ten(), MPI.DOUBLE.Dup()]), "SUM on (a derived datatype|Dup MPI_DOUBLE)"),
    "REPLACE": (lambda c: c.Allreduce(IN, ten(), MPI.REPLACE), "REPLACE"),
    "SUM of records": (lambda c: c.Allreduce(IN, np.zeros(3, "i4,f8")), "SUM on"),
    "partly the same memory": (lambda c: c.Allreduce(*overlapping()), "overlap"),
    "partly the same, scheduled": (lambda c: c.Allreduce(*overlapping(), algorithm="ring"), "overlap"),
    "strides of the same memory": (lambda c: c.Allreduce((whole := ten())[::2], whole[:5]), "overlap"),
    "gaps with displacements": (lambda c: c.Bcast([ten()[::2], (2, 1), MPI.DOUBLE]), "non-contiguous"),
}
#: the same, where it is an ArgumentError
ARGUMENTS = {
    "unknown algorithm": (lambda c: c.Allreduce(IN, ten(), algorithm="rung"), "rung.*recursive_doubling.*native"),
    "algorithm of another collective": (lambda c: c.Bcast(ten(), algorithm="ring"), "ring.*binomial"),
    "unordered algorithm": (lambda c: c.Allreduce(IN, ten(), NOT_COMMUTATIVE, algorithm="ring"), "rank order"),
    "no info": (lambda c: c.Allreduce_init(IN, ten(), MPI.SUM, None), "an MPI.Info.*got None"),
    "a word as info": (lambda c: c.Allreduce_init(IN, ten(), info="hint", algorithm="ring"), "an MPI.Info.*'hint'"),
    **{f"segment_bytes={bad!r}": (lambda c, bad=bad: c.Allreduce(IN, np.zeros(3), segment_bytes=bad),
       "expected a number of bytes, or 0") for bad in ("64K", 1.5, -1)},
    "nothing to explain": (lambda c: c.explain(None, ten()), "unknown collective None"),
    "root": (lambda c: c.Bcast(ten(), SIZE), f"root {SIZE} is out of range"),
    **{f"no root: {name}": (call, "expected a rank as root, got None") for name, call in {
        "Bcast": lambda c: c.Bcast(ten(), None, algorithm="linear"),
        "Reduce": lambda c: c.Reduce(ten(), ten(), MPI.SUM, None),
        "Gather": lambda c: c.Gather(ten(), blocks(10), None),
        "Scatterv": lambda c: c.Scatterv(blocks(10), ten(), None),
        "Ibcast": lambda c: c.Ibcast(ten(), None),
        "Bcast_init": lambda c: c.Bcast_init(ten(), None),
    }.items()},
    "negative root": (lambda c: c.Reduce(ten(), ten(), root=-1), "root -1 is out of range"),
    "in place, but not the root": (lambda c: c.Gather(IN, blocks(), root=RANK + 1), "for the root|out of range"),
}
#: the same, where it is a TypeError, as mpi4py's
TYPES = {
    "fractions of elements": lambda c: c.Bcast([ten(), 2.5, MPI.DOUBLE], algorithm="binomial"),
    "v counts that are floats": lambda c: c.Allgatherv(ten(), [blocks(10), np.full(SIZE, 10.0)], algorithm="ring"),
    "v displacements that are floats": lambda c: c.Allgatherv(
        ten(), [blocks(10), ([10] * SIZE, np.arange(SIZE) * 10.0)], algorithm="ring"
    ),
    "receive counts that are floats": lambda c: c.Reduce_scatter(blocks(10), ten(), [10.0] * SIZE, algorithm="ring"),
}
BAD = {name: (call, BufferError, words) for name, (call, words) in BUFFERS.items()}
BAD |= {name: (call, TypeError, "integer") for name, call in TYPES.items()}
BAD |= {name: (call, ArgumentError, words) for name, (call, words) in ARGUMENTS.items()}


def still_works(comm):
    assert comm.sent == (0, 0)
    same(Case("Allreduce").call(comm, algorithm="ring"), expected("Allreduce"))


@pytest.mark.parametrize(("call", "error", "message"), BAD.values(), ids=BAD)
def test_bad_call(comm, call, error, message):
    with pytest.raises(error, match=f"(?s){message}"):
        call(comm)
    still_works(comm)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("word", [None, "native", *words("Allgatherv")])
def test_blocks_that_are_received_must_not_overlap(comm, word):
    with pytest.raises(BufferError, match="overlap"):
        comm.Allgatherv(np.zeros(2), [np.zeros(2 * SIZE), ([2] * SIZE, list(range(SIZE)))], algorithm=word)
    still_works(comm)


@pytest.mark.parametrize("method", METHODS)
def test_the_persistent_form_checks_alike(comm, method):
    with pytest.raises(ArgumentError, match="choose from"):
        Case(method).init(comm, algorithm="rung")
    with pytest.raises(ArgumentError, match="choose from"):
        Case(method).call(comm, algorithm="rung")
    still_works(comm)


@pytest.mark.parametrize("method", METHODS)
def test_freed_communicator(method):
    comm = mpicoll.Communicator(MPI.COMM_SELF.Dup())
    comm.Free()
    for options in ({}, {"algorithm": words(method)[0]}):
        with pytest.raises(ArgumentError, match=f"{method} on a communicator that was freed"):
            Case(method).call(comm, **options)


def test_errors_are_of_the_usual_kinds():
    assert issubclass(ArgumentError, ValueError) and issubclass(ArgumentError, mpicoll.MpicollError)
    assert issubclass(BufferError, (TypeError, ValueError)) and issubclass(BufferError, mpicoll.MpicollError)


def test_explain_raises_what_the_call_would(comm):
    for name in ("unknown algorithm", "types", "BAND on float"):
        error, message = BAD[name][1:]
        arguments = {"unknown algorithm": ((ten(),), {"algorithm": "rung"}), "types": ((ten(), np.zeros(10, "f4")), {}),
                     "BAND on float": ((ten(),), {"op": MPI.BAND})}[name]  # fmt: skip
        with pytest.raises(error, match=message):
            comm.explain("allreduce", *arguments[0], **arguments[1])
    with pytest.raises(ArgumentError, match="unknown collective"):
        comm.explain("sum", ten())
