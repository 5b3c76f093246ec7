"""What every collective has, of those of which `cases` has no `Case` and of scans: limits of waiting, comparison, devices."""

import re
import time

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll import algorithms
from tests.support.cases import RANK, SIZE, WORLD, same

pytestmark = pytest.mark.mpi

COUNT = 5
PLACES = [8 * COUNT * rank for rank in range(SIZE)]
TYPED = [COUNT] * SIZE, PLACES, [MPI.DOUBLE] * SIZE
#: the first of each row on a ring of all ranks, where every rank has two neighbours
ROWS = [2 * COUNT * rank for rank in range(SIZE)]
AROUND = [COUNT] * 2, [0, 8 * COUNT], [MPI.DOUBLE] * 2
COUNTED = [COUNT, COUNT]


def values(places):
    """What this rank sends: other numbers at each place."""
    return np.arange(float(places * COUNT)) + 1000 * RANK


#: method: the collective; the blocks that a rank sends and receives; what is given for an array of each
CALLS = {
    "Scan": ("scan", 1, 1, lambda x, y: (x, y)),
    "Exscan": ("exscan", 1, 1, lambda x, y: (x, y)),
    "Barrier": ("barrier", 0, 0, lambda x, y: ()),
    "Alltoallw": ("alltoall", SIZE, SIZE, lambda x, y: ([x, *TYPED], [y, *TYPED])),
    "Neighbor_allgather": ("neighbor_allgather", 1, 2, lambda x, y: (x, y)),
    "Neighbor_allgatherv": ("neighbor_allgather", 1, 2, lambda x, y: (x, [y, COUNTED])),
    "Neighbor_alltoall": ("neighbor_alltoall", 2, 2, lambda x, y: (x, y)),
    "Neighbor_alltoallv": ("neighbor_alltoall", 2, 2, lambda x, y: ([x, COUNTED], [y, COUNTED])),
    "Neighbor_alltoallw": ("neighbor_alltoall", 2, 2, lambda x, y: ([x, *AROUND], [y, *AROUND])),
}
FORMS = ("blocking", "begun", "plan")


def words(method):
    """An algorithm that serves it, and what is chosen."""
    collective = CALLS[method][0]
    fit = [each.name for each in algorithms.proposed(collective) if not (method == "Alltoallw" and each.equal_blocks)]
    return fit[-1], None


def made(method, form, comm, arguments, **options):
    """A function that makes the call in a form, to its end."""
    if form == "blocking":
        return lambda: getattr(comm, method)(*arguments, **options)
    if form == "begun":
        return lambda: getattr(comm, f"I{method.lower()}")(*arguments, **options).Wait()

    def plan():
        plan = getattr(comm, f"{method}_init")(*arguments, **options)
        plan.Start()
        plan.Wait()

    return plan


def ring(**settings):
    """A grid of all ranks in a ring; calls of the other collectives are made on it as well."""
    return mpicoll.Communicator(WORLD.Create_cart([SIZE], [True]), **settings)


def wanted(method):
    """MPI's own result on `values`."""
    _, sent, received, given = CALLS[method]
    plain = WORLD.Create_cart([SIZE], [True])
    y = np.zeros(received * COUNT)
    getattr(plain, method)(*given(values(sent), y))
    plain.Free()
    return y


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", CALLS)
def test_a_rank_that_does_not_come_is_named(method, form):
    """By a schedule; a call of MPI's own ends the job, see `tests/system/test_hangs.py`."""
    _, sent, received, given = CALLS[method]
    comm = ring(timeout=100)
    arguments = given(values(sent), np.zeros(received * COUNT))
    call = made(method, form, comm, arguments, algorithm=words(method)[0])
    call()
    mpicoll.Communicator(comm, timeout=0.5)  # from here on: a busy machine is slow to start all ranks
    if RANK:
        with pytest.raises(mpicoll.CollectiveTimeout) as raised:
            for _ in range(SIZE):  # a rank that has no neighbour among the missing waits for the others
                call()
        text = str(raised.value)
        assert f" {method}" in text and "a timeout after 0.5 s" in text and "rank 0" in text, text
        # in none of MPI's own, which nothing interrupts: the message says what it waits for
        assert re.search(r"no progress for [\d.]+ s in call \d+, .+: .+ \(a timeout", text), text
    WORLD.Barrier()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", CALLS)
def test_another_call_of_the_last_rank_is_named_on_all(method, form):
    _, sent, received, given = CALLS[method]
    for check in ("first", "always"):
        comm = ring(check=check)
        arguments = given(values(sent), np.zeros(received * COUNT))
        with pytest.raises(mpicoll.CollectiveMismatch) as raised:
            if RANK == SIZE - 1:
                comm.Bcast(np.zeros(3), algorithm="binomial")
            else:
                made(method, form, comm, arguments, algorithm=words(method)[0])()
        text = str(raised.value)
        assert method.lower() in text.lower() and f"rank {SIZE - 1}: Bcast" in text, (check, text)
        assert WORLD.allgather(text) == [text] * SIZE
        comm.Free()


@pytest.mark.parametrize("strict", ["deterministic", "reproducible"])
@pytest.mark.parametrize("method", [method for method in CALLS if "scan" not in method.lower()])
def test_on_communicators_whose_sums_are_exact(method, strict):
    """What only moves data is the same there."""
    _, sent, received, given = CALLS[method]
    expected = wanted(method)
    comm = ring(**{strict: True})
    for word in words(method):
        for form in FORMS:
            y = np.zeros(received * COUNT)
            made(method, form, comm, given(values(sent), y), algorithm=word)()
            same(y, expected)
    comm.Free()


@pytest.mark.parametrize("form", FORMS)
def test_a_scan_of_one_rank(form):
    comm = mpicoll.Communicator(MPI.COMM_SELF.Dup())
    for word in (None, "native", *algorithms.list_algorithms("exscan")):
        x, y = np.arange(3.0), np.full(3, 7.0)
        made("Exscan", form, comm, (x, y), algorithm=word)()
        made("Exscan", form, comm, (MPI.IN_PLACE, x), algorithm=word)()
        assert (x == np.arange(3.0)).all() and (y == 7).all()
    for word in (None, "native", *algorithms.list_algorithms("scan")):
        x, y = np.arange(3.0), np.full(3, 7.0)
        made("Scan", form, comm, (x, y), algorithm=word)()
        made("Scan", form, comm, (MPI.IN_PLACE, x), algorithm=word)()
        assert (x == y).all() and (x == np.arange(3.0)).all()
    comm.Free()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", ("Scan", "Exscan"))
def test_the_order_of_a_function_that_does_not_commute(method, form):
    """Decimal digits, one rank's after another's: no other order gives the same."""

    def join(lower, higher, datatype):
        behind = np.frombuffer(higher, "i8")
        behind[...] = np.frombuffer(lower, "i8") * 10 ** np.int64(len(str(behind[0]))) + behind

    op = MPI.Op.Create(join, commute=False)
    comm = mpicoll.Communicator(WORLD.Dup())
    upto = RANK + (method == "Scan")
    ordered = [each.name for each in algorithms.registered(method.lower()) if each.ordered]
    for word in (None, *ordered):
        for in_place in (False, True):
            x = np.full(4, RANK % 9 + 1)
            y = x if in_place else np.zeros(4, "i8")
            made(method, form, comm, (MPI.IN_PLACE if in_place else x, y, op), algorithm=word)()
            if upto:
                assert (y == int("".join(str(rank % 9 + 1) for rank in range(upto)))).all(), (word, y)
    comm.Free()
    op.Free()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", [method for method in CALLS if "scan" not in method.lower() and method != "Barrier"])
def test_device_memory(xp, mode, method, form):
    """Both buffers, or one, lie on a device; on some ranks only."""
    _, sent, received, given = CALLS[method]
    expected = wanted(method)
    comm = ring()
    for word in words(method):
        for on_device in ((True, True), (False, True), (True, False), (RANK % 2 == 0,) * 2):
            if mode == "direct" and len(set(on_device)) > 1:
                continue  # host and device in one call are refused there, see test_device
            x, y = values(sent), np.zeros(received * COUNT)
            x, y = (xp.array(one) if is_there else one for one, is_there in zip((x, y), on_device))
            made(method, form, comm, given(x, y), algorithm=word)()
            same(y, expected)
    comm.Free()


def test_time_passes_while_a_barrier_is_entered_late():
    """Ranks that come within the limit are waited for."""
    comm = ring(timeout=20)
    for last in range(SIZE):
        if RANK == last:
            time.sleep(0.05)
        comm.Barrier(algorithm="dissemination")
    comm.Free()
