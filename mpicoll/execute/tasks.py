"""Collectives under way for which nobody waits: tasks, and the queues in which they take their turns."""

from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from types import GeneratorType
from typing import Any

from mpi4py import MPI

from ..support.arrays import Device
from .arithmetic import calls_as_mpi_computes
from .recorder import Record
from .stall import Stall
from .withdrawal import ABANDONED, Withdrawable

#: tasks of one queue under way at a time: the next ones would take their share of the link from those needed first
WINDOW = 2
#: seconds for which none of them moves before one more runs, where other ranks may have started it before those
STALLED = 0.05


class Queue:
    """Tasks that take their turns in the order in which they were submitted.

    It is the same on all ranks, but for plans: other ranks may start them in another order. Then one that waits here is
    needed there before those that run here can move. Where that was seen once, all run at a time.

    error: why none of them can come to its end; None while all is well. check_wait: called from
    time to time while a task does not move; sets the error where that lasts too long.
    explain(error): what is raised in place of a task's error. stall: since when nothing of the
    queue, and of whatever shares the limit with it, has moved.
    """

    def __init__(
        self,
        check_wait: Callable[[], object] = lambda: None,
        explain: Callable[[Exception], Exception] = lambda error: error,
    ) -> None:
        self.check_wait, self.explain = check_wait, explain
        self.stall = Stall()
        self.error: Exception | None = None
        self.running: list[Task] = []
        self.waiting: list[Task] = []
        self.in_any_order = False

    @property
    def tasks(self) -> list["Task"]:
        """All that have not ended, in their order."""
        return [*self.running, *self.waiting]

    @property
    def next(self) -> "Task | None":
        """The first that waits, if it may run now."""
        if not self.waiting or self.in_any_order:
            return self.waiting[0] if self.waiting else None
        track = self.waiting[0].track
        if len(self.running) >= WINDOW or track is not None and any(task.track == track for task in self.running):
            return None
        return self.waiting[0]

    @property
    def overdue(self) -> "Task | None":
        """The first that waits, if those that run have not moved for so long that it may have to overtake them."""
        if not self.waiting or not any(task.is_plan for task in self.tasks):
            return None
        latest = max((max(task.begun, task.moved) for task in self.running), default=0.0)
        return self.waiting[0] if perf_counter() - latest > STALLED else None

    def start(self, task: "Task") -> None:
        """It runs from now on."""
        if task not in self.running:
            self.running.append(task)
        self.waiting.remove(task)

    def finish(self, task: "Task") -> None:
        """It has ended."""
        if task in self.running:
            self.running.remove(task)
        # those admitted before it still wait for ranks that have come to the end of this one
        self.in_any_order = self.in_any_order or (
            task.has_overtaken and any(one.is_plan and one.moved < task.begun for one in self.running))


class Task:
    """A collective under way. begun, moved, ended: seconds of `perf_counter`, 0 before; error: what it raised, or None.

    record: of the call that it serves, which ends with it. on_done: called then. then: called after it, when it is nobody's
    turn; may wait for tasks. device: the GPU that must be current in whatever thread polls it, or None. computes: see
    `calls_as_mpi_computes`. track: two tasks of a queue with the same one do not run at the same time, unless ranks start
    them in different orders; None: beside any. is_plan: whether they may.
    guard: who watches its buffers until the user waits for it, if somebody does.
    is_advanced: a step of it is being made. has_overtaken: it runs because those before it did not move.
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
        self.steps: Iterator[object] = steps if isinstance(steps, GeneratorType) else _as_generator(steps)
        self.queue, self.record, self.track, self.is_plan = queue, record, track, is_plan
        self.on_done, self.device, self.computes, self.then = on_done, device, computes, then
        self.is_advanced = self.has_overtaken = False
        self.at: object = None
        self.guard: Any = None
        self.error: BaseException | None = None
        self.begun = self.moved = self.ended = 0.0
        self._step = 0

    def steps_made(self) -> int:
        """How many, since it was asked before; at least one, as it is asked when it moved."""
        plan = self.record and self.record.plan
        before, self._step = self._step, (plan and plan.step) or 0
        return max(1, self._step - before)

    @property
    def is_suspended(self) -> bool:
        """Whether its steps can go on: no error came from them."""
        return getattr(self.steps, "gi_frame", None) is not None

    @property
    def runs_ahead(self) -> bool:
        """Whether other messages of it are on their way while one is awaited, so that it is not late if seen late."""
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


def _as_generator(steps: Iterator[object]) -> Iterator[object]:
    yield from steps


def until_done(requests: Iterable[MPI.Request]) -> Iterator[MPI.Request]:
    """For a `Task`: each request tested until it is done, where a blocking call would wait for it."""
    for request in requests:
        while not request.Test():
            yield request
