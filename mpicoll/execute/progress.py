"""Who advances the collectives under way: whoever waits for one, and between calls one thread, where MPI admits threads.

A task is a generator that yields wherever it would wait. Whoever has the turn polls all tasks; the others wait for the
turn without using a core. The thread gives way to those who wait, and pauses when nothing moves: a thread that spins
takes the core from the computation behind which it is to hide the communication.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import inf
from time import perf_counter, sleep

from mpi4py import MPI

from ..support.arrays import Device
from .arithmetic import as_mpi_computes
from .rhythm import NAP, PATIENCE, RESTING, SPIN, Rhythm, pace_of
from .tasks import Task
from .turn import Turn

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
        self._turn, self._lock, self._awake = Turn(), threading.Lock(), threading.Event()
        self._waiting = 0
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._device: int | None = None  # the thread's

    @property
    def threaded(self) -> bool:
        """Whether tasks move between calls too: where MPI grants THREAD_MULTIPLE, until it is finalized."""
        return not self._stopping and MPI.Query_thread() == MPI.THREAD_MULTIPLE

    def submit(self, task: Task) -> Task:
        """Begin it; local."""
        queue = task.queue
        with self._lock:
            queue.waiting.append(task)
            self._tasks.extend(queue.admit())
        self._attend()
        if self._is_alone(task):
            self._in_turn(self._advance, task)
        else:
            self.poll()
        return task

    def run(self, task: Task) -> Task:
        """Begin it and wait for its end; the thread is not woken. Raises its error."""
        with self._among_those_who_wait():
            with self._lock:
                task.queue.waiting.append(task)
                self._tasks.extend(task.queue.admit())
            self.wait(task)
        return task

    def _in_turn(self, advance: Callable[[Task], object], task: Task) -> None:
        """Call it for the task, unless somebody else has the turn or had it and ended the task."""
        if self._turn.acquire(blocking=False):
            try:
                if not task.ended:
                    task.computes(advance, task)
            finally:
                self._turn.release()

    def _is_alone(self, task: Task) -> bool:
        return self._tasks == [task]  # at once: another thread may end it meanwhile

    def wait(self, task: Task, limit: float = inf) -> bool:
        """Advance all tasks until this one has ended, or for so many seconds; whether it has. Raises its error."""
        if not task.ended:
            self._in_turn(self._advance_alone, task)  # a small one ends before anybody else wants the turn
        if not task.ended:
            waiting = perf_counter()

            self.wait_until(lambda: bool(task.ended) or perf_counter() - waiting > limit)
        task.raise_error()
        return bool(task.ended)

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
        with self._among_those_who_wait(), as_mpi_computes():
            while not is_over():
                # whoever has the turn may wait for longer than that takes: look after it from time to time
                if not self._turn.acquire(timeout=PATIENCE):
                    continue
                try:
                    moves = self._advance_all()
                finally:
                    self._turn.release()
                rhythm.leave_core(moves, self._flowing)

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
        with as_mpi_computes():
            self._advanced()

    @contextmanager
    def _among_those_who_wait(self) -> Iterator[None]:
        """The thread leaves the turn to them."""
        with self._lock:
            self._waiting += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1
            if self._left_alone:
                self._attend()

    def _advance_all(self) -> int:
        """How much the tasks moved. The caller has the turn."""
        return sum([self._advance(task) for task in list(self._tasks)])

    def _advance(self, task: Task) -> int:
        """How much a task moved: in steps."""
        task.begun = task.begun or perf_counter()
        before = task.at
        try:
            if task.queue.error is not None:
                task.give_up()
                raise task.queue.error
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
        except Exception as error:  # whoever waits for this task gets it, not whoever happened to advance it
            task.error = task.queue.explain(error)
        except BaseException as error:  # Ctrl-C
            task.error = error
            self._end(task)
            raise
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
        queue = task.queue
        with self._lock:
            self._tasks.remove(task)
            queue.running.remove(task)
            self._tasks.extend(queue.admit())
        task.steps, task.ended = iter(()), perf_counter()
        if task.record:
            task.record.end()
        if task.on_done:
            task.on_done()
        if task.then:
            self._turn.afterwards.append(task.then)

    # The thread.

    @property
    def _left_alone(self) -> bool:
        """Whether tasks are under way and nobody waits, who would advance them."""
        return bool(self._tasks) and not self._waiting

    def _attend(self) -> None:
        if self._thread is None and self.threaded:
            self._thread = threading.Thread(target=self._run, name="mpicoll progress", daemon=True)
            self._thread.start()
        if not self._awake.is_set():
            self._awake.set()

    def stop(self) -> None:
        """End the thread, before MPI is finalized; what is under way stays there."""
        self._stopping = True
        self._awake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN)

    def _run(self) -> None:
        with as_mpi_computes():
            self._attend_tasks()

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
        if not self._turn.acquire(blocking=False):
            return 0
        try:
            return self._advance_all()
        finally:
            self._turn.release()


#: one per process: whoever waits for one collective must advance those of all communicators
PROGRESS = Progress()
