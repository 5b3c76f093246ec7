"""Persistent plans, and the plans kept for repeated blocking calls."""

import gc
import random
import signal
import sys
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from itertools import count as count_from

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll.execute import native, scheduled_call
from mpicoll.execute.cache import KNOWN_CALLS
from mpicoll.execute.context import Context
from mpicoll.progress import PROGRESS
from mpicoll.support import quirks
from tests.support.cases import METHODS, PRIME, RANK, SEGMENT, SIZE, Case, expected, same, words

pytestmark = pytest.mark.mpi
WORLD = MPI.COMM_WORLD


def fill(array, start):
    array[...] = np.arange(array.size) + start


def finish(plan, by):
    """Wait for a plan in one of mpi4py's ways."""
    if by in ("Wait", "wait"):
        assert getattr(plan, by)() is (True if by == "Wait" else None)
    elif by == "Test":
        while not plan.Test():
            pass
    else:
        while plan.test() != (True, None):
            pass


@pytest.mark.parametrize("method", METHODS)
def test_every_collective_repeatedly(comm, method):
    for number, word in enumerate(("native", None, *words(method))):
        case = Case(method, PRIME, SIZE - 1 if method in ("Bcast", "Reduce") else 0)
        plan = case.init(comm, algorithm=word, segment_bytes=4 * SEGMENT)
        for repetition in range(2):
            if repetition and case.result is not None and method != "Bcast":
                case.result[...] = 7  # what the plan wrote before is not what it writes now
            plan.Start()
            finish(plan, ("Wait", "Test")[number % 2])
            same(case.result, expected(method, PRIME, case.root))
        plan.Free()


@pytest.mark.parametrize("word", ["native", *words("Allreduce")])
def test_changed_data(comm, word):
    """A plan takes its input at Start: in place, apart, and from a strided array."""
    wide = np.zeros(2 * PRIME)
    for send, recv in ((MPI.IN_PLACE, np.zeros(PRIME)), (np.zeros(PRIME), np.zeros(PRIME)), (wide[::2], wide[1::2])):
        plan = comm.Allreduce_init(send, recv, algorithm=word, segment_bytes=4 * SEGMENT)
        for repetition in range(2):
            fill(recv if send is MPI.IN_PLACE else send, RANK + repetition)
            plan.Start()
            plan.Wait()
            same(recv, SIZE * (np.arange(PRIME) + repetition) + sum(range(SIZE)) * 1.0)
        plan.Free()


@pytest.mark.parametrize("count", [1, PRIME])
@pytest.mark.parametrize("method", ["Allgather", "Allgatherv", "Gather", "Gatherv", "Scatter", "Scatterv"])
def test_changed_data_of_native_plans(comm, method, count):
    """MPICH before 4.3.2 and Intel MPI send a rank's own block as it was when the plan was made (pmodels/mpich#7078)."""
    case = Case(method, count)
    plan = case.init(comm, algorithm="native")
    for repetition in range(3):
        plan.Start()
        finish(plan, ("Wait", "Test")[repetition % 2])
        wanted = expected(method, count)
        same(case.result, wanted if wanted is None else wanted + repetition)
        if case.sent is not None:
            case.sent += 1
    plan.Free()


@pytest.mark.parametrize("method", METHODS)
def test_native_plans_without_persistent_calls_of_mpi(comm, method, monkeypatch):
    """As where MPI's are wrong or missing: the plan makes the non-blocking call at each Start."""
    monkeypatch.setattr(native, "stale_when_persistent", lambda method: True)
    wide = lambda values: np.repeat(values, 2)[::2]
    for case in (Case(method), Case(method, array=wide), Case(method, form="in place", array=wide)):
        plan = case.init(comm, algorithm="native")
        assert not isinstance(plan, MPI.Prequest) and plan.Wait() is True and plan.Test() is True
        for repetition in range(1 if case.form == "in place" else 2):
            plan.Start()
            with pytest.raises(RuntimeError, match="in flight"):
                plan.Start()
            finish(plan, ("Wait", "Test")[repetition])
            same(case.result, expected(method))
        plan.Free()
        with pytest.raises(RuntimeError, match="was freed"):
            plan.Start()


@pytest.mark.parametrize(("library", "wrong"), [
    (("MPICH", (4, 0, 3)), "Allgather Gather Scatter"), (("MPICH", (4, 3, 1)), "Allgather Gather Scatter"),
    (("MPICH", (4, 3, 2)), ""), (("MPICH", (5, 0, 2)), ""), (("Open MPI", (5, 0, 11)), ""),
    (("Intel MPI", (2021, 18, 1)), "Allgather Gather Scatter"),
])  # fmt: skip
def test_which_persistent_calls_of_mpi_are_wrong(monkeypatch, library, wrong):
    monkeypatch.setattr(quirks, "loaded", lambda: library)
    assert sorted(filter(native.stale_when_persistent, METHODS)) == wrong.split()


@pytest.mark.parametrize("by", ["Wait", "Test", "wait", "test"])
def test_plans_waited_for_in_different_orders(comm, by):
    plans, results = [], []
    for number, word in enumerate([*words("Allreduce"), None]):
        results.append(np.full(PRIME, float(RANK + number)))
        plans.append(comm.Allreduce_init(MPI.IN_PLACE, results[-1], algorithm=word, segment_bytes=4 * SEGMENT))
    plans.append(comm.Allgather_init(np.array([RANK]), gathered := np.zeros(SIZE, int), algorithm="ring"))
    for plan in plans:
        plan.Start()
    for index in np.random.default_rng(RANK).permutation(len(plans)):
        finish(plans[index], by)
    for number, result in enumerate(results):
        same(result, np.full(PRIME, float(sum(range(SIZE)) + SIZE * number)))
    same(gathered, np.arange(SIZE))
    for plan in plans:
        plan.Free()


def test_a_blocking_call_between_start_and_wait(comm):
    one, two = np.full(PRIME, 1.0), np.full(PRIME, 2.0)
    plan = comm.Allreduce_init(MPI.IN_PLACE, one, algorithm="ring")
    plan.Start()
    comm.Allreduce(MPI.IN_PLACE, two, algorithm="ring")
    plan.Wait()
    plan.Free()
    same(one, np.full(PRIME, 1.0 * SIZE))
    same(two, np.full(PRIME, 2.0 * SIZE))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("word", ["circulant", "native", None])
def test_a_blocking_call_beside_a_plan_in_flight(comm, word):
    """Started in the same order, waited for in different orders: nobody waits for ever."""
    planned, called = np.full(PRIME, RANK + 1.0), np.full(PRIME, 1.0)
    plan = comm.Allreduce_init(MPI.IN_PLACE, planned, algorithm="ring")
    plan.Start()
    if RANK % 2:
        plan.Wait()
    comm.Allreduce(MPI.IN_PLACE, called, algorithm=word)
    plan.Wait()
    plan.Free()
    same(planned, np.full(PRIME, SIZE * (SIZE + 1) / 2))
    same(called, np.full(PRIME, 1.0 * SIZE))


# ---- plans that nobody waits for: they become tasks only after a while


@pytest.mark.mpi(min_size=2)
def test_a_plan_moves_while_mpi_blocks(comm):
    """Rank 0 sits in a call of MPI's own, which another rank ends only once the plan has ended there."""
    x = np.full(PRIME, RANK + 1.0)
    y = np.zeros(PRIME)
    plan = comm.Allreduce_init(x, y, algorithm="ring")
    for _ in range(3):
        plan.Start()
        if RANK == 0:
            WORLD.recv(source=SIZE - 1)
        plan.Wait()
        if RANK == SIZE - 1:
            WORLD.send(None, dest=0)
        same(y, np.full(PRIME, SIZE * (SIZE + 1) / 2))
    plan.Free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("by", ["Wait", "Test"])
def test_more_plans_than_pipes_in_any_order(comm, by):
    """Some begin only when those before them have ended, as they share pipes."""
    results = [np.zeros(PRIME) for _ in range(9)]
    plans = [comm.Allreduce_init(np.full(PRIME, 1.0 + n), y, algorithm="ring") for n, y in enumerate(results)]
    any_of = random.Random(RANK)
    for _ in range(10):
        for y in results:
            y[:] = 0
        for plan in plans:
            plan.Start()
        for n in any_of.sample(range(len(plans)), len(plans)):
            while not getattr(plans[n], by)():
                pass
            assert not plans[n].in_flight
            same(results[n], np.full(PRIME, SIZE * (1.0 + n)))
    for plan in plans:
        plan.Free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.skipif(MPI.Query_thread() != MPI.THREAD_MULTIPLE, reason="two threads start plans at the same time")
def test_two_threads_start_plans_that_share_pipes(comm):
    """The first and the fifth plan of a communicator: they began in the same pipes, and both results were wrong."""
    arrays = [(np.zeros(20 * PRIME), np.zeros(20 * PRIME)) for _ in range(5)]
    plans = [comm.Allreduce_init(x, y, algorithm="ring") for x, y in arrays]
    together = threading.Barrier(2)
    wrong = []

    def start_often(number):
        x, y = arrays[number]
        for start in range(300):
            x[:] = start + RANK + number
            together.wait()
            plans[number].Start()
            plans[number].Wait()
            if not (y == SIZE * (start + number) + SIZE * (SIZE - 1) / 2).all():
                wrong.append((number, start))

    threads = [threading.Thread(target=start_often, args=(number,)) for number in (0, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    for plan in plans:
        plan.Free()


class Interrupted(Exception):
    """What a signal handler raises."""


def interrupted_in(function, name):
    """Call it; a signal comes when it calls a function with that name beside the steps of calls. Whether one has come."""
    called = []

    def profile(frame, event, _):
        room = Path(frame.f_code.co_filename).parent.name
        if event == "call" and frame.f_code.co_name == name and room in ("progress", "execute"):
            sys.setprofile(None)
            called.append(name)
            signal.raise_signal(signal.SIGUSR1)

    def handler(*_):
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, handler)
    sys.setprofile(profile)
    try:
        function()
    except Interrupted:
        pass
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGUSR1, before)
    return bool(called)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("where", ["attend_all", "_make_tasks", "as_task", "_enter", "_admit", "next", "_let_run", "start"])
@pytest.mark.parametrize("call", ["Start", "Wait"])
def test_a_handler_that_raises_while_a_plan_becomes_a_task(comm, call, where):
    """The plan goes on: a later Wait ends, and so do those of the other ranks."""
    x = np.full(PRIME, RANK + 1.0)
    y = np.zeros(PRIME)
    plan = comm.Allreduce_init(x, y, algorithm="ring")
    if call == "Start":  # it becomes a task at once where another task is under way
        other = comm.Iallreduce(np.ones(PRIME), np.zeros(PRIME), algorithm="ring") if RANK == 0 else None
    WORLD.Barrier()
    if RANK == SIZE - 1 and SIZE > 1:
        time.sleep(0.02)
    if call == "Wait" or RANK:
        plan.Start()
    if RANK == 0:
        interrupted_in(getattr(plan, call), where)
    if call == "Start" and RANK:
        other = comm.Iallreduce(np.ones(PRIME), np.zeros(PRIME), algorithm="ring")
    plan.Wait()
    same(y, np.full(PRIME, SIZE * (SIZE + 1) / 2))
    if call == "Start":
        other.Wait()
    plan.Free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("where", [
    "_is_left_unattended", "_require_startable", "_new_record", "run_as_task", "_new_task", "submit",
])  # fmt: skip
def test_a_handler_that_raises_before_a_plan_has_begun(comm, where):
    """It is started, or may be started again; it was neither."""
    y = np.zeros(PRIME)
    plan = comm.Allreduce_init(np.full(PRIME, RANK + 1.0), y, algorithm="ring")
    # beside a task under way the plan becomes one, too, unless that has ended meanwhile
    other = comm.Iallreduce(np.ones(PRIME), np.zeros(PRIME), algorithm="ring") if RANK == 0 else None
    if RANK == 0:
        interrupted_in(plan.Start, where)
    if RANK or not plan.in_flight:
        plan.Start()
    if RANK:
        other = comm.Iallreduce(np.ones(PRIME), np.zeros(PRIME), algorithm="ring")
    plan.Wait()
    same(y, np.full(PRIME, SIZE * (SIZE + 1) / 2))
    other.Wait()
    plan.Free()


def test_a_handler_that_raises_where_a_plan_is_about_to_begin(comm, monkeypatch):
    y = np.zeros(PRIME)
    plan = comm.Allreduce_init(np.full(PRIME, RANK + 1.0), y, algorithm="ring")
    for _ in range(2):
        plan.Start()
        plan.Wait()
    y[:] = 0

    def raises():
        raise Interrupted

    monkeypatch.setattr(scheduled_call, "perf_counter", raises)
    with suppress(Interrupted):  # with some engines none is asked
        plan.Start()
    monkeypatch.undo()
    if not plan.in_flight:
        plan.Start()
    plan.Wait()
    same(y, np.full(PRIME, SIZE * (SIZE + 1) / 2))
    plan.Free()


@pytest.mark.mpi(min_size=2)
def test_a_plan_that_has_ended_is_under_way_no_more(comm, monkeypatch):
    """Another thread advances it: where its owner sees the end earlier, it starts a plan that is then forgotten."""
    plans = [comm.Allreduce_init(np.ones(PRIME), np.zeros(PRIME), algorithm="ring") for _ in range(2)]
    advance = scheduled_call.ScheduledCall.go_on
    under_way = []

    def go_on(plan, *seconds):
        moved = advance(plan, *seconds)
        if plan._has_ended:
            under_way.append(PROGRESS.is_unattended(plan))
        return moved

    monkeypatch.setattr(scheduled_call.ScheduledCall, "go_on", go_on)
    for start in range(20):
        if start % SIZE == RANK:
            time.sleep(0.001)
        for plan in plans:
            plan.Start()
        for plan in plans:
            plan.Wait()
    assert not any(under_way)
    for plan in plans:
        plan.Free()


def test_a_plan_is_freed_after_its_wait_only(comm):
    """Whether it has ended before is chance."""
    plan = comm.Allreduce_init(np.ones(PRIME), np.zeros(PRIME), algorithm="ring")
    plan.Start()
    WORLD.Barrier()
    with pytest.raises(RuntimeError, match="Free on a plan in flight, call Wait first"):
        plan.Free()
    plan.Wait()
    plan.Free()


def test_the_status_of_a_plan_is_that_of_no_message(comm):
    plan = comm.Allreduce_init(np.ones(PRIME), np.zeros(PRIME), algorithm="ring")
    for by in ("Wait", "Test"):
        status = MPI.Status()
        status.Set_source(3)
        status.Set_elements(MPI.BYTE, 5)
        plan.Start()
        while not getattr(plan, by)(status):
            pass
        assert (status.source, status.Get_count(MPI.BYTE), status.cancelled) == (MPI.ANY_SOURCE, 0, False)
    plan.Free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("among", ["blocking", "nonblocking", "nothing"])
def test_a_plan_that_other_ranks_start_late(comm, among):
    """It is in flight from its start on, whatever it has become meanwhile."""
    x = np.full(PRIME, RANK + 1.0)
    y = np.zeros(PRIME)
    plan = comm.Allreduce_init(x, y, algorithm="ring")
    for seconds in (0, 0.001, 0.05):
        if RANK == 0:
            plan.Start()
            assert plan.in_flight and not plan.Test()
            with pytest.raises(RuntimeError, match="in flight"):
                plan.Free()
            time.sleep(seconds)
            assert plan.in_flight
        WORLD.Barrier()
        if RANK:
            plan.Start()
        if among == "blocking":
            z = np.zeros(PRIME)
            comm.Allreduce(np.ones(PRIME), z, algorithm="ring")
            same(z, np.full(PRIME, 1.0 * SIZE))
        elif among == "nonblocking":
            z = np.zeros(PRIME)
            comm.Iallreduce(np.ones(PRIME), z, algorithm="ring").Wait()
            same(z, np.full(PRIME, 1.0 * SIZE))
        plan.Wait()
        assert not plan.in_flight
        same(y, np.full(PRIME, SIZE * (SIZE + 1) / 2))
    plan.Free()


@pytest.mark.mpi(min_size=2)
def test_a_communicator_that_is_freed_before_its_plan_has_ended():
    comm = mpicoll.Communicator(WORLD.Dup())
    y = np.zeros(PRIME)
    plan = comm.Allreduce_init(np.full(PRIME, 2.0), y, algorithm="ring")
    for _ in range(2):
        plan.Start()
        plan.Wait()
    if RANK == 0:
        plan.Start()
    WORLD.Barrier()
    if RANK:
        plan.Start()
    comm.Free()
    same(y, np.full(PRIME, 2.0 * SIZE))


def test_wait_without_start_returns(comm):
    plan = comm.Allreduce_init(MPI.IN_PLACE, np.zeros(4), algorithm="ring")
    assert plan.Wait() is True and plan.Test() is True
    plan.Free()
    plan.Free()  # as often as one likes


def test_wrong_order_of_calls(comm):
    plan = comm.Allreduce_init(MPI.IN_PLACE, np.zeros(4), algorithm="ring")
    plan.Start()
    for wrong in (plan.Start, plan.Free):
        if plan.step is not None:  # at one rank there is nothing to wait for
            with pytest.raises(RuntimeError, match="in flight"):
                wrong()
    plan.Wait()
    plan.Free()
    with pytest.raises(RuntimeError, match="was freed"):
        plan.Start()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("by", ["Wait", "Test"])
def test_a_native_plan_that_other_ranks_do_not_start(by):
    """It ends with the limit, however this rank waits, and can be freed then."""
    comm = mpicoll.Communicator(WORLD.Dup())
    mpicoll.Communicator(comm, timeout=0.3)
    plan = comm.Allreduce_init(np.ones(100), np.zeros(100), algorithm="native")
    if RANK == 0:
        plan.Start()
        with pytest.raises(RuntimeError, match="in flight"):
            plan.Free()
        with pytest.raises(mpicoll.CollectiveTimeout, match="Allreduce_init of 800 bytes"):
            finish(plan, by)
    WORLD.Barrier()
    plan.Free()
    assert not plan.in_flight


def test_where(comm):
    plan = comm.Allreduce_init(MPI.IN_PLACE, np.zeros(4), algorithm="ring")
    assert plan.where() == "Allreduce (ring): idle"
    if SIZE > 1:
        plan.step = 0
        left, right = (RANK - 1) % SIZE, (RANK + 1) % SIZE
        assert plan.where().startswith(f"Allreduce (ring): round 1 of {2 * (SIZE - 1)}, ")
        assert f"sending to rank {right}" in plan.where() and f"receiving from rank {left}" in plan.where()
        plan.step = None
    plan.Free()


def test_plans_count_what_they_send(comm):
    plan = comm.Allreduce_init(MPI.IN_PLACE, np.zeros(SIZE), algorithm="ring")
    assert comm.sent == (0, 0)
    for repetition in (1, 2):
        plan.Start()
        plan.Wait()
        assert comm.sent == (2 * (SIZE - 1) * repetition, 16 * (SIZE - 1) * repetition)
    plan.Free()


def test_a_plan_keeps_its_array(comm):
    """The caller may forget the array; the plan writes to memory that is still there."""
    data = np.ones(PRIME)
    plan, alive = comm.Allreduce_init(MPI.IN_PLACE, data, algorithm="ring"), weakref.ref(data)
    del data
    gc.collect()
    assert alive() is not None
    plan.Start()
    plan.Wait()
    same(alive(), np.full(PRIME, 1.0 * SIZE))
    plan.Free()


def test_plans_that_nobody_freed_end_with_the_communicator():
    comm = mpicoll.Communicator(MPI.COMM_WORLD.Dup())
    plan = comm.Allreduce_init(MPI.IN_PLACE, np.zeros(4), algorithm="ring")
    comm.Free()
    with pytest.raises(RuntimeError, match="was freed"):
        plan.Start()


# ---- plans kept for repeated blocking calls

REPEATED = [("Allreduce", word) for word in words("Allreduce")]
REPEATED += [("Bcast", "binomial"), ("Allgather", "bruck"), ("Reduce", "linear")]


@pytest.mark.parametrize(("method", "word"), REPEATED)
def test_repeated_calls(comm, method, word):
    case = Case(method)
    for _ in range(3):
        same(case.call(comm, algorithm=word, segment_bytes=SEGMENT), expected(method))


@pytest.mark.parametrize("word", [None, "ring"])
def test_memory_is_not_kept_alive(comm, word):
    send, result = np.ones(1 << 14), np.zeros(1 << 14)
    comm.Allreduce(send, result, algorithm=word)
    alive = weakref.ref(send), weakref.ref(result)
    del send, result
    gc.collect()
    assert all(one() is None for one in alive)


def test_memory_that_was_freed_and_taken_again(comm):
    """Another array at an old address has another length, type or op."""
    others = [(PRIME, "f8", MPI.SUM), (2 * PRIME, "f4", MPI.SUM), (PRIME, "i8", MPI.MAX), (PRIME, "f8", MPI.MAX)]
    for repetition in range(6):
        for count, dtype, op in others:
            data = np.full(count, RANK + repetition, dtype)
            comm.Allreduce(MPI.IN_PLACE, data, op, algorithm="circulant")
            value = sum(range(SIZE)) + SIZE * repetition if op == MPI.SUM else SIZE - 1 + repetition
            same(data, np.full(count, value, dtype))
            del data


def test_one_address_many_shapes(comm):
    """The same memory as a send buffer, a receive buffer, of several types and roots."""
    memory = np.zeros(2 * PRIME * SIZE)
    for _ in range(2):
        for dtype in ("f8", "i4", "u1"):
            view = memory.view(dtype)[: PRIME * SIZE]
            for root in range(SIZE):
                view[:] = RANK
                comm.Bcast(view[:PRIME], root, algorithm="binomial")
                same(view[:PRIME], np.full(PRIME, root, dtype))
                comm.Gather(np.full(PRIME, RANK, dtype), view if RANK == root else None, root, algorithm="binomial")
                if RANK == root:
                    same(view, np.repeat(np.arange(SIZE), PRIME).astype(dtype))


def test_more_buffers_than_are_kept(comm):
    buffers = [np.empty(5) for _ in range(KNOWN_CALLS + 9)]
    for _ in range(2):
        for buffer in buffers:
            buffer[:] = RANK
            comm.Allreduce(MPI.IN_PLACE, buffer, algorithm="recursive_doubling")
    for buffer in buffers:
        same(buffer, np.full(5, 1.0 * sum(range(SIZE))))


def test_an_op_whose_handle_is_taken_again(comm):
    """A user's op is never recognised by its handle alone."""
    for factor in (1, 2, 3):
        op = MPI.Op.Create(lambda a, b, _, factor=factor: np.frombuffer(b, "f8").fill(factor), True)
        data = np.zeros(4)
        comm.Allreduce(MPI.IN_PLACE, data, op, algorithm="recursive_doubling")
        same(data, np.full(4, float(factor if SIZE > 1 else 0)))
        op.Free()


# Plans that ranks start in different orders.


@pytest.mark.parametrize("shared", [False, True], ids=["ordinary", "shared"])
@pytest.mark.parametrize("count", [PRIME, 200_000])
def test_ranks_start_plans_in_different_orders(comm, count, shared):
    """More plans than run at a time, and more than there are orders of messages between two ranks."""
    made = comm.zeros if shared else np.zeros
    words_of_plans = ["ring", "direct", "recursive_doubling", "halving_doubling"] * 3
    given = [made(count) for _ in words_of_plans]
    taken = [made(count) for _ in words_of_plans]
    plans = [comm.Allreduce_init(*case[:2], algorithm=case[2]) for case in zip(given, taken, words_of_plans)]
    chance = np.random.default_rng(RANK)
    for lap in range(3):
        for number, (sent, received) in enumerate(zip(given, taken)):
            fill(sent, (number + 1) * (lap + 1) + RANK)
            received[...] = -1
        if RANK % 2 and lap == 2:  # one after the other, where others start them all
            for number in chance.permutation(len(plans)) if SIZE == 2 else range(len(plans)):
                plans[number].Start()
                plans[number].Wait()
        else:
            for number in chance.permutation(len(plans)) if lap < 2 else range(len(plans)):
                plans[number].Start()
            for number in chance.permutation(len(plans)):
                plans[number].Wait()
        for number, received in enumerate(taken):
            first = SIZE * (number + 1) * (lap + 1) + sum(range(SIZE))
            assert (received == first + SIZE * np.arange(count)).all(), (lap, number)
    for plan in plans:
        plan.Free()


def test_a_plan_outlives_as_many_others_as_a_tag_of_mpi_has_numbers(comm):
    """As many plans as MPI's tags tell apart were made and freed since: the later one has another tag in shared memory."""
    context = Context.of(comm)
    first, second = np.full(3000, 1.0), np.full(3000, 10.0)
    sums = np.empty(3000), np.empty(3000)
    plans = [comm.Allreduce_init(first, sums[0], algorithm="ring")]
    context._plans = count_from(1 + (1 << 2 * context.channel.number_bit))
    plans.append(comm.Allreduce_init(second, sums[1], algorithm="ring"))
    assert plans[0].tag != plans[1].tag and plans[0].place == plans[1].place
    in_order = context.links is None or SIZE != len(context.links.ranks) + 1
    for plan in plans if in_order else plans[:: (-1) ** RANK]:
        plan.Start()
    for plan, result, added in zip(plans, sums, (first, second)):
        plan.Wait()
        same(result, SIZE * added)
        plan.Free()


def test_plans_and_calls_in_different_orders(comm):
    """A call beside plans comes first on one rank and last on the others."""
    plans, results = [], []
    for _ in range(6):
        results.append(np.zeros(PRIME))
        plans.append(comm.Allreduce_init(np.ones(PRIME), results[-1], algorithm="ring"))
    for lap in range(3):
        result = np.zeros(PRIME)
        if RANK == lap % SIZE:
            comm.Iallreduce(np.ones(PRIME), result, algorithm="ring").Wait()
        for plan in plans:
            plan.Start()
        if RANK != lap % SIZE:
            comm.Iallreduce(np.ones(PRIME), result, algorithm="ring").Wait()
        for plan in plans:
            plan.Wait()
        for array in (result, *results):
            assert (array == SIZE).all()
            array[:] = 0
    for plan in plans:
        plan.Free()
