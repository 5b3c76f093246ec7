"""Levels, which begin calls and complete the futures of asynchronous calls in order.

PyTorch matches the calls of ranks by their order alone: a rank may wait in the call, another rank
later. So every call of a level is MPI's non-blocking call, or a schedule with the next number,
whether its caller waits or not.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ..codes import CompressionName
from ..communicator import Communicator, begin_task, run_task
from ..errors import MpicollError
from ..execute import Context
from ..failure import ABANDONED
from ..progress import PROGRESS
from ..support import settings
from .futures import Future
from .halves import ARE_KEPT, Halves
from .memory import Finish, finish_all
from .sequence import CallSequence
from .works import CollectiveWork

#: how deep callbacks may begin calls that have callbacks themselves. Each level has a communicator,
#: made with the group: a callback runs at another time on each rank, so it cannot create one
LEVELS = 3


class _CallbackDepth(threading.local):
    """How deep this thread is in callbacks; 0 outside of them."""

    depth = 0


_CALLBACKS = _CallbackDepth()


def depth_of_this_thread() -> int:
    """The number of the level on which this thread begins calls; MpicollError below the last."""
    depth = _CALLBACKS.depth
    if depth >= LEVELS:
        raise MpicollError(
            f"a call begun in a callback of a call that was itself begun in a callback, {depth} "
            f"levels deep: mpicoll has {LEVELS} levels. Wait for one of these calls in its "
            "callback, and begin the next one after that"
        )
    return depth


def levels_of(comm: Communicator) -> list[CallLevel]:
    """The levels of a process group: on its communicator and on duplicates of it. Collective."""
    return [CallLevel(comm if depth == 0 else comm.Dup(), depth) for depth in range(LEVELS)]


class CallLevel:
    """A communicator, the works begun there, and the callbacks of their futures.

    Futures are completed in the order of their works, callbacks run in the order of registration:
    both are the same on all ranks. So the calls that callbacks begin are matched by order like all
    others, on the level below this one.
    """

    def __init__(self, comm: Communicator, depth: int) -> None:
        self.comm = comm
        self._depth = depth
        self._works: deque[CollectiveWork] = deque()
        self._callbacks: deque[tuple[Future, Callable[[], object]]] = deque()
        self._completing = threading.Lock()
        self._sequence = CallSequence(comm)
        self._halves = None if ARE_KEPT else Halves()

    def begin(
        self,
        method: str,
        arguments: Sequence[Any],
        result: list[Any],
        memory: object,
        finishes: Sequence[Finish],
        algorithm: str | None = None,
        compression: CompressionName | None = None,
    ) -> CollectiveWork:
        """Begin a collective; returns its work. memory: must live until the collective ends."""
        self._sequence.enter(method, arguments)
        work = CollectiveWork(self, result, memory)
        finish = finish_all(finishes)
        work.task = begin_task(
            self.comm, method, arguments, self.complete, finish, algorithm, compression
        )
        self._works.append(work)
        if self._halves is not None:
            self._halves.keep(work)
        if work.task.ended:
            self.complete()
        return work

    def run(
        self,
        method: str,
        arguments: Sequence[Any],
        memory: object,
        finishes: Sequence[Finish],
        algorithm: str | None = None,
    ) -> None:
        """Serve a collective and wait for it."""
        self._sequence.enter(method, arguments)
        try:
            run_task(self.comm, method, arguments, finish_all(finishes), algorithm)
        except BaseException:
            ABANDONED.append(memory)  # MPI may still write there
            raise

    def call_back(self, future: Future, callback: Callable[[], object]) -> None:
        """Call it when the future is complete, after the callbacks registered before."""
        self._callbacks.append((future, callback))
        self.complete()

    def complete(self) -> None:
        """Complete futures and call back, as far as works have ended.

        A single thread does it at a time; others return at once.
        """
        while (self._has_ended() or self._may_call()) and self._completing.acquire(blocking=False):
            before = _CALLBACKS.depth
            _CALLBACKS.depth = self._depth + 1
            try:
                while self._has_ended():
                    self._works.popleft().complete()
                if self._may_call():
                    _, callback = self._callbacks.popleft()
                    callback()
            finally:
                _CALLBACKS.depth = before
                self._completing.release()

    def _has_ended(self) -> bool:
        return bool(self._works) and self._works[0].is_completed()

    def _may_call(self) -> bool:
        return bool(self._callbacks) and self._callbacks[0][0].done()

    def wait(self) -> None:
        """Wait for all calls that were begun."""
        for work in list(self._works):
            work.wait()

    def limit(self, seconds: float) -> None:
        """Set for how many seconds its calls may make no progress."""
        Context.of(self.comm).timeout = settings.timeout(seconds)

    def finish(self) -> None:
        """Bring all calls to their end, with or without errors, which the waiting threads raise."""
        with suppress(Exception):
            Context.of(self.comm).drain()
            self._sequence.finish()

    def leave(self) -> None:
        """Bring all calls to their end and free the communicator, unless it is invalid.

        MPI may still write for a call that was given up, also after the communicator was freed.
        """
        context = Context.of(self.comm)
        self.finish()
        if context.broken:
            ABANDONED.append(self)
        else:
            self.comm.Free()

    def withdraw(self, error: MpicollError) -> None:
        """End all calls with this error, at once and on this rank alone; serve no further call."""
        ABANDONED.append(self)
        Context.of(self.comm).in_disorder(error, tell=False)
        PROGRESS.poll()
