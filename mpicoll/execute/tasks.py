"""Collectives under way for which nobody waits: tasks, and the queues in which they take their turns."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mpi4py import MPI

from ..support.arrays import Device
from .arithmetic import calls_as_mpi_computes
from .recorder import Record
from .stall import Stall
from .withdrawal import ABANDONED, Withdrawable

#: tasks of one queue under way at a time: the next ones would take their share of the link from those needed first
WINDOW = 2


class Queue:
    """Tasks that take their turns in the order in which they were submitted, which is the same on all ranks.

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

    @property
    def tasks(self) -> list["Task"]:
        """All that have not ended, in their order."""
        return [*self.running, *self.waiting]

    def admit(self) -> Iterator["Task"]:
        """Those that may run now, in their order."""
        while self.waiting and len(self.running) < WINDOW:
            track = self.waiting[0].track
            if track is not None and any(task.track == track for task in self.running):
                return
            self.running.append(self.waiting.pop(0))
            yield self.running[-1]


class Task:
    """A collective under way. begun, moved, ended: seconds of `perf_counter`, 0 before; error: what it raised, or None.

    record: of the call that it serves, which ends with it. on_done: called then. then: called after it, when it is nobody's
    turn; may wait for tasks. device: the GPU that must be current in whatever thread polls it, or None. computes: see
    `calls_as_mpi_computes`. track: two tasks of a queue with the same one never run at the same time; None: beside any.
    guard: who watches its buffers until the user waits for it, if somebody does.
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
    ) -> None:
        self.steps, self.queue, self.record, self.track = steps, queue, record, track
        self.on_done, self.device, self.computes, self.then = on_done, device, computes, then
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


def until_done(requests: Iterable[MPI.Request]) -> Iterator[MPI.Request]:
    """For a `Task`: each request tested until it is done, where a blocking call would wait for it."""
    for request in requests:
        while not request.Test():
            yield request
