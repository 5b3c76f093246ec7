"""Repeated calls of plain arrays inside a node: they pass without Python, and nothing else does."""

import gc
import re
import signal
import threading
import time
from functools import partial

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll import engine
from mpicoll.errors import CollectiveMismatch, MpicollError
from mpicoll.failure import ENDED
from mpicoll.progress import PROGRESS
from mpicoll.shared_memory import HEAP, TASKS, Pipe
from tests.support.cases import RANK, SIZE, WORLD, same
from tests.support.forked import status_of_child

pytestmark = [
    pytest.mark.mpi(min_size=2),
    pytest.mark.interpreters("c"),
    pytest.mark.skipif(not engine.has_doors(), reason=f"no doors: {engine.status().reason}"),
]


def passed(comm, call):
    """Whether the call went through a door: with messages that doors count."""
    recorder = comm._context.recorder
    before = recorder.messages
    call()
    return recorder.messages > before


def known(comm, x, **options):
    """Make a call until doors know it; x keeps its values."""
    before = x.copy()
    for _ in range(4):
        x[:] = before
        comm.Allreduce(MPI.IN_PLACE, x, **options)
    x[:] = before
    return x


def test_a_call_without_options_passes_from_the_fourth_time_on(comm):
    x = np.zeros(100)
    assert [passed(comm, lambda: comm.Allreduce(MPI.IN_PLACE, x)) for _ in range(5)] == [False, False, False, True, True]


def test_what_differs_goes_the_long_way(comm):
    x = known(comm, np.ones(8), algorithm="ring")
    y = np.ones(8)
    shared = comm.empty(8)  # from now on it matters where arrays lie
    shared[:] = 1
    known(comm, x, algorithm="ring")
    readonly = x.view()
    readonly.flags.writeable = False
    integers = x.view("i8")
    allreduce = comm.Allreduce
    assert passed(comm, lambda: allreduce(MPI.IN_PLACE, x, algorithm="ring"))
    assert not passed(comm, lambda: allreduce(MPI.IN_PLACE, y, algorithm="ring"))
    assert not passed(comm, lambda: allreduce(MPI.IN_PLACE, shared, algorithm="ring"))
    assert not passed(comm, lambda: allreduce(MPI.IN_PLACE, x, algorithm="tree"))
    assert not passed(comm, lambda: allreduce(MPI.IN_PLACE, x, algorithm="ring", segment_bytes=64))
    assert not passed(comm, lambda: allreduce(MPI.IN_PLACE, x, op=MPI.MAX, algorithm="ring"))
    assert not passed(comm, lambda: allreduce(MPI.IN_PLACE, x[:4], algorithm="ring"))
    assert not passed(comm, lambda: allreduce(MPI.IN_PLACE, integers, algorithm="ring"))
    assert not passed(comm, lambda: allreduce([x, 8, MPI.DOUBLE], y, algorithm="ring"))
    with pytest.raises(mpicoll.BufferError):
        allreduce(MPI.IN_PLACE, readonly, algorithm="ring")
    with pytest.raises(mpicoll.ArgumentError):
        allreduce(MPI.IN_PLACE, x, algorithm="rings")


def test_arrays_elsewhere_pass_where_nothing_is_shared(comm):
    """As long as they are as far apart as those of the call that is known."""
    call = partial(comm.Allreduce, algorithm="ring")
    sent, received = np.ones(8), np.empty(8)
    for _ in range(3):
        call(sent, received)
    for count in range(3):
        elsewhere, result = np.full(8, float(count)), np.empty(8)
        assert passed(comm, lambda: call(elsewhere, result)) == (not HEAP.in_use)
        same(result, np.full(8, float(count * SIZE)))
    whole = np.ones(12)
    with pytest.raises(mpicoll.BufferError, match="overlap"):
        call(whole[:8], whole[4:])
    assert not passed(comm, lambda: call(whole[:8], whole[:8]))
    same(whole, np.array([SIZE] * 8 + [1] * 4, "f8"))


def test_lists_pass(comm):
    """As their arrays do: compared item by item each time, and read once."""
    x, y = [np.ones(8), 8, MPI.DOUBLE], [np.empty(8), MPI.DOUBLE]
    call = partial(comm.Allreduce, x, y, algorithm="ring")
    for _ in range(3):
        call()
    elsewhere = np.full(8, 2.0)
    for message in x, y:
        message[0] = elsewhere if message is x else np.empty(8)
    assert passed(comm, call) == (not HEAP.in_use)
    same(y[0], np.full(8, 2.0 * SIZE))
    x[1] = 4
    with pytest.raises(mpicoll.BufferError, match="expected 32"):
        call()
    x[1] = 9
    with pytest.raises(mpicoll.BufferError):
        call()
    x[1:] = [8, MPI.INT64_T]
    with pytest.raises(mpicoll.BufferError, match="types differ"):
        call()
    x[1:] = [MPI.DOUBLE]
    assert not passed(comm, call)
    same(y[0], np.full(8, 2.0 * SIZE))
    derived = MPI.DOUBLE.Create_contiguous(2).Commit()
    assert not any([passed(comm, lambda: comm.Bcast([x[0], 4, derived], algorithm="binomial")) for _ in range(4)])
    derived.Free()


def test_bytes_that_are_not_aligned_go_the_long_way(comm, monkeypatch):
    """Where they are packed: loops of C may assume that an element lies where its type asks for."""
    monkeypatch.setattr(HEAP, "in_use", False)  # what tests before have made
    memory = np.zeros(9000, np.uint8)

    def summed(at):
        x = memory[at:][:8000]
        x[:] = np.frombuffer(np.full(1000, RANK + 1.0).tobytes(), np.uint8)
        by_door = passed(comm, lambda: comm.Allreduce(MPI.IN_PLACE, [x, MPI.DOUBLE], algorithm="ring"))
        same(np.frombuffer(x.tobytes()), np.full(1000, SIZE * (SIZE + 1) / 2))
        return by_door

    start = -memory.ctypes.data % 8
    assert [summed(start) for _ in range(5)][-1] and summed(start + 16) and summed(start + 8)
    assert not summed(start + 1) and not summed(start + 4)


@pytest.mark.parametrize("form", ["Allreduce", "Iallreduce"])
def test_a_list_that_changes_while_a_call_waits(comm, form):
    """The arrays that it had get the result, whether a rank waits in the extension or in Python by then."""
    for late in (0.02, 0.3):
        message = [np.ones(100), MPI.DOUBLE]
        for _ in range(4):
            message[0][:] = 1
            request = getattr(comm, form)(MPI.IN_PLACE, message, algorithm="ring")
            request is None or request.Wait()
        x, other = message[0], np.zeros(100)
        x[:] = 1

        def change():
            time.sleep(late / 2)
            message[0] = other

        thread = threading.Thread(target=change)
        WORLD.Barrier()
        if RANK == 0:
            time.sleep(late)
        else:
            thread.start()
        request = getattr(comm, form)(MPI.IN_PLACE, message, algorithm="ring")
        request is None or request.Wait()
        if RANK:
            thread.join()
        same(x, np.full(100, float(SIZE)))
        assert not other.any()


def test_an_array_that_was_resized_is_another(comm):
    x = known(comm, np.ones(8), algorithm="ring")
    x.resize(4, refcheck=False)
    assert not passed(comm, lambda: comm.Allreduce(MPI.IN_PLACE, x, algorithm="ring"))
    same(x, np.full(4, float(SIZE)))


@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_calls_of_which_some_pass(comm, seed):
    """Each rank uses arrays of its own choice: what passes on one goes the long way on another."""
    program = np.random.default_rng(seed)
    own = np.random.default_rng([seed, RANK])
    counts = (1, SIZE, 700, 70_000)
    pools = {count: [np.zeros(count, "i8") if n % 2 else comm.empty(count, "i8") for n in range(6)] for count in counts}
    results = {count: np.zeros(count, "i8") for count in counts}
    through_doors = 0
    for step in range(150):
        count = counts[program.integers(len(counts))]
        kind, root, op = program.integers(6), int(program.integers(SIZE)), (MPI.SUM, MPI.MAX)[program.integers(2)]
        used = pools[count][int(own.integers(6) if step % 3 else 0)]
        used[:] = np.arange(count) * (RANK + 1) + step
        everyone = np.array([np.arange(count) * (rank + 1) + step for rank in range(SIZE)])
        reduced = everyone.sum(0) if op == MPI.SUM else everyone.max(0)
        before = comm._context.recorder.messages
        if kind == 0:
            comm.Allreduce(used, results[count], op)
            same(results[count], reduced)
        elif kind == 1:
            comm.Allreduce(MPI.IN_PLACE, used, op)
            same(used, reduced)
        elif kind == 2:
            comm.Bcast(used, root)
            same(used, everyone[root])
        elif kind == 3:
            comm.Reduce(used, results[count] if root == RANK else None, op, root)
            assert root != RANK or np.array_equal(results[count], reduced)
        elif kind == 4:
            all_of_them = np.empty((SIZE, count), "i8")
            comm.Allgather(used, all_of_them)
            same(all_of_them, everyone)
        else:
            request = comm.Iallreduce(used, results[count], op)
            comm.Bcast(np.zeros(3), root)
            request.Wait()
            same(results[count], reduced)
        through_doors += comm._context.recorder.messages - before
    assert through_doors


def test_memory_that_moved(comm):
    """Another shared array at the address of one that is gone."""
    count = 10_000_000
    for value in range(1, 4):
        x = comm.empty(count, "u1")
        for _ in range(4):
            x[:] = value
            comm.Bcast(x, root=0)
            comm.Reduce(MPI.IN_PLACE if RANK == 0 else x, x if RANK == 0 else None, MPI.MAX)
            assert (x == value).all()
        del x
        gc.collect()


@pytest.mark.parametrize("late", [False, True])
def test_calls_that_differ(late):
    """The same error on all ranks, whether they wait in the extension or in Python by then."""
    comm = mpicoll.Communicator(WORLD.Dup())
    one, other = known(comm, np.ones(100)), known(comm, np.ones(200))
    if late and RANK == 0:
        time.sleep(0.3)
    with pytest.raises(CollectiveMismatch) as caught:
        comm.Allreduce(MPI.IN_PLACE, one if RANK == 0 else other)
    assert len(set(WORLD.allgather(str(caught.value)))) == 1
    assert "Allreduce of 800 bytes" in str(caught.value) and "Allreduce of 1600 bytes" in str(caught.value)
    with pytest.raises(MpicollError, match="cannot be used any more"):
        comm.Allreduce(MPI.IN_PLACE, one)
    comm.Free()


def summed(comm, x, op=MPI.SUM):
    comm.Allreduce(MPI.IN_PLACE, x, op, algorithm="ring")


def sent(comm, x, root=0):
    comm.Bcast(x, root, algorithm="binomial")


#: what rank 0 calls, and what all others call, on an array of 800 bytes
DIFFERENT = {
    "op": (summed, partial(summed, op=MPI.MAX)),
    "type": (summed, lambda comm, x: summed(comm, x.view("i8"))),
    "size of type": (summed, lambda comm, x: summed(comm, x.view("f4"))),
    "root": (sent, partial(sent, root=1)),
    "collective": (summed, sent),
}


@pytest.mark.parametrize("shared_memory", ["on", "off"])
@pytest.mark.parametrize("kind", DIFFERENT)
def test_calls_that_pass_and_differ(kind, shared_memory, monkeypatch):
    """Where ranks need not wait for each other in them, the next call shows it."""
    monkeypatch.setenv("MPICOLL_SHARED_MEMORY", shared_memory)
    comm = mpicoll.Communicator(WORLD.Dup())
    x = np.zeros(100)
    for call in DIFFERENT[kind]:
        for _ in range(4):
            call(comm, x)
    mine, last = DIFFERENT[kind][RANK > 0], known(comm, np.ones(3), algorithm="ring")
    with pytest.raises(CollectiveMismatch) as caught:
        mine(comm, x)
        summed(comm, last)
    assert len(set(WORLD.allgather(str(caught.value)))) == 1
    assert re.search(r"rank 0: (Allreduce|Bcast) of 800 bytes", str(caught.value)), caught.value
    comm.Free()


def test_calls_that_passed_are_remembered():
    """A root has sent more than the others receive: the report names the call that passed there."""
    comm = mpicoll.Communicator(WORLD.Dup())
    x, y = known(comm, np.ones(100)), np.ones(200)
    for _ in range(4):
        comm.Bcast(y, root=0, algorithm="binomial")
    if RANK == 0:
        assert passed(comm, lambda: comm.Bcast(y, root=0, algorithm="binomial"))
    WORLD.Barrier()
    with pytest.raises(CollectiveMismatch, match="(?s)do not have in common.*rank 0: Bcast of 1600 bytes, root 0"):
        comm.Allreduce(MPI.IN_PLACE, x)
    comm.Free()


def test_a_handler_that_raises_while_a_call_waits():
    """It ends the call on this rank where nothing moves for a second; the other ranks are told."""
    comm = mpicoll.Communicator(WORLD.Dup())
    x = known(comm, np.ones(100))
    WORLD.Barrier()

    def interrupt(_, frame):
        while frame is not None and frame.f_code.co_name != "wait_for":
            frame = frame.f_back
        if frame is not None:
            raise KeyboardInterrupt
        signal.setitimer(signal.ITIMER_REAL, 0.01)  # between two calls: later

    if RANK == 0:
        previous = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            while True:
                comm.Allreduce(MPI.IN_PLACE, x)
        signal.signal(signal.SIGALRM, previous)
    else:
        with pytest.raises(MpicollError, match="KeyboardInterrupt"):
            while True:
                comm.Allreduce(MPI.IN_PLACE, x)
                time.sleep(1.5)
    with pytest.raises(MpicollError, match="cannot be used any more"):
        comm.Allreduce(MPI.IN_PLACE, x)
    comm.Free()


def test_a_handler_that_makes_the_same_call(comm):
    """While a call waits: all ranks make it at the same place."""
    x, y = known(comm, np.ones(100)), np.ones(100)
    made = []

    def call(*_):
        made.append(comm.Allreduce(MPI.IN_PLACE, y))

    previous = signal.signal(signal.SIGUSR1, call)
    try:
        for step in range(4):
            x[:] = 1
            comm.Allreduce(MPI.IN_PLACE, x)
            same(x, np.full(100, float(SIZE)))
            y[:] = 1
            signal.raise_signal(signal.SIGUSR1)
            same(y, np.full(100, float(SIZE)))
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert len(made) == 4


def test_who_listens_to_all_calls_hears_of_all(comm):
    x = known(comm, np.ones(100))
    heard = []
    ENDED.append(lambda text, *_: heard.append(text))
    try:
        for _ in range(3):
            comm.Allreduce(MPI.IN_PLACE, x)
    finally:
        ENDED.pop()
    assert heard == ["Allreduce of 800 bytes, SUM, float64"] * 3


def test_settings_that_close_doors(comm):
    """Results are compared after each call; a limit of waiting lets calls pass, but not MPI's own, which the watcher sees."""
    x = known(comm, np.ones(100))
    native = partial(comm.Bcast, np.zeros(1), algorithm="native")
    for _ in range(4):
        native()
    assert comm._context.recorder.passed
    mpicoll.Communicator(comm, timeout=60)
    call = partial(comm.Allreduce, MPI.IN_PLACE, x)
    assert [passed(comm, call) for _ in range(4)] == [False, False, True, True]
    for _ in range(4):
        native()
    assert not comm._context.recorder.passed
    compared = mpicoll.Communicator(WORLD.Dup(), check="digest")
    assert not any([passed(compared, partial(compared.Allreduce, MPI.IN_PLACE, x)) for _ in range(5)])
    compared.Free()


@pytest.mark.parametrize("limit", [0.4, 0.05])
def test_a_limit_of_waiting_ends_a_call_that_has_passed(limit):
    """The error names the call, and who waits for whom, as if the call had gone the long way; the limit may come later."""
    comm = mpicoll.Communicator(WORLD.Dup())
    x = known(comm, np.ones(100), algorithm="ring")
    mpicoll.Communicator(comm, timeout=limit)
    if RANK == 0:
        known(comm, x, algorithm="ring")
        with pytest.raises(mpicoll.CollectiveTimeout) as caught:
            comm.Allreduce(MPI.IN_PLACE, x, algorithm="ring")
        text = str(caught.value)
        assert "Allreduce of 800 bytes, SUM, float64" in text and f"a timeout after {limit} s" in text
    else:
        known(comm, x, algorithm="ring")
        while not comm._context.broken:
            time.sleep(0.01)
            comm._context.look_around()
    WORLD.Barrier()
    comm.Free()


def test_calls_that_are_always_compared_are_kept():
    """Small ones that MPI serves pass doors, reductions pass them or are not bound anew."""
    comm = mpicoll.Communicator(WORLD.Dup(), check="always")
    small, large = np.ones(1), np.ones(1 << 17)
    for _ in range(3):
        comm.Bcast(small)
        comm.Allreduce(MPI.IN_PLACE, large)
    assert any("Allreduce of 1048576 bytes" in entry.text for entry in comm._context.cache.values())
    before = len(comm._context.recorder.passed)
    comm.Bcast(small)
    assert len(comm._context.recorder.passed) == before + 1
    if comm._context.links is not None:  # their messages name them
        x = known(comm, np.ones(100), algorithm="ring")
        assert passed(comm, lambda: comm.Allreduce(MPI.IN_PLACE, x, algorithm="ring"))
    comm.Free()


def test_a_communicator_that_was_freed():
    comm = mpicoll.Communicator(WORLD.Dup())
    x = known(comm, np.ones(100))
    comm.Free()
    with pytest.raises(mpicoll.ArgumentError, match="was freed"):
        comm.Allreduce(MPI.IN_PLACE, x)


def test_more_calls_than_are_kept(comm):
    """Operations that made room for others are not used any more."""
    first = known(comm, np.ones(1000), algorithm="ring")
    for count in range(1, 150):
        known(comm, np.ones(count), algorithm="ring")
    first[:] = 1
    assert not passed(comm, lambda: comm.Allreduce(MPI.IN_PLACE, first, algorithm="ring"))
    same(first, np.full(1000, float(SIZE)))


def test_threads_on_their_own_communicators():
    comms = [mpicoll.Communicator(WORLD.Dup()) for _ in range(3)]
    wrong = []

    def work(comm, count):
        x = np.empty(count)
        for _ in range(200):
            x[:] = RANK
            comm.Allreduce(MPI.IN_PLACE, x)
            if not (x == sum(range(SIZE))).all():
                wrong.append(count)

    for number, comm in enumerate(comms):  # ranks connect one after the other
        known(comm, np.ones(10 * (number + 1)))
    threads = [threading.Thread(target=work, args=(comm, 10 * (n + 1))) for n, comm in enumerate(comms)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    for comm in comms:
        comm.Free()


@pytest.mark.skipif(not PROGRESS.threaded, reason="MPI does not grant THREAD_MULTIPLE")
def test_a_child_that_another_thread_forks_while_a_call_waits(comm):
    """It computes, writes to its own pages of shared arrays, and ends; the call goes on in its parent."""
    x = comm.empty(1000)
    x[:] = 1
    known(comm, x, algorithm="ring")
    statuses = []

    def compute():
        x[:] = -2
        made = comm.zeros(1000)
        made += x
        comm._context.doors.clear()
        gc.collect()
        return x @ made == 4000

    def fork():
        while not comm._context.recorder.is_passing:
            time.sleep(1e-4)
        for _ in range(5):
            statuses.append(status_of_child(compute))
        for rank in range(1, SIZE):
            WORLD.send(None, rank)

    thread = threading.Thread(target=fork)
    if RANK:
        WORLD.recv(source=0)
    else:
        thread.start()
    assert passed(comm, lambda: comm.Allreduce(MPI.IN_PLACE, x, algorithm="ring"))
    same(x, np.full(1000, float(SIZE)))
    if RANK == 0:
        thread.join()
        assert statuses == [0] * 5
    assert passed(comm, lambda: comm.Allreduce(MPI.IN_PLACE, x, algorithm="ring"))
    same(x, np.full(1000, float(SIZE) ** 2))


def begun(comm, x, count=1, **options):
    """Begin a call that does not block and wait for it, several times; how often it passed."""
    times = 0
    for _ in range(count):
        before = comm._context.recorder.messages
        comm.Iallreduce(MPI.IN_PLACE, x, **options).Wait()
        times += comm._context.recorder.messages > before
    return times


def test_calls_that_do_not_block_pass_too(comm):
    x = np.ones(100)
    assert [begun(comm, x, algorithm="ring") for _ in range(5)] == [0, 0, 1, 1, 1]
    same(x, np.full(100, float(SIZE) ** 5))
    elsewhere = np.ones(100)
    assert begun(comm, elsewhere, algorithm="ring") == (not HEAP.in_use)
    same(elsewhere, np.full(100, float(SIZE)))


@pytest.mark.parametrize("wait", [MPI.Request.Waitall, MPI.Request.Waitany, MPI.Request.Testall, MPI.Request.Waitsome])
def test_requests_of_calls_that_have_ended_at_once(comm, wait):
    """They are active, as the requests of other calls: each is found once."""
    arrays = [np.ones(100), np.ones(200)]
    for x in arrays:
        begun(comm, x, 4, algorithm="recursive_doubling")
        x[:] = 1
    requests = [comm.Iallreduce(MPI.IN_PLACE, x, algorithm="recursive_doubling") for x in arrays]
    assert all(request != MPI.REQUEST_NULL for request in requests)
    found = 0
    while found < 2:
        answer = wait(requests)
        some = len(answer) if isinstance(answer, list) else 0
        found += {"Waitany": 1, "Waitsome": some}.get(wait.__name__, 2 * bool(answer))
    assert all(request == MPI.REQUEST_NULL for request in requests)
    for x in arrays:
        same(x, np.full_like(x, SIZE))


@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_calls_and_plans_with_late_ranks(comm, seed):
    """Whether a call ends at once, becomes a task, or is not known: ranks differ in that."""
    program = np.random.default_rng(seed)
    own = np.random.default_rng([seed, RANK])
    algorithms = ("ring", "recursive_doubling", "direct")
    counts = (1, 3 * SIZE, 700, 70_000)
    arrays = {count: [np.zeros(count, "i8"), comm.empty(count, "i8")] for count in counts}
    plans = []
    for number in range(5):  # more than there are pipes
        data = np.zeros(counts[number % 3], "i8")
        plans.append((comm.Allreduce_init(MPI.IN_PLACE, data, algorithm=algorithms[number % 3]), data))
    for step in range(120):
        count = counts[program.integers(len(counts))]
        algorithm = algorithms[program.integers(3)]
        if own.random() < 0.1:
            time.sleep(own.random() * 2e-3)
        if program.random() < 0.5:
            work = [arrays[count][own.integers(2)], np.zeros(count, "i8")][: 1 + program.integers(2)]
            for number, x in enumerate(work):
                x[:] = np.arange(count) * (RANK + 1) + step + number
            requests = [comm.Iallreduce(MPI.IN_PLACE, x, algorithm=algorithm) for x in work]
            if program.random() < 0.5:
                comm.Bcast(np.zeros(3), root=0)
            MPI.Request.Waitall(requests)
            for number, x in enumerate(work):
                same(x, np.arange(count) * (SIZE * (SIZE + 1) // 2) + SIZE * (step + number))
        else:
            chosen = program.permutation(5)[: 1 + program.integers(3)]
            order = own.permutation(chosen) if step % 4 == 0 else chosen
            for number in order:
                plan, data = plans[number]
                data[:] = np.arange(len(data)) * (RANK + 1) + step
                plan.Start()
                with pytest.raises(RuntimeError, match="in flight"):
                    plan.Start()
            for number in own.permutation(order):
                plan, data = plans[number]
                plan.Wait()
                same(data, np.arange(len(data)) * (SIZE * (SIZE + 1) // 2) + SIZE * step)
    for plan, _ in plans:
        plan.Free()


@pytest.mark.parametrize("late", [False, True])
def test_calls_that_do_not_block_and_differ(late):
    """The same error on all ranks, whether a rank waits in a task or in the extension."""
    comm = mpicoll.Communicator(WORLD.Dup())
    one, other = np.ones(100), np.ones(200)
    for x in (one, other):
        begun(comm, x, 4, algorithm="ring")
    if late and RANK == 0:
        time.sleep(0.1)
    with pytest.raises(CollectiveMismatch) as caught:
        comm.Iallreduce(MPI.IN_PLACE, one if RANK == 0 else other, algorithm="ring").Wait()
    assert len(set(WORLD.allgather(str(caught.value)))) == 1
    comm.Free()


def test_a_plan_that_is_always_recorded(comm):
    """Where somebody listens, each Start is told of."""
    x = np.ones(100)
    plan = comm.Allreduce_init(MPI.IN_PLACE, x, algorithm="ring")
    heard = []
    ENDED.append(lambda text, *_: heard.append(text))
    try:
        for _ in range(2):
            plan.Start()
            plan.Wait()
    finally:
        ENDED.pop()
    plan.Free()
    assert heard == ["Allreduce (ring), a plan that was started"] * 2
    with pytest.raises(RuntimeError, match="freed"):
        plan.Start()


def started(plan):
    plan.Start()
    plan.Wait()


def plan_that_passes(comm, x, limit=1000):
    """A plan whose starts pass on all ranks: each rank knows it once a start has ended at once."""
    plan = comm.Allreduce_init(MPI.IN_PLACE, x, algorithm="ring")
    for _ in range(limit):
        if WORLD.allreduce(passed(comm, partial(started, plan)), MPI.LAND):
            return plan
    raise AssertionError("it does not pass")


def test_starts_of_plans_pass(comm):
    """On the arrays of the plan, each with what is in them then; they are counted, and their messages."""
    x = np.ones(100)
    plan = plan_that_passes(comm, x)
    recorder = comm._context.recorder
    for step in range(5):
        calls, messages = recorder.count, comm.sent[0]
        x[:] = RANK + step
        assert passed(comm, partial(started, plan))
        same(x, np.full(100, float(sum(range(SIZE)) + SIZE * step)))
        assert recorder.count == calls + 1 and comm.sent[0] == messages + 2 * (SIZE - 1)
    plan.Free()
    with pytest.raises(RuntimeError, match="freed"):
        plan.Start()


def test_starts_of_plans_that_do_not_pass(comm):
    """Where a task is under way, arrays may have another location, somebody listens, or starts are always recorded."""
    x, other = np.ones(100), np.ones(200)
    plan = plan_that_passes(comm, x)

    def passes():
        x[:] = RANK
        has_passed = passed(comm, partial(started, plan))
        same(x, np.full(100, float(sum(range(SIZE)))))
        return has_passed

    if RANK:
        request = comm.Iallreduce(MPI.IN_PLACE, other, algorithm="ring")
        assert not request.Test()
        x[:] = RANK
        assert not passed(comm, plan.Start)
    WORLD.Barrier()
    if not RANK:
        request = comm.Iallreduce(MPI.IN_PLACE, other, algorithm="ring")
        x[:] = RANK
        plan.Start()
    request.Wait()
    plan.Wait()
    same(x, np.full(100, float(sum(range(SIZE)))))

    plan.Free()
    plan = plan_that_passes(comm, x)
    HEAP._epoch[0] += 1
    assert not passes()
    ENDED.append(lambda *_: None)
    try:
        assert not any([passes() for _ in range(3)])
    finally:
        ENDED.pop()
    mpicoll.Communicator(comm, check="always")
    assert not any([passes() for _ in range(3)])
    plan.Free()


def test_a_start_that_passes_and_does_not_end_at_once(comm):
    """It goes on as a task, beside others, and its errors are told as those of all."""
    x, other = np.ones(100), np.ones(200)
    plan = plan_that_passes(comm, x)
    for late in (0, SIZE - 1):
        x[:], other[:] = RANK, 1
        WORLD.Barrier()
        if RANK == late:
            WORLD.Barrier()
        plan.Start()
        if RANK != late:
            assert plan.in_flight
            WORLD.Barrier()
        request = comm.Iallreduce(MPI.IN_PLACE, other, algorithm="ring")
        with pytest.raises(RuntimeError, match="in flight"):
            plan.Start()
        plan.Wait()
        request.Wait()
        same(x, np.full(100, float(sum(range(SIZE)))))
        same(other, np.full(200, float(SIZE)))
    plan.Free()


@pytest.mark.mpi(min_size=3)
def test_messages_that_were_set_aside_are_taken_once(comm, monkeypatch):
    """A rank that waits for a late one meets messages of a call that it begins later."""
    taken = []
    take_aside = Pipe.take_aside
    monkeypatch.setattr(Pipe, "take_aside", lambda pipe, tag: taken.extend(found := take_aside(pipe, tag)) or found)
    own, gathered, data = np.full(100, float(RANK)), np.empty((SIZE, 100)), [np.zeros(100) for _ in range(4)]

    def calls(late=0.0):
        if RANK == 0:
            time.sleep(late)
        # rank 1 awaits rank 2 first; of five calls the last one has the pipe of the first
        requests = [comm.Igather(own, gathered if RANK == 1 else None, root=1, algorithm="linear")]
        for x in data:
            x[:] = 7 if RANK == 2 else 0
            requests.append(comm.Ibcast(x, root=2, algorithm="linear"))
        MPI.Request.Waitall(requests)
        assert all((x == 7).all() for x in data) and (RANK != 1 or (gathered == np.arange(SIZE)[:, None]).all())

    for number in range(200):
        calls(late=0.03 * (number % 5 == 4))
        for _ in range(number % 3):
            comm.Ibcast(data[0], root=2, algorithm="linear").Wait()
            WORLD.Barrier()
        if number >= 30 and WORLD.bcast(bool(taken), root=1):
            break
    assert RANK != 1 or taken
    assert comm._context.links.backoff(TASKS).aside == 0
