"""Every algorithm of every collective against MPI's own: lengths, roots, buffers apart and shared; bits; bytes."""

from itertools import product

import numpy as np
import pytest

import mpicoll
from mpicoll import algorithms, schedule, verify
from mpicoll.execute.context import Context
from tests.support.cases import (
    COUNTS,
    EVERY,
    METHODS,
    PRIME,
    RANK,
    SEGMENT,
    SIZE,
    STUDY,
    WORLD,
    Case,
    everywhere,
    expected,
    forms_of,
    mixed_magnitudes,
    roots_of,
    same,
)

pytestmark = [pytest.mark.mpi, pytest.mark.interpreters("python", "c")]


@pytest.mark.parametrize(("method", "word"), [*EVERY, *((method, "native") for method in METHODS)])
def test_result_is_that_of_mpi(comm, method, word):
    for number, (count, root, form) in enumerate(situations(method)):
        pieces = SEGMENT if number % 3 else None  # round by round as well
        result = Case(method, count, root, form).call(comm, algorithm=word, segment_bytes=pieces)
        same(result, expected(method, count, root))


@pytest.mark.parametrize(("method", "word"), STUDY)
def test_algorithms_for_study_give_the_result_of_mpi(comm, method, word):
    """A few calls each: that they are right at every number of ranks is proved without ranks."""
    for count, root, form in ((PRIME, SIZE - 1, "apart"), (SIZE + 1, 0, forms_of(method)[1])):
        result = Case(method, count, root, form).call(comm, algorithm=word)
        same(result, expected(method, count, root))


PLACED = [(method, word) for method, word in EVERY if word in ("ring", "pipeline", "hierarchical")]


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("nodes", [(0, 1, 0, 1, 0), (0, 0, 1, 1, 2), (0, 1, 1, 0, 0)])
@pytest.mark.parametrize(("method", "word"), PLACED)
def test_ranks_on_several_nodes(comm, method, word, nodes):
    """The schedules for several nodes, on ranks that share one: their messages do not care."""
    context = Context.of(comm)
    context.topology = context.topology._replace(nodes=nodes[:SIZE])
    for count, root in ((PRIME, SIZE - 1), (1, 0)):
        for pieces in (None, SEGMENT):
            same(Case(method, count, root).call(comm, algorithm=word, segment_bytes=pieces), expected(method, count, root))


def situations(method):
    """(count, root, form): each count with two buffers and with one of the other forms, each root with two counts."""
    shared = forms_of(method)[1:]
    for number, count in enumerate(COUNTS):
        yield count, 0, "apart"
        yield count, 0, shared[number % len(shared)]
    for root in roots_of(method)[1:]:
        yield COUNTS[-1], root, "apart"
        yield COUNTS[root % len(COUNTS)], root, shared[root % len(shared)]


# ---- bits

#: algorithms that add in the canonical order: the leading pairs, then a perfect binary tree
CANONICAL = [("Allreduce", word) for word in ("recursive_doubling", "halving_doubling", "pairwise", "allgather_reduce")]
CANONICAL += [("Reduce", "binomial"), ("Reduce_scatter", "pairwise")]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("word", [*algorithms.list_algorithms("allreduce")[:-1]])
def test_all_ranks_get_the_same_bits(comm, word, dtype):
    case = Case("Allreduce", dtype=dtype, fill=mixed_magnitudes)
    everywhere(case.call(comm, algorithm=word, segment_bytes=SEGMENT).tobytes())


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_canonical_algorithms_give_the_same_bits(comm, dtype):
    reference = Case("Allreduce", dtype=dtype, fill=mixed_magnitudes).call(comm, algorithm="recursive_doubling")
    for method, word in CANONICAL:
        case = Case(method, dtype=dtype, fill=mixed_magnitudes)
        result, part = case.call(comm, algorithm=word), case.part(case.collective.postcondition)
        if result is not None:
            assert result.tobytes() == reference[part].tobytes(), (method, word)


def test_the_bits_show_the_order(comm):
    """What the tests above rest on: on this data another order does round differently."""
    contributions = [mixed_magnitudes(rank, PRIME, "f4") for rank in range(4)]
    forwards, backwards = sum(contributions), sum(reversed(contributions))
    assert forwards.tobytes() != backwards.tobytes()


# ---- messages and bytes

COUNTED = [(method, word) for method, word in EVERY if not method.endswith("v") and method != "Reduce_scatter"]


def proved_cost(method, word, case, pieces):
    """What the verifier says this rank sends, messages uncut; data that is only moved is cut at bytes."""
    entry, itemsize = algorithms.find(METHODS[method], word), 8 if case.collective.reduces else 1
    count = 8 * case.edges[-1] // itemsize
    nodes = Context.of(WORLD).topology.nodes
    blocks = entry.vector_blocks(SIZE, max(1, -(-count * itemsize // (pieces or schedule.SEGMENT_BYTES))), nodes)
    cost = verify.check(METHODS[method], entry.generator, SIZE, case.root, blocks, count=count, itemsize=itemsize, nodes=nodes)
    return cost.ranks[RANK]


@pytest.mark.parametrize(("method", "word"), COUNTED)
def test_sent_is_what_was_proved_and_explained(comm, method, word):
    for count, pieces in product({SIZE - 1, SIZE + 1, PRIME}, (None, SEGMENT)):
        case = Case(method, count, SIZE - 1)
        proved, before = proved_cost(method, word, case, pieces), comm.sent
        options = {"algorithm": word, "segment_bytes": pieces}
        said = explained(comm, case, options)
        case.call(comm, **options)
        messages, nbytes = (after - earlier for after, earlier in zip(comm.sent, before))
        assert (messages, nbytes) == (said.messages, said.bytes_sent)
        assert nbytes == proved.bytes_sent and messages >= proved.messages
        assert messages == proved.messages or pieces


def explained(comm, case, options):
    """What explain says of the call that the case makes; nothing is sent by asking."""
    buffers, before = case.arguments[: 1 if case.method == "Bcast" else 2], comm.sent
    said = comm.explain(METHODS[case.method], *buffers, root=case.root, **options)
    assert comm.sent == before and (said.algorithm, said.reason) == (options["algorithm"], "asked for by the call")
    assert said.size == SIZE and said.algorithm in str(said)
    return said


def test_native_calls_are_not_counted(comm):
    for method in METHODS:
        Case(method).call(comm, algorithm="native")
    assert comm.sent == (0, 0)


def test_a_generator_of_the_user(comm):
    """register() proves it; then its word works like any other."""
    name = "mine"
    if name not in mpicoll.list_algorithms("allgather"):
        mpicoll.register("allgather", name, algorithms.find("allgather", "ring").generator)
    same(Case("Allgather").call(comm, algorithm=name), expected("Allgather"))
    with pytest.raises(mpicoll.ArgumentError, match="mine"):
        mpicoll.register("allgather", name, algorithms.find("allgather", "ring").generator)


def silent(rank, size):
    """An allgather on one rank alone."""
    yield schedule.Copy(schedule.Input(rank), schedule.Output(rank))


@pytest.mark.mpi(min_size=2)
def test_a_generator_of_the_user_is_proved_at_the_size_of_its_call(comm):
    """Blocking or not, wrong schedules send nothing, and the communicator goes on."""
    if "silent" not in mpicoll.list_algorithms("allgather"):
        mpicoll.register("allgather", "silent", silent, max_size=1)
    mine, every = np.ones(3), np.empty(3 * SIZE)
    for _ in range(2):
        with pytest.raises(mpicoll.ScheduleError, match=f"allgather silent, {SIZE} ranks"):
            comm.Allgather(mine, every, algorithm="silent")
    with pytest.raises(mpicoll.ScheduleError, match=f"allgather silent, {SIZE} ranks"):
        comm.Iallgather(mine, every, algorithm="silent").Wait()
    with pytest.raises(mpicoll.ScheduleError, match=f"allgather silent, {SIZE} ranks"):
        comm.Allgather_init(mine, every, algorithm="silent")
    comm.Allgather(mine, every, algorithm="ring")


@pytest.mark.mpi(min_size=2)
def test_generators_that_differ_between_ranks_are_found_by_their_source(comm):
    if "differs" not in mpicoll.list_algorithms("allgather"):
        made = silent if RANK else lambda rank, size: silent(rank, size)
        mpicoll.register("allgather", "differs", made, max_size=1)
    with pytest.raises(mpicoll.CollectiveMismatch, match="algorithm='differs' .source"):
        comm.Allgather(np.ones(3), np.empty(3 * SIZE), algorithm="differs")


@pytest.mark.mpi(min_size=2)
def test_ranks_may_enter_in_any_order(comm):
    """Calls of several collectives and algorithms one after the other do not mix up their messages."""
    cases = [Case(method, root=number % SIZE) for number, (method, _) in enumerate(EVERY)]
    for case, (_, word) in zip(cases, EVERY):
        case.call(comm, algorithm=word, segment_bytes=SEGMENT)
    for case in cases:
        same(case.result, expected(case.method, root=case.root) if case.collective.rooted else expected(case.method))
    assert WORLD.allreduce(1) == np.int64(SIZE)
