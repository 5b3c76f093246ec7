"""Collectives under way in the background: tasks, and the queues in which they take their turns."""

from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from types import GeneratorType
from typing import Any, Protocol

from mpi4py import MPI

from ..failure import ABANDONED, Record, Withdrawable
from ..support.arrays import Device
from .arithmetic import calls_as_mpi_computes
from .stall import Stall

#: tasks of one queue under way at a time: more would take bandwidth from those needed first
WINDOW = 2
#: seconds without a move before one more task runs, if other ranks may have started it earlier
STALLED = 0.05


class Queue:
    """Tasks that take their turns in the order in which they were submitted.

    The order is the same on all ranks, except for plans: other ranks may start plans in another
    order. Then a task that waits here may be needed there before those that run here can move. Once
    that has happened, all tasks run at a time.

    check_wait: called from time to time while a task does not move; sets the error where that
    lasts too long. explain(error): what is raised in place of a task's error. lose(text, error):
    told of an error that has ended the task of a call; text: the call.
    """

    def __init__(
        self,
        check_wait: Callable[[], object] = lambda: None,
        explain: Callable[[Exception], Exception] = lambda error: error,
        lose: Callable[[str, BaseException], object] = lambda text, error: None,
    ) -> None:
        self.check_wait = check_wait
        self.explain = explain
        self.lose = lose
        #: since when no task of the queue, nor a call that shares its limit, has moved
        self.stall = Stall()
        #: why no task can come to its end; None while all is well
        self.error: Exception | None = None
        self.running: list[Task] = []
        self.waiting: list[Task] = []
        self.in_any_order = False

    @property
    def tasks(self) -> list["Task"]:
        """All that have not ended, in order of submission."""
        return [*self.running, *self.waiting]

    @property
    def next(self) -> "Task | None":
        """The first that waits, if it may run now."""
        if not self.waiting:
            return None
        first = self.waiting[0]
        if self.in_any_order:
            return first
        if len(self.running) >= WINDOW:
            return None
        if first.track is not None and any(task.track == first.track for task in self.running):
            return None
        return first

    @property
    def overdue(self) -> "Task | None":
        """The first that waits, if the running ones are stalled: it may have to overtake them."""
        if not self.waiting or not any(task.is_plan for task in self.tasks):
            return None
        latest = max((max(task.begun, task.moved) for task in self.running), default=0.0)
        return self.waiting[0] if perf_counter() - latest > STALLED else None

    def start(self, task: "Task") -> None:
        """Run the task from now on."""
        if task not in self.running:
            self.running.append(task)
        self.waiting.remove(task)

    def finish(self, task: "Task") -> None:
        """The task has ended."""
        if task in self.running:
            self.running.remove(task)
        # those admitted before it still wait for ranks that have come to the end of this one
        self.in_any_order = self.in_any_order or (
            task.has_overtaken
            and any(other.is_plan and other.moved < task.begun for other in self.running)
        )


class Task:
    """A collective under way.

    on_done: called when it ends. then: called after that, outside all turns; may wait for tasks.
    device: the GPU that must be current in the thread that polls it, or None. computes: see
    `calls_as_mpi_computes`.
    """

    def __init__(
        self,
        steps: Iterator[object],
        queue: Queue,
        record: Record | None = None,
        on_done: Callable[[], object] | None = None,
        device: Device | None = None,
        computes: Callable[..., object] = calls_as_mpi_computes(own_code=False),
        then: Callable[[], object] | None = None,
        track: int | None = None,
        is_plan: bool = False,
    ) -> None:
        is_generator = isinstance(steps, GeneratorType)
        self.steps: Iterator[object] = steps if is_generator else _as_generator(steps)
        self.queue = queue
        #: of the call that it serves; ends with the task
        self.record = record
        #: two tasks of a queue with the same track do not run at the same time, unless ranks start
        #: them in different orders; None: beside any
        self.track = track
        #: whether ranks may start it in different orders
        self.is_plan = is_plan
        self.on_done = on_done
        self.device = device
        self.computes = computes
        self.then = then
        #: a step of it is being made
        self.is_advanced = False
        #: it runs because those before it did not move
        self.has_overtaken = False
        #: what it waits for, and how far that has come: a program moves, and stays the same object
        self.at: object = None
        self.reached = 0
        #: an object that checks its buffers until the user waits for it
        self.guard: Any = None
        #: what it raised
        self.error: BaseException | None = None
        #: seconds of `perf_counter`; 0: not yet
        self.begun = 0.0
        self.moved = 0.0
        self.ended = 0.0
        #: the step of its plan when `steps_made` was last called
        self._step = 0

    def steps_made(self) -> int:
        """The number of steps since the last call; at least one, as it is called after a move."""
        plan = self.record and self.record.plan
        before, self._step = self._step, (plan and plan.step) or 0
        return max(1, self._step - before)

    @property
    def is_suspended(self) -> bool:
        """Whether its steps can go on: no error came from them."""
        return getattr(self.steps, "gi_frame", None) is not None

    @property
    def runs_ahead(self) -> bool:
        """Whether other messages of it are on their way while one is awaited.

        Then the awaited message is not late if it is seen late.
        """
        plan = self.record and self.record.plan
        return bool(plan and plan.runs_ahead)

    def give_up(self) -> None:
        """End it in the middle: no other rank changes its memory from now on."""
        plan = self.record and self.record.plan
        left: list[MPI.Request] = plan.withdraw() if isinstance(plan, Withdrawable) else []
        ABANDONED.append((self.steps, left))

    def raise_error(self) -> None:
        """Raise what ended it, if anything did."""
        if self.error is not None:
            raise self.error


class Unattended(Protocol):
    """A call that has begun, or may begin when those before it on its track have ended.

    It becomes a task where it does not end while somebody waits. place: the queue of that task, and
    its track; begun: seconds of `perf_counter`; delay: seconds after which it becomes one at the
    latest.
    """

    place: tuple[Queue, int]
    begun: float
    delay: float

    def go_on(self) -> bool | None:
        """Advance it as far as it can, and take it off the list if it ends; whether it has moved.

        None: only a task can go on.
        """

    def finish_alone(self, patience: float) -> bool:
        """The same where it is all that is under way, until nothing moves for so many seconds.

        Whether it has ended.
        """
        ...

    def as_task(self) -> Task:
        """The task that goes on with it, always the same one."""
        ...


def _as_generator(steps: Iterator[object]) -> Iterator[object]:
    yield from steps


def until_done(requests: Iterable[MPI.Request]) -> Iterator[MPI.Request]:
    """For a `Task`: tests each request until it is done, where a blocking call would wait."""
    for request in requests:
        while not request.Test():
            yield request
