"""Who advances the collectives under way: whoever waits for one, and between calls one thread, where MPI admits threads.

A task is a generator that yields wherever it would wait. Whoever has the turn polls all tasks; the others wait for the
turn without using a core. The thread gives way to those who wait, and pauses when nothing moves: a thread that spins
takes the core from the computation behind which it is to hide the communication.

Finalizers and signal handlers run between any two lines of this file, in the thread that they interrupt. They may begin
calls, test and wait: all tasks move but those whose step they have interrupted. They may raise: that ends the wait, and the
task only where it was in the middle of a step.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from math import inf
from time import perf_counter, sleep

from mpi4py import MPI

from ..support.arrays import Device
from .arithmetic import as_mpi_computes
from .rhythm import NAP, PATIENCE, RESTING, SPIN, Rhythm, pace_of
from .tasks import Queue, Task
from .turn import FOR_EVER, Turn

#: seconds of the shortest pause of the thread
PAUSE = 200e-6
#: seconds for which the thread keeps polling after the last task: to wake it takes longer than a small collective
LINGER = 0.1
#: the same, where others advance the tasks: they wake it
YIELD = 4e-3
#: seconds that the thread may take to end: it may be in a call to MPI for ranks that died
_JOIN = 2.0


class Progress:
    """All tasks of this process, and the thread that advances them."""

    def __init__(self) -> None:
        self._tasks: list[Task] = []
        self._turn, self._admission, self._awake = Turn(), Turn(), threading.Event()
        self._waiting: set[object] = set()  # one of each wait under way
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._device: int | None = None  # the thread's

    @property
    def threaded(self) -> bool:
        """Whether tasks move between calls too: where MPI grants THREAD_MULTIPLE, until it is finalized."""
        return not self._stopping and MPI.Query_thread() == MPI.THREAD_MULTIPLE

    def submit(self, task: Task) -> Task:
        """Begin it; local."""
        self._admission.take(self._enter, task, patience=FOR_EVER)
        self._attend()
        if self._is_alone(task):
            self._turn.take(self._compute, task, self._advance)
        else:
            self.poll()
        return task

    def run(self, task: Task) -> Task:
        """Begin it and wait for its end; the thread is not woken. Raises its error."""
        self._admission.take(self._enter, task, patience=FOR_EVER)
        self.wait(task)
        return task

    # Which tasks run: decided by one thread at a time.

    def _enter(self, task: Task) -> None:
        task.queue.waiting.append(task)
        self._admit(task.queue)

    def _leave(self, task: Task) -> None:
        task.queue.finish(task)
        if task in self._tasks:
            self._tasks.remove(task)
        self._admit(task.queue)

    def _admit(self, queue: Queue) -> None:
        """Let those run that may."""
        while (task := queue.next) is not None:
            self._let_run(task)

    def _let_run(self, task: Task) -> None:
        if task not in self._tasks:
            self._tasks.append(task)
        task.queue.start(task)

    def _admit_overdue(self) -> None:
        """Nothing moves: what other ranks may have started in another order runs, too."""
        for queue in {task.queue for task in self._tasks if task.queue.waiting}:
            if (task := queue.overdue) is not None:
                task.has_overtaken = True
                self._let_run(task)

    # Those who wait.

    def _compute(self, task: Task, advance: Callable[[Task], object]) -> None:
        """Advance it, unless it has ended meanwhile, or this interrupts one of its steps."""
        if not task.ended and not task.is_advanced:
            task.computes(advance, task)

    def _is_alone(self, task: Task) -> bool:
        return self._tasks == [task]  # at once: another thread may end it meanwhile

    def wait(self, task: Task, limit: float = inf) -> bool:
        """Advance all tasks until this one has ended, or for so many seconds; whether it has. Raises its error."""
        if not task.ended:
            self._while_waiting(self._wait, task, limit)
        task.raise_error()
        return bool(task.ended)

    def _wait(self, task: Task, limit: float) -> None:
        self._turn.take(self._compute, task, self._advance_alone)  # a small one ends before anybody else wants the turn
        if task.ended:
            return
        waiting = perf_counter()

        def is_over() -> bool:
            if self._turn.is_mine:
                self._require_free(task)
            return bool(task.ended) or perf_counter() - waiting > limit

        self.wait_until(is_over)

    def _require_free(self, task: Task) -> None:
        """Raise where a task cannot end before the function returns that waits for it."""
        first = [task] if task in task.queue.running else task.queue.running
        if not task.ended and first and all(one.is_advanced for one in first):
            raise RuntimeError(
                "Wait in a finalizer or a signal handler for a call that cannot end before it returns: it has interrupted "
                "just this call, or one before it. Test there, and wait in the program"
            )

    def wait_soon(self, is_over: Callable[[], bool]) -> None:
        """Wait until that is so: it is looked for alone until it takes longer than SPIN, then all tasks are advanced."""
        latest = perf_counter() + SPIN
        while not is_over():
            if perf_counter() > latest:
                return self.wait_until(is_over)

    def help(self, task: Task, seconds: float) -> None:
        """Advance all tasks until this one has ended, or did not move for so many seconds. Raises nothing."""
        began = perf_counter()
        self.wait_until(lambda: bool(task.ended) or perf_counter() - max(began, task.moved) > seconds)

    def wait_until(self, is_over: Callable[[], bool]) -> None:
        """Advance all tasks until that is so."""
        rhythm = Rhythm(NAP)

        def look() -> None:
            while not is_over():
                # whoever has the turn may wait for longer than that takes: look after it from time to time
                moves = self._turn.take(self._advance_all, patience=PATIENCE)
                if moves is not None:
                    rhythm.leave_core(moves, self._flowing)

        self._while_waiting(as_mpi_computes, look)

    def _flowing(self) -> bool:
        return all([task.runs_ahead for task in list(self._tasks)])

    def _advance_alone(self, task: Task) -> None:
        """Advance a task until nothing moved for SPIN, or there is another one. The caller has the turn."""
        latest = perf_counter() + SPIN
        while not task.ended and self._is_alone(task):
            if self._advance(task):
                latest = perf_counter() + SPIN
            elif perf_counter() > latest:
                return

    def test(self, task: Task) -> bool:
        """Advance all tasks once; whether this one has ended. Raises its error."""
        if not task.ended:
            self.poll()
        task.raise_error()
        return bool(task.ended)

    def poll(self) -> None:
        """Advance all tasks once, unless somebody else is at it."""
        as_mpi_computes(self._advanced)

    def _while_waiting(self, function: Callable[..., object], *arguments: object) -> None:
        """Call it; the thread leaves the turn to those who wait."""
        wait = object()
        try:
            self._waiting.add(wait)
            function(*arguments)
        finally:
            self._waiting.discard(wait)
            if self._left_alone:
                self._attend()

    def _advance_all(self) -> int:
        """How much the tasks moved. The caller has the turn."""
        moves = sum([self._advance(task) for task in list(self._tasks)])
        if not moves:
            self._admission.take(self._admit_overdue)
        return moves

    def _advance(self, task: Task) -> int:
        """How much a task moved: in steps."""
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
            if task.at is before:
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
                raise  # of a signal handler, beside the steps: the task goes on
            if not isinstance(error, Exception):  # Ctrl-C
                task.error = error
                self._end(task)
                raise
            if task.is_suspended:
                task.give_up()
            # whoever waits for this task gets it, not whoever happened to advance it
            task.error = task.queue.explain(error)
        self._end(task)
        return 1

    def _on(self, device: Device) -> AbstractContextManager[object]:
        """Make the device current: in the thread for good, as to give back its first one would take memory there."""
        if threading.current_thread() is not self._thread:
            return device
        if device.id != self._device:
            device.use()
            self._device = device.id
        return nullcontext()

    def _end(self, task: Task) -> None:
        """Once, and to the end: where a signal handler raises in it the next look goes on."""
        task.steps = iter(())
        if task.record and task.record.number:
            task.record.end()
        done, task.on_done = task.on_done, None
        if done:
            done()
        task.ended = perf_counter()
        then, task.then = task.then, None
        if then:
            self._turn.afterwards.append(then)
        # where a finalizer waits for this thread in the middle of an admission, the next look goes on
        self._admission.take(self._leave, task, patience=PATIENCE)

    # The thread.

    @property
    def _left_alone(self) -> bool:
        """Whether tasks are under way and nobody waits, who would advance them."""
        return bool(self._tasks) and not self._waiting

    def _attend(self) -> None:
        if self._thread is None and self.threaded:
            self._thread = threading.Thread(
                target=as_mpi_computes, args=(self._attend_tasks,), name="mpicoll progress", daemon=True)
            self._thread.start()
        if not self._awake.is_set():
            self._awake.set()

    def stop(self) -> None:
        """End the thread, before MPI is finalized; what is under way stays there."""
        self._stopping = True
        self._awake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN)

    def _attend_tasks(self) -> None:
        busy, rhythm = perf_counter(), Rhythm(PAUSE)
        while not self._stopping:
            if self._left_alone:
                busy = perf_counter()
                if rhythm.still(self._advanced()) > min(SPIN, rhythm.patience):
                    sleep(rhythm.pause(pace_of(self._flowing())))
                continue
            if perf_counter() - busy > (YIELD if self._waiting else LINGER):
                self._awake.clear()
                # what came since is seen, or has set it again
                if not self._left_alone and not self._stopping:
                    self._awake.wait()
                busy = perf_counter()  # also where what woke it has ended by now
            rhythm.restart()  # what is far apart then does not tell how fast things move
            sleep(rhythm.rest(perf_counter() - busy, RESTING))

    def _advanced(self) -> int:
        """Advance all tasks, unless somebody else has the turn; how much they moved."""
        return self._turn.take(self._advance_all) or 0


#: one per process: whoever waits for one collective must advance those of all communicators
PROGRESS = Progress()
