"""Who advances collectives under way, and how often whoever waits looks."""

import signal
import sys
import threading
from time import monotonic, sleep

import numpy as np
import pytest
from mpi4py import MPI

from mpicoll.engine import status
from mpicoll.progress import PROGRESS, Task
from mpicoll.progress import rhythm as law
from mpicoll.progress.engine import PAUSE, Progress
from mpicoll.progress.rhythm import FLOWING, IN_TURN, Rhythm
from mpicoll.progress.stall import LOOK
from mpicoll.progress.tasks import Queue
from mpicoll.support.turn import Flag

EXTENSION = status().extension

#: seconds until a test that waits for something fails
PATIENCE = 20


def until(is_so):
    """Wait for it; whether it came."""
    latest = monotonic() + PATIENCE
    while not is_so() and monotonic() < latest:
        sleep(1e-3)
    return is_so()


def task_until(is_over, queue):
    """A task under way until that is so."""

    def steps():
        while not is_over():
            yield None

    return PROGRESS.submit(Task(steps(), queue))


@pytest.mark.skipif(MPI.Query_thread() != MPI.THREAD_MULTIPLE, reason="without THREAD_MULTIPLE there is no thread")
def test_the_thread_rests_while_others_wait_and_goes_on_after_them():
    rested, left = threading.Event(), threading.Event()
    queue = Queue()
    awaited, other = task_until(rested.is_set, queue), task_until(left.is_set, queue)

    def see_it_rest():
        if until(lambda: not PROGRESS._awake.is_set()):
            rested.set()

    watching = threading.Thread(target=see_it_rest)
    watching.start()
    assert PROGRESS.wait(awaited, PATIENCE), "the thread went on looking while a call waited"
    watching.join()
    left.set()
    assert until(lambda: other.ended), "nobody went on with the call for which nobody waited"


def test_a_program_that_moves_makes_progress_although_the_task_waits_for_the_same_object():
    """Else a call that takes longer than its timeout would end with an error, however fast it moves."""

    class Program:
        reached = 0

    def steps():
        while True:
            sleep(2 * LOOK)
            yield program

    program, stalled = Program(), []
    task = Task(steps(), Queue(check_wait=lambda: stalled.append(program.reached)))
    for program.reached in (0, 1, 2, 3):
        PROGRESS._step(task)
    assert not stalled and task.moved
    moved = task.moved
    assert PROGRESS._step(task) == 0 and stalled == [3] and task.moved == moved


class Interrupted(Exception):
    """What the handler raises."""


def test_a_handler_that_raises_while_the_thread_is_woken_breaks_nothing():
    """`threading.Event.set`, interrupted so, never returned again in any thread."""

    def handle(number, frame):
        raise Interrupted

    flag, interrupted = Flag(), 0
    before = signal.signal(signal.SIGALRM, handle)
    try:
        while interrupted < 2000:
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-5)
                while True:
                    flag.clear()
                    flag.set()
            except Interrupted:
                interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    other = threading.Thread(target=lambda: (flag.clear(), flag.set(), flag.wait()), daemon=True)
    other.start()
    other.join(PATIENCE)
    assert not other.is_alive() and flag.is_set()


@pytest.mark.skipif(MPI.Query_thread() != MPI.THREAD_MULTIPLE, reason="without THREAD_MULTIPLE there is no thread")
def test_a_handler_that_raises_while_the_thread_starts_is_what_the_caller_sees(monkeypatch):
    """`threading.Thread.start`, interrupted so once the thread runs, raises a KeyError of its own."""
    start, engine = threading.Thread.start, type(PROGRESS)()

    def interrupted(thread):
        start(thread)
        try:
            raise Interrupted
        except Interrupted:
            raise KeyError(thread)  # noqa: B904

    over, queue = threading.Event(), Queue()

    def steps():
        while not over.is_set():
            yield None

    task = Task(steps(), queue)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(Interrupted):
            engine.submit(task)
    over.set()
    assert until(lambda: task.ended), "the thread that has begun serves nobody"
    engine.stop()


@pytest.fixture
def moves(monkeypatch):
    """Of a rhythm, as many moves so many seconds after the last: `moves(rhythm, seconds, count)`."""
    now = [0.0]
    monkeypatch.setattr("mpicoll.progress.rhythm.perf_counter", lambda: now[0])

    def move(rhythm, seconds, count):
        now[0] += seconds
        rhythm.still(count)

    return move


def test_pauses_follow_the_time_from_move_to_move(moves):
    rhythm = Rhythm(least=50e-6)
    for _ in range(2):
        moves(rhythm, 6e-3, 3)
    assert rhythm.gap == pytest.approx(2e-3)
    assert rhythm.pause(FLOWING) == pytest.approx(2e-3)
    assert rhythm.pause(IN_TURN) == pytest.approx(2e-3 / 8)


@pytest.mark.skipif(EXTENSION is None, reason=f"no extension: {status().reason}")
@pytest.mark.parametrize("seed", range(20))
def test_the_extension_pauses_as_python(moves, seed):
    """Both have one law, with the same constants."""
    random = np.random.default_rng(seed)
    rhythm, idle = Rhythm(least=PAUSE), []
    rhythm.moved = 0.0
    for _ in range(50):
        idle.append((float(10 ** random.uniform(-6, -1.5)), int(random.integers(1, 9))))
        moves(rhythm, *idle[-1])
        for pace in (FLOWING, IN_TURN):
            patience, pause = EXTENSION.paused((PAUSE, law.SPIN, law.PATIENCE), idle, *pace)
            assert (patience, pause) == (rhythm.patience, rhythm.pause(pace))


def test_one_late_move_makes_no_long_pauses(moves):
    rhythm = Rhythm(least=50e-6)
    for late in (1e-3, 1e-3, 1.0):
        moves(rhythm, late, 1)
    assert rhythm.gap == pytest.approx(1e-3)


def test_a_thread_that_tests_lets_the_one_with_the_turn_go_on():
    """It would keep the interpreter for 5 ms each time, in which the other thread cannot even take its turn."""
    progress, began, steps = Progress(), threading.Event(), []

    def work():
        began.set()
        for _ in range(20):
            sleep(0)  # as a step in C, it gives the interpreter away and wants it again
            steps.append(None)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    thread = threading.Thread(target=progress._turn.take, args=(work,))
    try:
        thread.start()
        assert began.wait(PATIENCE)
        for _ in range(10_000):
            progress.poll()
            if len(steps) == 20:
                break
        assert len(steps) == 20
    finally:
        sys.setswitchinterval(interval)
        thread.join()
