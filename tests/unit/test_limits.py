"""Limits of waiting: time without progress of a communicator, while this process ran."""

import pytest
from mpi4py import MPI

import mpicoll
from mpicoll.execute import Context
from mpicoll.failure.recorder import Recorder
from mpicoll.progress import Task
from mpicoll.watch.stuck import StuckCalls
from tests.support.fakes.progress import ManualProgress

LIMIT = 10.0
#: seconds from look to look; the clock is the test's
APART = 0.1


@pytest.fixture
def clock(monkeypatch):
    """A list of the time now."""
    now = [1000.0]
    monkeypatch.setattr("mpicoll.progress.stall.perf_counter", lambda: now[0])
    return now


@pytest.fixture
def context(clock):
    """Of a communicator with a limit."""
    comm = mpicoll.Communicator(MPI.COMM_SELF.Dup(), timeout=LIMIT)
    context = Context.of(comm)
    yield context
    # tasks that never end are not waited for
    context.in_disorder(mpicoll.MpicollError("the test is over"))
    comm.Free()


@pytest.fixture
def progress():
    return ManualProgress()


def begin(progress, context, steps, track=None):
    record = context.recorder.begin("a call", "here:1")
    return progress.submit(Task(steps, context.queue, record, track=track))


def look(progress, clock, seconds):
    """Advance tasks for so long."""
    for _ in range(round(seconds / APART)):
        clock[0] += APART
        progress.poll()


def moving(moves):
    yield from range(moves)


def waiting():
    while True:
        yield None


def test_calls_that_take_turns_have_one_limit(progress, context, clock):
    """Each moves, and the last one waits for its turn for ten times the limit."""
    tasks = [begin(progress, context, moving(200), track=1) for _ in range(5)]
    look(progress, clock, 10 * LIMIT + 1)
    assert all(task.ended and task.error is None for task in tasks) and not context.broken


def test_a_call_that_does_not_move_beside_others(progress, context, clock):
    stuck, other = begin(progress, context, waiting()), begin(progress, context, moving(300))
    look(progress, clock, 3 * LIMIT)
    assert not context.broken, "while others move"
    look(progress, clock, LIMIT - 2)
    assert other.ended and not context.broken
    look(progress, clock, 3)
    assert isinstance(stuck.error, mpicoll.CollectiveTimeout)
    assert "no progress for 10." in str(stuck.error)
    assert stuck.ended and context.broken


def test_the_limit_holds_though_nobody_waits_and_for_calls_in_the_queue(progress, context, clock):
    tasks = [begin(progress, context, waiting(), track=1) for _ in range(3)]
    look(progress, clock, LIMIT + 1)
    assert all(isinstance(task.error, mpicoll.CollectiveTimeout) for task in tasks)


def test_time_in_which_the_process_was_stopped_does_not_count(progress, context, clock):
    begin(progress, context, waiting())
    for _ in range(5):
        clock[0] += 100 * LIMIT
        look(progress, clock, 1)
    assert not context.broken


def test_time_in_which_a_call_is_bound_does_not_count(progress, context, clock):
    def binding():
        clock[0] += 100 * LIMIT
        yield from waiting()

    begin(progress, context, binding())
    look(progress, clock, LIMIT / 2)
    assert not context.broken


class InACall:
    """A context with a call of MPI's own under way in this thread."""

    broken = ""

    def __init__(self):
        self.recorder = Recorder("a communicator", 1)
        self.recorder.blocking.begin("a call", "here:1")


CASES = {"stuck": (0, 0.1, True), "computes": (1, 0.1, False), "was stopped": (0, 100, False)}


@pytest.mark.parametrize(("moves", "apart", "is_stuck"), CASES.values(), ids=CASES)
def test_a_call_of_mpis_own_is_stuck_where_its_thread_stands_still(
    clock, monkeypatch, moves, apart, is_stuck
):
    place = [0]
    monkeypatch.setattr("mpicoll.watch.stuck._instruction", lambda frame: tuple(place))
    context, calls = InACall(), StuckCalls()
    for _ in range(30):
        place[0] += moves
        clock[0] += apart
        text, seconds = calls.look(context)
    assert text == "a call at here:1" and (seconds == pytest.approx(2.9)) == is_stuck
    context.recorder.blocking.end()
    assert calls.look(context) == ("", 0.0)


class Interrupted:
    """A call in the middle of its rounds."""

    def __init__(self, text):
        self.text = text

    def where(self):
        return self.text


def test_the_others_are_told_though_a_handler_raises_meanwhile(context, monkeypatch):
    """A signal handler that raises again, while the rank gives up: they would wait for ever."""
    told = []

    def give_notice(text):
        told.append(text)
        if len(told) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(context.channel, "give_notice", give_notice)
    context.give_up(Interrupted("a call"), KeyboardInterrupt())
    context.give_up(Interrupted("another call"), KeyboardInterrupt())
    assert len(told) == 2 and "a call, ended by KeyboardInterrupt()" in told[1]
