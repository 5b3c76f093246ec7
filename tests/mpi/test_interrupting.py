"""Finalizers and signal handlers that test, wait, and begin calls, wherever they interrupt the program."""

import gc
import signal
import sys

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll import engine
from mpicoll.calls import serving
from mpicoll.engine import compiled_program
from mpicoll.execute import Context, waits
from mpicoll.failure import Record
from tests.support.cases import RANK, SIZE, WORLD

pytestmark = pytest.mark.mpi

COUNT, LAPS = 20_000, 60


class Requests:
    """What is under way, for what interrupts; and what it was told: only that a call cannot end before it returns."""

    def __init__(self, act):
        self.act = act
        self.pending = []
        self.refused = 0

    def see_to(self, request):
        try:
            if self.act == "Test":
                request.Test()
            else:
                request.Wait()
        except RuntimeError as error:
            assert "cannot end before it returns" in str(error), error
            self.refused += 1

    def handle(self):
        if self.pending:
            self.see_to(self.pending[-1])


class Forgotten:
    """Part of a cycle, so that its finalizer runs wherever memory is collected."""

    def __init__(self, requests, request):
        self.requests, self.request, self.itself = requests, request, self

    def __del__(self):
        self.requests.see_to(self.request)


@pytest.fixture
def alarms():
    """One a millisecond after the last was seen to."""
    handlers = []

    def handle(number, frame):
        for handler in handlers:
            handler()
            signal.setitimer(signal.ITIMER_REAL, 1e-3)

    def begin(handler):
        handlers.append(handler)
        signal.setitimer(signal.ITIMER_REAL, 1e-3)

    before = signal.signal(signal.SIGALRM, handle)
    yield begin
    handlers.clear()
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def much_garbage():
    before = gc.get_threshold()
    gc.set_threshold(20, 1, 1)
    yield
    gc.set_threshold(*before)
    gc.collect()


@pytest.mark.parametrize("act", ["Test", "Wait"])
@pytest.mark.parametrize("apart", [False, True], ids=["one communicator", "two"])
def test_signal_handlers(comm, alarms, act, apart):
    other = comm.Dup() if apart else comm
    requests = Requests(act)
    alarms(requests.handle)
    for lap in range(LAPS):
        x, y = np.zeros(COUNT), np.zeros(COUNT)
        first = comm.Iallreduce(np.full(COUNT, float(lap)), x, algorithm="ring")
        second = other.Iallreduce(np.full(COUNT, lap + 1.0), y, algorithm="ring")
        requests.pending = [second]
        first.Wait()
        second.Wait()
        requests.pending = []
        assert (x == SIZE * lap).all()
        assert (y == SIZE * (lap + 1)).all()
    if apart:
        other.Free()


@pytest.mark.parametrize("act", ["Test", "Wait"])
def test_finalizers(comm, much_garbage, act):
    requests = Requests(act)
    for lap in range(LAPS):
        x, y = np.zeros(COUNT), np.zeros(COUNT)
        request = comm.Iallreduce(np.full(COUNT, float(lap)), x, algorithm="ring")
        other = comm.Iallreduce(np.full(COUNT, float(lap)), y, algorithm="ring")
        Forgotten(requests, other)
        request.Wait()
        other.Wait()
        assert (x == SIZE * lap).all()
        assert (y == SIZE * lap).all()


def test_finalizers_that_free_plans_and_make_arrays(comm, much_garbage):
    """Local calls; plans are freed, arrays made and forgotten in the middle of any other call."""

    class Plan:
        def __init__(self):
            self.plan = comm.Allreduce_init(np.zeros(9), np.zeros(9), algorithm="ring")
            self.array, self.itself = comm.zeros(100), self

        def __del__(self):
            self.plan.Free()
            self.array = comm.zeros(1000)

    x = comm.empty(COUNT)
    for lap in range(LAPS):
        x[:] = lap
        Plan()
        request = comm.Iallreduce(MPI.IN_PLACE, x, algorithm="ring")
        y = np.full(COUNT, RANK)
        comm.Allreduce(MPI.IN_PLACE, y, algorithm="direct")
        request.Wait()
        assert (x == SIZE * lap).all()
        assert (y == sum(range(SIZE))).all()


class Interrupted(Exception):
    """What a signal handler raises."""


def interrupted():
    raise Interrupted


@pytest.mark.mpi(min_size=2)
def test_a_plan_whose_making_a_handler_ended_gives_the_communicator_up(monkeypatch):
    """The other ranks have one plan more: later plans would wait for messages of others."""
    comm = mpicoll.Communicator(WORLD.Dup())
    x, y = np.ones(COUNT), np.empty(COUNT)

    def interrupted_last():
        for rank in range(SIZE - 1):  # a rank that still compares calls would be told there
            WORLD.recv(source=rank, tag=78)
        raise Interrupted

    if RANK == SIZE - 1:
        monkeypatch.setattr(Context.of(comm), "next_plan_tag", interrupted_last)
        with pytest.raises(Interrupted):
            comm.Allreduce_init(x, y, algorithm="ring")
    else:
        comm.Allreduce_init(x, y, algorithm="ring")
        WORLD.send(None, SIZE - 1, tag=78)
    with pytest.raises(mpicoll.MpicollError, match="Interrupted"):
        comm.Allreduce(x, y, algorithm="ring")


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("blocking", [True, False])
def test_a_call_that_a_handler_ended_when_it_was_counted_gives_the_communicator_up(monkeypatch, blocking):
    """It has been made before; the other ranks would wait for a call that this one has counted, and not made."""
    comm = mpicoll.Communicator(WORLD.Dup())
    x, y = np.ones(COUNT), np.empty(COUNT)

    def call():
        if blocking:
            comm.Allreduce(x, y, algorithm="ring")
        else:
            comm.Iallreduce(x, y, algorithm="ring").Wait()

    for _ in range(2):
        call()
    WORLD.Barrier()  # a rank that is still in them would be told there
    begin = Record.begin

    def begin_and_raise(record, *arguments, **options):
        begin(record, *arguments, **options)
        raise Interrupted

    Context.of(comm).doors.clear()
    if RANK == SIZE - 1:
        with monkeypatch.context() as patch:
            patch.setattr(Record, "begin", begin_and_raise)
            with pytest.raises(Interrupted):
                call()
    else:
        with pytest.raises(mpicoll.MpicollError, match=f"rank {SIZE - 1} .*Interrupted"):
            call()
    with pytest.raises(mpicoll.MpicollError, match="Interrupted"):
        call()


@pytest.mark.mpi(min_size=2)
def test_a_task_that_a_handler_ended_before_its_first_step_gives_the_communicator_up(monkeypatch):
    comm = mpicoll.Communicator(WORLD.Dup())
    x, y = np.ones(COUNT), np.empty(COUNT)
    if RANK == SIZE - 1:
        monkeypatch.setattr(serving, "operation_of", lambda call, choice: interrupted())
        with pytest.raises(Interrupted):
            comm.Iallreduce(x, y, algorithm="ring").Wait()
    else:
        with pytest.raises(mpicoll.MpicollError, match=f"rank {SIZE - 1} .*Interrupted"):
            comm.Iallreduce(x, y, algorithm="ring").Wait()


class AtPoint:
    """Raises once, where a call that waits comes to a point of Python: as a handler, in any line of it.

    Without a point it counts the points: (file, line, kind of event). awaited: a function of the call, by name, in which
    the wait begins. The last rank, which is late, comes when it has raised, or after MANY events.
    """

    MANY = 400

    def __init__(self, awaited, point=None):
        self.awaited = awaited
        self.point = point
        self.points = []
        self.events = 0
        self.waits = False
        self.has_raised = False

    def __call__(self, frame, event, argument):
        code = frame.f_code
        if "/mpicoll/" not in code.co_filename or event not in ("call", "line"):
            return self
        self.waits = self.waits or code.co_name == self.awaited
        if code.co_name == "_end" and self.awaited == "_count":
            self.waits = False
        if not self.waits or self.has_raised:
            return self
        self.events += 1
        if self.events == self.MANY:
            self.release()
        point = code.co_filename, frame.f_lineno, event
        if point == self.point:
            self.has_raised = True
            if self.events < self.MANY:
                self.release()
            raise Interrupted
        if self.point is None and point not in self.points:
            self.points.append(point)
        return self

    def release(self):
        WORLD.send(None, SIZE - 1, tag=77)


@pytest.mark.mpi(min_size=2)
@pytest.mark.interpreters("c")
@pytest.mark.skipif(not engine.has_doors(), reason=f"no extension: {engine.status().reason}")
@pytest.mark.parametrize("shared_memory", ["on", "off"])
@pytest.mark.parametrize("passes", [True, False], ids=["through a door", "the long way"])
def test_a_call_that_waits_ends_first_wherever_python_looks_around(monkeypatch, shared_memory, passes):
    """What is raised in any line between two waits of the extension is raised after the call, whose result is right."""
    monkeypatch.setenv("MPICOLL_SHARED_MEMORY", shared_memory)
    monkeypatch.setattr(waits, "_IN_C", 1e-3)
    monkeypatch.setattr(compiled_program, "_LONG", 1000)
    comm = mpicoll.Communicator(WORLD.Dup())
    x = np.empty(100)

    def call():
        x[:] = RANK + 1
        comm.Allreduce(MPI.IN_PLACE, x, algorithm="ring")

    for _ in range(4):
        call()
    gc.collect()
    gc.freeze()

    def interrupted_at(point=None):
        if not passes:
            Context.of(comm).doors.clear()
        at = AtPoint("_finish" if passes else "_count", point)
        error = None
        gc.collect()  # generators that exceptions held: they would be closed, and their lines seen, in the middle
        if RANK == SIZE - 1:
            WORLD.recv(source=0, tag=77)
        if RANK == 0:
            sys.settrace(at)
        try:
            call()
        except Interrupted as raised:
            error = raised
        finally:
            sys.settrace(None)
        assert (error is not None) == at.has_raised, point
        error = None
        assert (x == SIZE * (SIZE + 1) // 2).all(), (point, x)
        call()  # the communicator is as good as before
        assert (x == SIZE * (SIZE + 1) // 2).all(), (point, x)
        return at

    points = WORLD.bcast(interrupted_at().points)
    assert len(points) > 30
    raised = sum([interrupted_at(point).has_raised for point in points])
    assert RANK or raised > len(points) // 2
    gc.unfreeze()
    comm.Free()
