"""Where asynchronous calls are begun, and in which order their futures are completed and called back."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..communicator import Communicator, begin_task
from .futures import Future
from .halves import ARE_KEPT, Halves
from .memory import Finish, finish_all
from .works import Work

_engine: Any = torch.autograd.Variable._execution_engine


class _Inside(threading.local):
    """How deep this thread is in callbacks of futures that were completed in callbacks …; 0: it is in none."""

    depth = 0


INSIDE = _Inside()


class Level:
    """A communicator, the works begun there, and the callbacks of their futures.

    Futures are completed in the order of their works, callbacks run in the order in which they were given: both are the same
    on all ranks. So what callbacks begin is matched by order like everything else, on the level below this one.
    """

    def __init__(self, comm: Communicator, depth: int) -> None:
        self.comm, self._depth = comm, depth
        self._works: deque[Work] = deque()
        self._callbacks: deque[tuple[Future, Callable[[], object]]] = deque()
        self._completing = threading.Lock()
        self._halves = None if ARE_KEPT else Halves()

    def begin(self, method: str, given: Sequence[Any], result: list[Any], kept: object, finishes: Sequence[Finish],
              algorithm: str | None = None) -> Work:  # fmt: skip
        """Begin a collective; returns its work. result: of the work. kept: must live until it has ended."""
        work = Work(self, result, kept)
        work.task = begin_task(self.comm, method, given, self.complete, finish_all(finishes), algorithm)
        self._works.append(work)
        if self._halves is not None:
            self._halves.keep(work)
        if torch._C._current_graph_task_id() != -1:
            # backward ends in C++, waiting for futures, where nothing advances: rather wait here
            _engine.queue_callback(work.wait)
        if work.task.ended:
            self.complete()
        return work

    def call_back(self, future: Future, callback: Callable[[], object]) -> None:
        """Call it when the future is complete, after those that were given before."""
        self._callbacks.append((future, callback))
        self.complete()

    def complete(self) -> None:
        """Complete futures and call back, as far as works have ended; one thread does it, others pass."""
        while (self._has_ended() or self._may_call()) and self._completing.acquire(blocking=False):
            before, INSIDE.depth = INSIDE.depth, self._depth + 1
            try:
                while self._has_ended():
                    self._works.popleft().complete()
                if self._may_call():
                    self._callbacks.popleft()[1]()
            finally:
                INSIDE.depth = before
                self._completing.release()

    def _has_ended(self) -> bool:
        return bool(self._works) and self._works[0].is_completed()

    def _may_call(self) -> bool:
        return bool(self._callbacks) and self._callbacks[0][0].done()

    def wait(self) -> None:
        """Wait for all that was begun."""
        for work in list(self._works):
            work.wait()
