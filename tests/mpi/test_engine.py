"""The compiled interpreter beside Python's: the same bits and messages, for each algorithm and each form of a call.

Messages go through shared memory, and through MPI.
"""

import mmap
import tempfile
import time

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll import engine
from mpicoll.buffers.ops import op_name
from mpicoll.execute import Context
from tests.support.cases import (
    EVERY,
    PRIME,
    RANK,
    SEGMENT,
    SIZE,
    WORLD,
    Case,
    expected,
    mixed_magnitudes,
    same,
    small_integers,
    words,
)

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.interpreters(),
    pytest.mark.skipif(engine.status().extension is None, reason=f"no compiled interpreter: {engine.status().reason}"),
]
KINDS = [("f4", mixed_magnitudes), ("f8", mixed_magnitudes), ("i8", small_integers)]


@pytest.fixture(params=["on", "off"])
def interpreters(monkeypatch, request):
    """Communicators whose programs run in Python, in C, and in C on the first rank alone."""
    monkeypatch.setenv("MPICOLL_SHARED_MEMORY", request.param)
    comms = {word: mpicoll.Communicator(WORLD.Dup()) for word in ("python", "c", "either")}

    def choose(word):
        in_c = word == "c" or (word == "either" and RANK == 0)
        monkeypatch.setenv("MPICOLL_ENGINE", "c" if in_c else "python")
        return comms[word]

    yield choose
    for comm in comms.values():
        comm.Free()


@pytest.mark.parametrize(("method", "word"), EVERY)
def test_each_algorithm(interpreters, method, word):
    for number, count in enumerate((0, 1, SIZE + 1, PRIME)):
        dtype, fill = KINDS[number % len(KINDS)]
        pieces = SEGMENT if number % 2 else None
        found = []
        for name in ("python", "c", "either"):
            comm = interpreters(name)
            before = comm.sent
            result = Case(method, count, SIZE - 1, dtype=dtype, fill=fill).call(comm, algorithm=word, segment_bytes=pieces)
            found.append((None if result is None else result.tobytes(), np.subtract(comm.sent, before).tolist()))
        assert found[0] == found[1] == found[2]


def hostile(rank, count, dtype):
    """Denormals, zeros of both signs, the largest numbers, infinity, and nans that have bits of their own.

    No two ranks have a nan, or an infinity, in the same place: no rule says which one the sum has.
    """
    info = np.finfo(dtype)
    few = [info.smallest_subnormal, -info.tiny / 3, 0.0, -0.0, info.max, -info.max, info.eps, 1.0]
    values = np.random.default_rng([rank, count]).choice(np.array(few, dtype), count)
    place = np.arange(count) % (3 * SIZE)
    values[place == 3 * rank] = np.inf
    bits = values.view(f"u{info.dtype.itemsize}")
    bits[place == 3 * rank + 1] = np.array(np.nan, dtype).view(bits.dtype) + 1 + rank
    return values


@pytest.mark.parametrize("op", [MPI.SUM, MPI.PROD, MPI.MAX, MPI.MIN], ids=op_name)
@pytest.mark.parametrize("word", ["recursive_doubling", "ring"])
def test_hostile_values(interpreters, word, op):
    """Zeros keep their sign, denormals are no zeros, and a nan has its bits: as Python's interpreter has it."""
    for dtype in ("f2", "f4", "f8"):
        found = []
        for name in ("python", "c", "either"):
            x = hostile(RANK, PRIME, dtype)
            with np.errstate(all="ignore"):
                interpreters(name).Allreduce(MPI.IN_PLACE, x, op, algorithm=word)
            found.append(x.tobytes())
        assert found[0] == found[1] == found[2], dtype


@pytest.mark.parametrize("name", ["python", "c", "either"])
def test_each_form(interpreters, name):
    """A repeated call on other memory, a request, and a plan that is started again."""
    comm = interpreters(name)
    for number in range(3):
        sent = np.arange(PRIME, dtype="f8") + number
        received = np.empty_like(sent)
        comm.Allreduce(sent, received, algorithm="ring")
        same(received, sent * SIZE)
        comm.Iallreduce(MPI.IN_PLACE, sent, algorithm="ring").Wait()
        same(received, sent)
    plan = comm.Allreduce_init(MPI.IN_PLACE, received, algorithm="recursive_doubling")
    for _ in range(3):
        received[:] = 1
        plan.Start()
        plan.Wait()
        same(received, np.full(PRIME, float(SIZE)))
    plan.Free()


@pytest.mark.parametrize(("method", "word"), EVERY)
def test_what_is_sent_may_lie_in_memory_that_cannot_be_written(interpreters, method, word):
    """As a file that is mapped to be read: a write, even of the same bytes, ends the process."""
    for name in ("python", "c"):
        comm = interpreters(name)
        for count, repetitions in ((PRIME, 4), (40_000 * SIZE, 1)):
            case = Case(method, count, SIZE - 1)
            if method == "Bcast" and case.root == RANK:
                case.arguments = (cannot_be_written(case.result), case.root)
            elif case.sent is not None:
                case.sent = cannot_be_written(case.sent)
                send, *others = case.arguments
                send = [case.sent, send[1]] if isinstance(send, list) else case.sent
                case.arguments = (send, *others)
            for _ in range(repetitions):
                same(case.call(comm, algorithm=word), expected(method, count, SIZE - 1))


@pytest.mark.parametrize("word", [None, *words("Bcast")])
def test_a_root_broadcasts_parts_of_memory_that_cannot_be_written(interpreters, word):
    """Strided, with counts, and as bytes."""
    for name in ("python", "c"):
        comm = interpreters(name)
        whole = np.arange(2.0 * PRIME)
        for part, message in (
            (slice(None, None, 2), lambda x: x[::2]),
            (slice(PRIME), lambda x: [x, PRIME, MPI.DOUBLE]),
            (slice(None), memoryview),
        ):
            buffer = cannot_be_written(whole) if RANK == 0 else np.zeros(2 * PRIME)
            for _ in range(3):
                comm.Bcast(message(buffer), 0, algorithm=word)
            same(buffer[part], whole[part])


def cannot_be_written(array):
    """The same in memory whose pages are read-only."""
    with tempfile.TemporaryFile() as file:
        file.write(array.tobytes() or b" ")
        file.flush()
        memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    return np.frombuffer(memory, array.dtype, array.size)


@pytest.mark.mpi(min_size=2)
def test_what_it_cannot_execute_runs_in_python(interpreters, monkeypatch):
    comm = interpreters("c")
    made = []
    monkeypatch.setattr(engine.Compiled, "start", lambda *_: made.append(1))
    user = MPI.Op.Create(lambda one, other, _: np.add(_floats(one), _floats(other), out=_floats(other)), commute=True)
    for dtype, op in (("f8", user), ("g", MPI.SUM), ("c8", MPI.PROD)):
        data = np.ones(9, dtype)
        comm.Allreduce(MPI.IN_PLACE, data, op=op, algorithm="ring")
    user.Free()
    assert not made


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("count", [3, 100_000], ids=["messages", "slots"])
def test_a_rank_that_waits_for_long_leaves_its_core_to_others(monkeypatch, comm, count):
    """For a message, and for room for the next one: whoever is late has not read the first."""
    monkeypatch.setenv("MPICOLL_ENGINE", "c")
    data = np.ones(count)
    late, used = 0.4, []
    for _ in range(2):
        comm.Bcast(data, algorithm="pipeline", segment_bytes=4096)
        if RANK == SIZE - 1:
            time.sleep(late)
        began = time.process_time()
        comm.Bcast(data, algorithm="pipeline", segment_bytes=4096)
        comm.Allreduce(MPI.IN_PLACE, np.ones(count), algorithm="recursive_doubling")
        used.append(time.process_time() - began)
    assert min(used) < late / 2


def _floats(memory):
    return np.frombuffer(memory, "f8")


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("nodes", [(0, 0, 1, 1, 1), (0, 1, 0, 1, 0)])
@pytest.mark.parametrize(("method", "word"), [pair for pair in EVERY if pair[1] in ("hierarchical", "ring", "direct")])
def test_messages_of_both_kinds(comm, nodes, method, word):
    """Through shared memory and through MPI in one program: whatever a rank awaits, pipes that were full are filled again."""
    context = Context.of(comm)
    context.topology = context.topology._replace(nodes=nodes[:SIZE])
    context.links.ranks[:] = [rank for rank in context.links.ranks if nodes[rank] == nodes[RANK]]
    for count, pieces in ((PRIME, None), (150_000 * SIZE, 60_000), (150_000 * SIZE, None)):
        result = Case(method, count, SIZE - 1).call(comm, algorithm=word, segment_bytes=pieces)
        same(result, expected(method, count, SIZE - 1))
