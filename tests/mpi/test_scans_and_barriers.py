"""What is special in scans and barriers; that they give what MPI gives is tested with all collectives."""

import time

import numpy
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll import algorithms, collectives
from tests.support.cases import RANK, SIZE, WORLD
from tests.support.exact import contributions, in_fixed_point, mixed

pytestmark = [pytest.mark.mpi, pytest.mark.interpreters("python", "c")]

METHODS = ("Scan", "Exscan")
COUNTS = (1, 7, 6001)


def terms(method):
    """How many contributions the result of this rank has."""
    return len(collectives.find(method.lower()).contributors(RANK, 0, SIZE, 1))


def every_form(comm, method, mine, **keywords):
    """The results of the three forms, out of place and in place; of rank 0 of an Exscan, what it had."""
    out, inside, later = numpy.zeros_like(mine), mine.copy(), mine.copy()
    getattr(comm, method)(mine, out, **keywords)
    getattr(comm, f"I{method.lower()}")(MPI.IN_PLACE, inside, **keywords).Wait()
    plan = getattr(comm, f"{method}_init")(MPI.IN_PLACE, later, **keywords)
    plan.Start()
    plan.Wait()
    plan.Free()
    return out, inside, later


@pytest.mark.parametrize("method", METHODS)
def test_a_deterministic_scan_has_the_bits_of_a_loop_over_the_ranks(method):
    strict = mpicoll.Communicator(WORLD.Dup(), deterministic=True)
    words = [each.name for each in algorithms.registered(method.lower()) if each.canonical]
    for count in COUNTS:
        mine = mixed(count, "f4", RANK)
        expected = mixed(count, "f4", 0)
        for rank in range(1, terms(method)):
            expected = expected + mixed(count, "f4", rank)
        for word in (None, *words):
            out, *in_place = every_form(strict, method, mine, algorithm=word, segment_bytes=4096)
            if terms(method):
                assert {one.tobytes() for one in (out, *in_place)} == {expected.tobytes()}, (count, word)
            else:
                assert not out.any() and all((one == mine).all() for one in in_place)
    with pytest.raises(mpicoll.ArgumentError, match="deterministic.*in the canonical one: linear, pipeline"):
        strict.Scan(MPI.IN_PLACE, mine, algorithm="recursive_doubling")
    strict.Free()


@pytest.mark.parametrize("method", METHODS)
def test_a_reproducible_scan_is_a_prefix_in_fixed_point(method):
    exact = mpicoll.Communicator(WORLD.Dup(), reproducible=True)
    for count in COUNTS[:2]:
        mine = mixed(count, "f4", RANK)
        everything = contributions(SIZE, count, "f4")
        # the unit is that of all ranks
        others = numpy.zeros_like(everything)
        others[: terms(method)] = everything[: terms(method)]
        largest = numpy.abs(everything).max()
        expected = in_fixed_point(others, top=float(largest))
        for word in (None, *(each.name for each in algorithms.registered(method.lower()))):
            out, *in_place = every_form(exact, method, mine, algorithm=word)
            if terms(method):
                assert {one.tobytes() for one in (out, *in_place)} == {expected.tobytes()}, (count, word)
            else:
                assert not out.any() and all((one == mine).all() for one in in_place)
    exact.Free()


@pytest.mark.parametrize("word", [*algorithms.list_algorithms("barrier"), None])
@pytest.mark.parametrize("form", ["blocking", "begun", "plan"])
def test_no_rank_leaves_a_barrier_before_all_have_entered_it(comm, form, word):
    arrived = comm.empty(1, "i8")
    window = MPI.Win.Create(arrived, comm=WORLD)
    plan = comm.Barrier_init(algorithm=word)
    make = {
        "blocking": lambda: comm.Barrier(algorithm=word),
        "begun": lambda: comm.Ibarrier(algorithm=word).Wait(),
        "plan": lambda: (plan.Start(), plan.Wait()),
    }[form]
    seen = numpy.empty(SIZE, "i8")
    for turn in range(1, 6):
        if turn % SIZE == RANK:  # another rank is the last one in each turn
            time.sleep(0.01)
        window.Lock(RANK)
        arrived[0] = turn
        window.Unlock(RANK)
        make()
        for rank in range(SIZE):
            window.Lock(rank, MPI.LOCK_SHARED)
            window.Get(seen[rank : rank + 1], rank)
            window.Unlock(rank)
        assert (seen >= turn).all(), seen
    plan.Free()
    window.Free()


def test_both_spellings_of_a_barrier_meet(comm):
    if RANK:
        comm.Barrier()
    else:
        comm.barrier()


def test_barriers_on_their_way_at_once_beside_other_calls(comm):
    x = numpy.full(1000, 1.0)
    requests = [comm.Ibarrier(), comm.Iscan(MPI.IN_PLACE, x), comm.Ibarrier(algorithm="tree"), comm.Ibarrier()]
    comm.Barrier(algorithm="dissemination")
    for request in reversed(requests):
        request.Wait()
    assert (x == RANK + 1).all()


def test_explain_knows_no_bytes_of_a_barrier(comm):
    said = str(comm.explain("barrier", algorithm="dissemination"))
    assert said.startswith(f"barrier on {SIZE} rank") and "lower bound" not in said
    assert comm.explain("Exscan", numpy.zeros(5)).nbytes == 40
