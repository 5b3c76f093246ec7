"""Progress of collectives: by the threads that wait, else by one thread, where MPI admits threads.

A task is a generator that yields wherever it would wait. The thread that has the turn polls all
tasks; the others wait for the turn without using a core. The background thread gives way to those
that wait, and pauses when nothing moves: a thread that spins takes the core from the computation
that is to hide the communication. Programs of the extension it advances in C, with the same pauses.

A plan that has begun in the extension is left *unattended* at first: as an operation of MPI it
moves while somebody waits or tests. No thread is woken for it, and it is no task, which costs tens
of microseconds. What is still under way after its `delay` becomes a task, and so does all that is
unattended when anything else is begun, waited for or tested here.

Finalizers and signal handlers run between any two lines of this file, in the thread that they
interrupt. They may begin calls, test and wait: all tasks move except those whose step they have
interrupted. They may raise: that ends the wait, and it ends the task only in the middle of a step.
"""

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from math import inf
from time import perf_counter, sleep

from mpi4py import MPI

from ..engine import Attendance, Compiled
from ..support.arrays import Device
from ..support.stderr import print_now
from ..support.turn import FOR_EVER, Flag, Turn
from .arithmetic import as_mpi_computes
from .rhythm import NAP, PATIENCE, RESTING, SPIN, Rhythm, pace_of
from .tasks import Queue, Task, Unattended

#: seconds of the shortest pause of the thread
PAUSE = 200e-6
#: seconds for which the thread polls after the last task: waking it costs more than a small call
LINGER = 0.1
#: the same, where other threads advance the tasks: they wake it
YIELD = 4e-3
#: seconds after which the thread looks at what no program sees, as time limits
ATTENTION = 20e-3
#: seconds after a test for which the thread keeps no turn: there may be more tests
TESTED = 1e-3
#: seconds for which a thread that waits for a single task does that in the extension: others may
#: want the turn
LINGER_IN_C = 500e-6
#: seconds after which a call that nobody waits for becomes a task, as other ranks may be waiting
#: for it; one of more bytes sooner, as it is to move beside a computation
DELAY, LARGE_DELAY = 20e-3, 2e-3
#: seconds after the last such call for which the thread looks for others: to wake it costs more
_DOZE = 1.0
#: seconds without a move after which a call that somebody waits for becomes a task
_IN_C = 5e-3
#: how Python says that the system has no further thread
_NO_THREAD = "can't start new thread"
#: seconds to wait for another thread, which may be in an MPI call that waits for dead ranks
_JOIN = 2.0


class Progress:
    """All tasks of this process, and the thread that advances them."""

    def __init__(self) -> None:
        self._tasks: list[Task] = []
        #: in the order of their starts; the doors of plans add those that they begin
        self._unattended: list[Unattended] = []
        #: an object for each thread that moves calls: until it is done none begins without a task
        self._holds: list[object] = []
        #: by delay: when the last of these was started
        self._started: dict[float, float] = {}
        #: seconds between two looks of the background thread at them; 0: it does not look
        self._dozes = 0.0
        #: of advancing tasks
        self._turn = Turn()
        #: of deciding which tasks run
        self._admission = Turn()
        #: the background thread sleeps while it is not set
        self._awake = Flag()
        #: an object for each wait under way
        self._waiting: set[object] = set()
        #: whether the thread keeps the turn while the extension advances
        self._keeps_turn = False
        #: when a task was tested last
        self._tested = 0.0
        self._thread: threading.Thread | None = None
        #: whether the system lets this process have no further thread
        self._has_no_thread = False
        #: where programs advance in C, while no thread waits for them
        self._attendance = Attendance(PAUSE, SPIN, PATIENCE)
        self._stopping = False
        #: the current device of the background thread
        self._device: int | None = None

    @property
    def threaded(self) -> bool:
        """Whether tasks move between calls too: with THREAD_MULTIPLE, until MPI is finalized."""
        return not self._stopping and MPI.Query_thread() == MPI.THREAD_MULTIPLE

    def submit(self, task: Task) -> Task:
        """Begin it; local."""
        self._hold(self._put_in, task)
        self._attend()
        if self._is_alone(task):
            self._turn.take(self._compute, task, self._advance)
        else:
            self.poll()
        return task

    def run(self, task: Task) -> Task:
        """Begin it and wait for its end; does not wake the thread. Raises its error."""
        self._hold(self._put_in, task)
        self.wait(task)
        return task

    def _put_in(self, task: Task) -> None:
        """Into its queue, behind all that has begun."""
        self.attend_all()
        self._admission.take(self._enter, task, patience=FOR_EVER)

    def _hold(self, function: Callable[..., object], *arguments: object) -> None:
        """Call it while no call begins without a task."""
        hold = object()
        try:
            self._holds.append(hold)
            function(*arguments)
        finally:
            with suppress(ValueError):  # a signal handler has raised before it was there
                self._holds.remove(hold)

    # Calls that are unattended.

    def leave(self, call: Unattended) -> None:
        """Leave an unattended call to those who wait for it, for a while."""
        self._started[call.delay] = call.begun
        if not 0 < self._dozes <= call.delay:
            self._attend()

    @property
    def rooms(self) -> tuple[list[Unattended], list[object], list[Task], object]:
        """For doors of plans: unattended calls, holds, tasks, and the lock of the turn."""
        return self._unattended, self._holds, self._tasks, self._turn.lock

    def is_unattended(self, call: Unattended) -> bool:
        """Whether a call was left, and neither has ended nor is a task."""
        return call in self._unattended

    def defer(self, call: Unattended) -> bool:
        """Let it begin after the unattended call that has its place; False: there is none."""
        if all([other.place != call.place for other in list(self._unattended)]):
            return False
        self._unattended.append(call)
        return True

    def finish(self, call: Unattended) -> None:
        """Advance what is unattended until this call has ended; a task where that takes long."""
        if call.finish_alone(_IN_C):
            return
        while call in self._unattended:
            if not self._tasks:
                self._turn.take(self._go_on, call, _IN_C)
            if call in self._unattended:
                self.attend_all()

    def has_finished(self, call: Unattended) -> bool:
        """Advance what is unattended once; whether this call has ended, or is a task by now."""
        if call.finish_alone(0.0):
            return True
        if self._tasks:
            self.attend_all()
        elif call in self._unattended:
            self._turn.take(self._go_on, call, 0.0)
        return call not in self._unattended

    def _go_on(self, call: Unattended, patience: float) -> None:
        """Advance unattended calls for as long as they move. Needs the turn.

        Until one has ended, nothing moved for `patience` seconds, or a task is needed.
        """
        latest = perf_counter() + patience
        while call in self._unattended and not self._tasks:
            # of each place the first
            calls = {one.place: one for one in reversed(self._unattended)}.values()
            moves = [one.go_on() for one in calls]
            if None in moves:
                return
            if any(moves):
                latest = perf_counter() + patience
            elif perf_counter() >= latest:
                return
            else:
                os.sched_yield()

    def attend_all(self) -> None:
        """Make tasks of all that is unattended. The thread finds them at its next look."""
        if self._unattended:
            self._turn.take(self._hold, self._make_tasks, patience=_JOIN)

    def _make_tasks(self) -> None:
        # each may be interrupted by a signal handler, which goes through the same calls, or raises
        for call in list(self._unattended):
            self._admission.take(self._enter, call.as_task(), patience=FOR_EVER)
            with suppress(ValueError):  # a signal handler was faster
                self._unattended.remove(call)

    # Which tasks run: decided by one thread at a time.

    def _see_in(self, task: Task) -> None:
        """Admit it where a signal handler has raised before that was done, if it may run."""
        if task not in self._tasks:
            self._admission.take(self._enter, task, patience=FOR_EVER)

    def _enter(self, task: Task) -> None:
        if task.ended:
            return
        if task not in task.queue.tasks:
            task.queue.waiting.append(task)
        self._admit(task.queue)  # in any case: a signal handler may have raised in an earlier try

    def _leave(self, task: Task) -> None:
        task.queue.finish(task)
        if task in self._tasks:
            self._tasks.remove(task)
        self._admit(task.queue)

    def _admit(self, queue: Queue) -> None:
        """Run the tasks that may run."""
        while (task := queue.next) is not None:
            self._let_run(task)

    def _let_run(self, task: Task) -> None:
        if task not in self._tasks:
            self._tasks.append(task)
        task.queue.start(task)

    def _admit_overdue(self) -> None:
        """Nothing moves: run what other ranks may have started in another order, too."""
        for queue in {task.queue for task in self._tasks if task.queue.waiting}:
            if (task := queue.overdue) is not None:
                task.has_overtaken = True
                self._let_run(task)

    # Waiting.

    def _compute(self, task: Task, advance: Callable[[Task], object]) -> None:
        """Advance it, unless it has ended meanwhile, or this call interrupts one of its steps."""
        if not task.ended and not task.is_advanced:
            task.computes(advance, task)

    def _is_alone(self, task: Task) -> bool:
        # one comparison: another thread may end it meanwhile
        return self._tasks == [task] and not self._unattended

    def wait(self, task: Task, limit: float = inf) -> bool:
        """Advance all tasks until this one has ended, or for `limit` seconds; whether it has ended.

        Raises its error.
        """
        if not task.ended:
            self._see_in(task)
            self._while_waiting(self._wait, task, limit)
        self._raise_error(task)
        return bool(task.ended)

    def _wait(self, task: Task, limit: float) -> None:
        # a small task ends before another thread wants the turn
        self._turn.take(self._compute, task, self._advance_alone)
        if task.ended:
            return
        waiting = perf_counter()

        def is_over() -> bool:
            if self._turn.is_mine:
                self._require_free(task)
            return bool(task.ended) or perf_counter() - waiting > limit

        self.wait_until(is_over)

    def _require_free(self, task: Task) -> None:
        """Raise where a task cannot end before the waiting function returns."""
        first = [task] if task in task.queue.running else task.queue.running
        if not task.ended and first and all(other.is_advanced for other in first):
            raise RuntimeError(
                "Wait in a finalizer or a signal handler for a call that cannot end before it "
                "returns: it has interrupted just this call, or one before it. Test there, and "
                "wait in the program"
            )

    def wait_soon(self, is_over: Callable[[], bool]) -> None:
        """Poll `is_over` for SPIN seconds, then wait for it while all tasks are advanced."""
        latest = perf_counter() + SPIN
        while not is_over():
            if perf_counter() > latest:
                return self.wait_until(is_over)

    def help(self, task: Task, seconds: float) -> None:
        """Advance all tasks until this one has ended, or did not move for so many seconds.

        Raises nothing.
        """
        began = perf_counter()

        def is_over() -> bool:
            return bool(task.ended) or perf_counter() - max(began, task.moved) > seconds

        self.wait_until(is_over)

    def wait_until(self, is_over: Callable[[], bool]) -> None:
        """Advance all tasks until `is_over` returns true."""
        rhythm = Rhythm(NAP)

        def look() -> None:
            while not is_over():
                # the thread with the turn may wait for longer than `is_over` takes: look again
                moves = self._turn.take(self._advance_all, patience=PATIENCE)
                if moves is not None:
                    rhythm.leave_core(moves, self._flowing)

        self._while_waiting(as_mpi_computes, look)

    def _flowing(self) -> bool:
        return all([task.runs_ahead for task in list(self._tasks)])

    def _advance_alone(self, task: Task) -> None:
        """Advance a task until nothing moves for SPIN, or another task comes. Needs the turn."""
        latest = perf_counter() + SPIN
        while not task.ended and self._is_alone(task):
            if self._advance_patiently(task):
                latest = perf_counter() + SPIN
            elif perf_counter() > latest:
                return

    def _advance_patiently(self, task: Task) -> int:
        """The number of steps that a task moved; waits for the first in the extension."""
        program = task.at
        if not isinstance(program, Compiled):
            return self._advance(task)
        program.lingers = LINGER_IN_C
        try:
            return self._advance(task)
        finally:
            program.lingers = 0.0

    def test(self, task: Task) -> bool:
        """Advance all tasks once; whether this task has ended. Raises its error."""
        if not task.ended:
            self._see_in(task)
            self.poll()
        self._raise_error(task)
        return bool(task.ended)

    def _raise_error(self, task: Task) -> None:
        if task.error is not None:
            self.end_failed(task.queue)
            raise task.error

    def end_failed(self, queue: Queue) -> None:
        """Before an error reaches the program: end the tasks of the queue, if it has an error.

        From then on no thread of this rank uses the arrays of its calls.
        """
        if queue.error is not None:
            self._attendance.interrupt()
            self._turn.take(self._end_all, queue, patience=_JOIN)

    def _end_all(self, queue: Queue) -> None:
        self.attend_all()
        self._admission.take(self._admit, queue)
        # not those whose steps this thread is in: it raises from there
        while running := [task for task in queue.running if not task.is_advanced]:
            for task in running:
                self._advance(task)

    def poll(self) -> None:
        """Advance all tasks once, unless another thread has the turn.

        Wait for that a little: a thread that tests again and again would keep the interpreter from
        the one with the turn.
        """
        self._tested = perf_counter()
        if self._keeps_turn:
            self._attendance.interrupt()
        as_mpi_computes(self._advanced, PATIENCE)

    def _while_waiting(self, function: Callable[..., object], *arguments: object) -> None:
        """Call it; the background thread leaves the turn to the waiting threads."""
        wait = object()
        try:
            self._waiting.add(wait)
            self._attendance.interrupt()
            function(*arguments)
        finally:
            self._waiting.discard(wait)
            if self._left_alone:
                self._attend()

    def _advance_all(self) -> int:
        """How much the tasks moved. Needs the turn."""
        self.attend_all()
        moves = sum([self._advance(task) for task in list(self._tasks)])
        if not moves:
            self._admission.take(self._admit_overdue)
        return moves

    def _advance(self, task: Task) -> int:
        """The number of steps that a task moved."""
        if task.is_advanced:
            return 0
        task.is_advanced = True
        try:
            return self._step(task)
        finally:
            task.is_advanced = False

    def _step(self, task: Task) -> int:
        task.begun = task.begun or perf_counter()
        before = task.at
        if task.queue.error is not None and task.error is None:
            task.give_up()
            task.error = task.queue.explain(task.queue.error)
            self._end(task)
            return 1
        try:
            if task.device is None:
                task.at = next(task.steps)
            else:
                with self._on(task.device):
                    task.at = next(task.steps)
            reached = getattr(task.at, "reached", 0)
            has_moved = task.at is not before or reached != task.reached
            task.reached = reached
            if not has_moved:
                if task.queue.stall.is_due:
                    task.queue.check_wait()
                return 0
            task.moved = perf_counter()
            task.queue.stall.restart()
            return task.steps_made()
        except StopIteration:
            pass
        except BaseException as error:
            if task.is_suspended and threading.current_thread() is threading.main_thread():
                raise  # by a signal handler, beside the steps: the task goes on
            if task.record:
                task.queue.lose(task.record.text, error)
            if not isinstance(error, Exception):  # Ctrl-C
                task.error = error
                self._end(task)
                raise
            if task.is_suspended:
                task.give_up()
            # the thread that waits for this task raises it, not the one that advances it
            task.error = task.queue.explain(error)
        self._end(task)
        return 1

    def _on(self, device: Device) -> AbstractContextManager[object]:
        """Make the device current.

        In the background thread for good: to restore its first device would take memory there.
        """
        if threading.current_thread() is not self._thread:
            return device
        if device.id != self._device:
            device.use()
            self._device = device.id
        return nullcontext()

    def _end(self, task: Task) -> None:
        """End the task once and completely: if a signal handler raises, the next look goes on."""
        task.steps = iter(())
        if task.record:
            task.record.end()
        done, task.on_done = task.on_done, None
        if done:
            done()
        task.ended = perf_counter()
        then, task.then = task.then, None
        if then:
            self._turn.afterwards.append(then)
        # a finalizer in the middle of an admission may wait for this thread: the next look goes on
        self._admission.take(self._leave, task, patience=PATIENCE)

    # The thread.

    @property
    def _left_alone(self) -> bool:
        """Whether tasks are under way that no waiting thread advances."""
        return bool(self._tasks) and not self._waiting

    def _attend(self) -> None:
        if self._thread is None and self.threaded and not self._has_no_thread:
            self._thread = threading.Thread(
                target=as_mpi_computes,
                args=(self._attend_tasks,),
                name="mpicoll progress",
                daemon=True,
            )
            self._start(self._thread)
        self._attendance.interrupt()
        self._awake.set()

    def _start(self, thread: threading.Thread) -> None:
        try:
            thread.start()
        except BaseException as error:  # of a signal handler
            if thread.ident is None:
                self._thread = None
            self._awake.set()
            if thread.ident is None and str(error) == _NO_THREAD:
                self._has_no_thread = True
                print_now(f"mpicoll: {_NO_THREAD}: what does not block moves in Wait and Test")
                return
            # once the thread has begun, Python makes a KeyError of what a handler raises
            if isinstance(error, KeyError) and error.__context__ is not None:
                raise error.__context__ from None
            raise

    def stop(self) -> None:
        """End the thread, before MPI is finalized; what is under way stays where it is."""
        self._stopping = True
        self._attendance.interrupt()
        self._awake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN)

    def _attend_tasks(self) -> None:
        busy = perf_counter()
        rhythm = Rhythm(PAUSE)
        while not self._stopping:
            self._attend_overdue()
            if self._left_alone:
                moves = self._advanced()
                if self._attended():
                    rhythm.restart()
                elif rhythm.still(moves) > min(SPIN, rhythm.patience):
                    sleep(rhythm.pause(pace_of(self._flowing())))
                busy = perf_counter()
                continue
            if perf_counter() - busy > (YIELD if self._waiting else LINGER):
                self._sleep()
                busy = perf_counter()  # also if what woke the thread has ended by now
            rhythm.restart()  # a pause between tasks does not tell how fast they move
            sleep(rhythm.rest(perf_counter() - busy, RESTING))

    def _sleep(self) -> None:
        """Wait for tasks, and make some of calls that were unattended for too long."""
        self._awake.clear()
        # what came since is seen, or has set it again
        while not self._left_alone and not self._stopping:
            latest = perf_counter() - _DOZE
            recent = [delay for delay, begun in list(self._started.items()) if begun > latest]
            self._dozes = min(recent, default=0.0)
            # what was left before is seen, what comes now sets the flag
            if self._awake.wait(self._dozes or (DELAY if self._unattended else None)):
                break
            self._attend_overdue()
        self._dozes = 0.0

    def _attend_overdue(self) -> None:
        now = perf_counter()
        if any([now - call.begun > call.delay for call in list(self._unattended)]):
            self.attend_all()

    def _attended(self) -> bool:
        """Let the extension advance all tasks, in its own rhythm; False: it cannot do that now."""
        awaited = [task.at for task in list(self._tasks)]
        calls = self._attendance.calls(awaited)
        if not calls:
            return False
        attend = partial(self._attendance.attend, calls, *pace_of(self._flowing()), ATTENTION)
        if not self._attendance.needs_turn(awaited):
            return attend()
        if perf_counter() - self._tested < TESTED:
            return False
        self._keeps_turn = True
        try:
            return bool(self._turn.take(attend))
        finally:
            self._keeps_turn = False

    def _advanced(self, patience: float = 0) -> int:
        """Advance all tasks, unless another thread keeps the turn; how much they moved."""
        return self._turn.take(self._advance_all, patience=patience) or 0


#: one per process: a thread that waits for one collective advances those of all communicators
PROGRESS = Progress()
