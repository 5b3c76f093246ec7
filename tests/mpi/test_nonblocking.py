"""Non-blocking collectives: every one in every form, many at a time, waited for in any order, beside MPI's own requests."""

import threading
import time
import weakref

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll.calls.request import Request
from mpicoll.execute import Context
from mpicoll.progress import Queue, Task
from mpicoll.progress.engine import Progress
from mpicoll.shared_memory import PLANS, TASKS
from mpicoll.support.quirks import is_open_mpi
from tests.support.cases import (  # fmt: skip
    EVERY,
    METHODS,
    PRIME,
    RANK,
    SEGMENT,
    SIZE,
    WORLD,
    Case,
    everywhere,
    expected,
    forms_of,
    outside_of_mpi,
    roots_of,
    same,
)
from tests.support.fakes.progress import ManualProgress

pytestmark = pytest.mark.mpi


def by_test(request):
    while not request.Test():
        pass


def by_lower_case_test(request):
    while request.test() != (True, None):
        pass


def by_waitany(request):
    assert MPI.Request.Waitany([request]) == 0


WAYS = [lambda request: request.Wait(), lambda request: request.wait(), by_test, by_lower_case_test,
        lambda request: MPI.Request.Waitall([request]), by_waitany]  # fmt: skip


@pytest.mark.parametrize(("method", "word"), EVERY)
def test_every_algorithm(comm, method, word):
    """Each form with each count, and each root with each of both on up to three ranks."""
    forms, roots = forms_of(method), roots_of(method)
    for number in range(max(len(forms), len(roots))):
        form = forms[number % len(forms)]
        for place, count in enumerate((0, SIZE + 1, PRIME)):
            root = roots[(number + place) % len(roots)]
            case = Case(method, count, root, form)
            WAYS[(number + count) % len(WAYS)](case.begin(comm, algorithm=word, segment_bytes=SEGMENT))
            same(case.result, expected(method, count, root))


@pytest.mark.parametrize("method", METHODS)
def test_chosen_and_native(comm, method):
    for word in (None, "native"):
        case = Case(method)
        case.begin(comm, algorithm=word).Wait()
        same(case.result, expected(method))


def outstanding(comm):
    """One request per method and word, begun together."""
    cases = [Case(method, PRIME) for method, word in EVERY]
    return cases, [case.begin(comm, algorithm=word) for case, (_, word) in zip(cases, EVERY)]


def check(cases):
    for case, (method, _) in zip(cases, EVERY):
        same(case.result, expected(method))


@pytest.mark.parametrize("how", ["Waitall", "Testall", "Waitany", "Waitsome", "own order"])
def test_many_outstanding(comm, how):
    """All collectives at once, with MPI's own messages among them; each rank waits in its own order."""
    cases, requests = outstanding(comm)
    mail = np.full(3, -1)
    requests.append(comm.Irecv(mail, (RANK - 1) % SIZE, 5))
    requests.append(comm.Isend(np.full(3, RANK), (RANK + 1) % SIZE, 5))
    if how == "own order":
        for number in np.random.default_rng(RANK).permutation(len(requests)):
            requests[number].Wait()
    elif how == "Testall":
        while not MPI.Request.Testall(requests):
            pass
    elif how in ("Waitany", "Waitsome"):
        left = len(requests)
        while left:
            done = getattr(MPI.Request, how)(requests)
            left -= 1 if how == "Waitany" else len(done)
    else:
        getattr(MPI.Request, how)(requests)
    assert all(mail == (RANK - 1) % SIZE)
    check(cases)


@pytest.mark.parametrize("how", ["Testall", "Waitany", "Waitsome"] + ["Waitall"] * is_open_mpi(MPI.get_vendor()[0]))
def test_lists_in_which_a_request_has_been_waited_for(comm, how):
    """Not Waitall of MPICH, which ends the job (quirk: waitall-beside-null)."""
    cases, requests = outstanding(comm)
    requests[1].Wait()
    while getattr(MPI.Request, how)(requests) not in (True, None, MPI.UNDEFINED):
        pass
    check(cases)


def test_blocking_calls_and_other_communicators_between(comm):
    """Blocking calls, scheduled and MPI's, overtake what is outstanding; so do those of another communicator."""
    other = comm.Dup()
    cases, requests = outstanding(comm)
    theirs = [Case("Allreduce"), Case("Allgather")]
    if RANK % 2:  # two communicators may be used in different orders
        flights = [theirs[0].begin(comm, algorithm="ring"), theirs[1].begin(other, algorithm="ring")]
    else:
        flights = [theirs[1].begin(other, algorithm="ring"), theirs[0].begin(comm, algorithm="ring")]
    for word in ("native", "circulant"):
        same(Case("Allreduce").call(comm, algorithm=word), expected("Allreduce"))
    MPI.Request.Waitall([*flights, *requests])
    check(cases)
    same(theirs[0].result, expected("Allreduce"))
    same(theirs[1].result, expected("Allgather"))
    other.Free()


def test_moves_by_itself(comm):
    """A collective ends although this rank calls nothing of mpicoll's; a rank that waits in MPI is served too."""
    case = Case("Allreduce")
    case.begin(comm, algorithm="ring").Wait()  # the private duplicate is there now
    case = Case("Allreduce", PRIME)
    request = case.begin(comm, algorithm="ring")
    while not request.task.ended:
        time.sleep(0.001)
    same(case.result, expected("Allreduce"))
    request.Wait()
    assert request == MPI.REQUEST_NULL


def test_the_first_call_waits_for_nobody(comm):
    """Not even for the private duplicate: a rank may first send what another waits for before it makes the call."""
    case = Case("Allreduce")
    if RANK == 0:
        request = case.begin(comm, algorithm="ring")
        for rank in range(1, SIZE):
            comm.send("go", rank)
    else:
        comm.recv(source=0)
        request = case.begin(comm, algorithm="ring")
    request.Wait()
    same(case.result, expected("Allreduce"))


def test_a_list_is_used_again_while_calls_wait_for_their_turn(comm):
    """The other ranks begin when all calls of rank 0 have begun; the arrays belong to the calls alone by then."""
    if RANK:
        comm.recv(source=0)
    message = [None, PRIME, MPI.INT64_T]
    results = np.zeros((6, SIZE, PRIME), int)
    requests, sent = [], []
    for number, result in enumerate(results):
        message[0] = np.full(PRIME, 10 * number + RANK)
        sent.append(weakref.ref(message[0]))
        requests.append(comm.Iallgather(message, [result, PRIME, MPI.INT64_T], algorithm="ring"))
    message[:2] = None, 1
    if RANK == 0:
        assert SIZE == 1 or all(array() is not None for array in sent)
        for rank in range(1, SIZE):
            comm.send("go", rank)
    MPI.Request.Waitall(requests)
    same(results[:, :, 0], 10 * np.arange(6)[:, None] + np.arange(SIZE))
    same(results[:, :, -1], results[:, :, 0])


def test_written_back_before_it_is_complete(comm):
    """Strided memory, of a schedule and of MPI's own call, is there when MPI.Request.Waitall returns."""
    for word in ("ring", "native"):
        wide = np.full(2 * PRIME, RANK, "i8")
        MPI.Request.Waitall([comm.Iallreduce(MPI.IN_PLACE, wide[::2], algorithm=word)])
        assert all(wide[::2] == sum(range(SIZE))) and all(wide[1::2] == RANK)


def test_half_precision(comm):
    x = np.full(100, RANK + 1, "f2")
    comm.Iallreduce(MPI.IN_PLACE, x).Wait()
    assert all(x == sum(range(SIZE + 1)))


def test_freed_request_still_arrives(comm):
    case = Case("Allreduce")
    request = case.begin(comm, algorithm="ring")
    request.Free()
    task = request.task
    while not task.ended:
        time.sleep(0.001)
    same(case.result, expected("Allreduce"))


def test_communicator_freed_while_in_flight():
    comm = mpicoll.Communicator(WORLD.Dup())
    case = Case("Allreduce")
    request = case.begin(comm, algorithm="ring")
    comm.Free()
    request.Wait()
    same(case.result, expected("Allreduce"))


def test_bytes_are_counted(comm):
    before = comm.sent
    x = np.ones(SIZE * 10, "f4")
    comm.Iallreduce(MPI.IN_PLACE, x, algorithm="ring").Wait()
    assert comm.sent[1] - before[1] == 2 * (SIZE - 1) * 40
    assert comm.sent[0] - before[0] == (2 * (SIZE - 1) if SIZE > 1 else 0)


def test_bad_input_is_an_error_at_the_call(comm):
    x = np.zeros(4)
    with pytest.raises(mpicoll.ArgumentError, match="unknown allreduce algorithm|rign"):
        comm.Iallreduce(MPI.IN_PLACE, x, algorithm="rign")
    with pytest.raises(mpicoll.BufferError):
        comm.Iallreduce(x, x[1:])
    everywhere(True)


@pytest.mark.parametrize("wait", [lambda request: request.Wait(), by_test])
def test_what_went_wrong_on_the_way_is_raised_by_wait(wait):
    """A count that differs from the root's is known only after the root's have come. No rank sends a block before that."""
    alone = mpicoll.Communicator(MPI.COMM_SELF.Dup())
    request = alone.Igatherv(np.zeros(1), [np.zeros(1), [1]], algorithm="binomial")
    wait(request)
    context = Context.of(alone)
    request = Request(context, failing(), context.recorder.begin("a call", ""), ())
    with pytest.raises(KeyError, match="on the way"):
        wait(request)
    assert request == MPI.REQUEST_NULL
    alone.Free()


def failing():
    yield None
    raise KeyError("on the way")


def test_the_thread_may_be_quicker_than_the_call_that_begins(monkeypatch):
    """It took the turn after the call had looked, and ended the task: the call must not advance it once more."""
    progress = Progress()
    alone = progress._is_alone

    def look_then_lose_the_turn(task):
        found = alone(task)
        while not task.ended:
            progress.poll()
        return found

    monkeypatch.setattr(progress, "_is_alone", look_then_lose_the_turn)
    monkeypatch.setattr(progress, "_attend", lambda: None)
    task = progress.submit(Task(iter([1, 2]), Queue()))
    progress.wait(task)
    assert task.ended and not progress._tasks


def test_tasks_of_one_track_run_one_after_the_other():
    """Messages of two calls on one pipe wait for each other: where ranks meet them in different order, for ever."""
    queue, progress, order = Queue(), ManualProgress(), []

    def steps(name, moves):
        for move in range(moves):
            order.append(name)
            yield move

    tasks = [progress.submit(Task(steps(name, 3), queue, track=track)) for name, track in [("a", 1), ("b", 1), ("c", 2)]]
    while not all(task.ended for task in tasks):
        progress.poll()
    assert "".join(order).replace("c", "") == "aaabbb" and order.index("b") < order.index("c"), order


def test_the_track_of_a_call_is_the_pipe_of_its_messages(comm):
    context = Context.of(comm)
    links = context.links
    if links is None or SIZE == 1:
        return
    peer = links.ranks[0]
    numbered = [(context.call_track(number), TASKS, context.call_tag(number, 77)) for number in range(9)]
    numbered += [(context.plan_track(tag), PLANS, tag) for tag in (context.next_plan_tag() for _ in range(9))]
    for track, kind, tag in numbered:
        pipes = links.to(peer, kind)
        assert pipes.of(tag) is pipes.pipes[kind.index(track)]
    assert len({track for track, *_ in numbered}) == len(TASKS) + len(PLANS)


def test_one_thread_however_many_collectives(comm):
    _, requests = outstanding(comm)
    assert sum(thread.name == "mpicoll progress" for thread in threading.enumerate()) == 1
    MPI.Request.Waitall(requests)


PROGRAM = """
import mpi4py
mpi4py.rc.threads = {threads}
from mpi4py import MPI
import mpicoll, numpy, threading
comm = mpicoll.Communicator(MPI.COMM_WORLD)
x = numpy.ones(1000)
request = comm.Iallreduce(MPI.IN_PLACE, x{options})
print(type(request).__name__, comm.explain("iallreduce", x).reason)
{end}
"""


def run(threads=True, options=', algorithm="ring"', end="request.Wait()"):
    return outside_of_mpi(PROGRAM.format(threads=threads, options=options, end=end))


@pytest.mark.skipif(RANK > 0, reason="rank 0 starts processes of their own")
@pytest.mark.parametrize("end", ["request.Wait()", "pass", "MPI.Request.Waitall([request]); MPI.Finalize()"])
def test_the_thread_ends_before_mpi_does(end):
    done = run(end=end)
    assert (done.returncode, done.stderr) == (0, ""), done


@pytest.mark.skipif(RANK > 0, reason="rank 0 starts processes of their own")
def test_the_thread_ends_after_an_exception():
    done = run(end="raise KeyError('mine')")
    assert done.returncode == 1 and done.stderr.strip().endswith("KeyError: 'mine'"), done


@pytest.mark.skipif(RANK > 0, reason="rank 0 starts processes of their own")
def test_without_threads_it_is_mpis_own():
    done = run(threads=False, options="")
    assert done.returncode == 0 and done.stdout.startswith("OwningRequest MPI does not grant THREAD_MULTIPLE"), done
    refused = run(threads=False)
    reason = "cannot serve this allreduce: MPI does not grant THREAD_MULTIPLE"
    assert refused.returncode == 1 and reason in refused.stderr, refused
