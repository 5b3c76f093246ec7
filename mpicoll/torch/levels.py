"""Where calls are begun, and in which order the futures of asynchronous ones are completed and called back.

PyTorch matches the calls of ranks by their order alone: one rank may wait in the call, another later. So every call of a
level is MPI's non-blocking one, or a schedule with the next number, whether its caller waits or not.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ..communicator import Communicator, begin_task, run_task
from ..errors import MpicollError
from ..execute import ABANDONED, PROGRESS, Context
from ..support import settings
from .futures import Future
from .halves import ARE_KEPT, Halves
from .memory import Finish, finish_all
from .sequence import CallSequence
from .works import Work

#: how deep calls may be begun in callbacks of calls that were begun in callbacks. Each level has a communicator, made with
#: the group: what is collective cannot wait for a callback, which comes at another time on each rank
LEVELS = 3


class _Inside(threading.local):
    """How deep this thread is in callbacks of futures that were completed in callbacks …; 0: it is in none."""

    depth = 0


INSIDE = _Inside()


def depth_of_this_thread() -> int:
    """The number of the level on which this thread begins calls. Raises RuntimeError where there is none."""
    if INSIDE.depth >= LEVELS:
        raise MpicollError(
            f"a call begun in a callback of a call that was itself begun in a callback, {INSIDE.depth} levels deep: mpicoll "
            f"has {LEVELS} levels. Wait for one of these calls in its callback, and begin the next one after that"
        )
    return INSIDE.depth


def levels_of(comm: Communicator) -> list[Level]:
    """Those of a process group: on its communicator, and on duplicates of it. Collective."""
    return [Level(comm if depth == 0 else comm.Dup(), depth) for depth in range(LEVELS)]


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
        self._sequence = CallSequence(comm)
        self._halves = None if ARE_KEPT else Halves()

    def begin(self, method: str, given: Sequence[Any], result: list[Any], kept: object, finishes: Sequence[Finish],
              algorithm: str | None = None) -> Work:  # fmt: skip
        """Begin a collective; returns its work. result: of the work. kept: must live until it has ended."""
        self._sequence.enter(method, given)
        work = Work(self, result, kept)
        work.task = begin_task(self.comm, method, given, self.complete, finish_all(finishes), algorithm)
        self._works.append(work)
        if self._halves is not None:
            self._halves.keep(work)
        if work.task.ended:
            self.complete()
        return work

    def run(self, method: str, given: Sequence[Any], kept: object, finishes: Sequence[Finish],
            algorithm: str | None = None) -> None:  # fmt: skip
        """Serve a collective and wait for it."""
        self._sequence.enter(method, given)
        try:
            run_task(self.comm, method, given, finish_all(finishes), algorithm)
        except BaseException:
            ABANDONED.append(kept)  # MPI may still write there
            raise

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

    def limit(self, seconds: float) -> None:
        """Its calls may make no progress for so long, from now on."""
        Context.of(self.comm).timeout = settings.timeout(seconds)

    def finish(self) -> None:
        """Bring what was begun to its end, good or bad: those who wait for it are told."""
        with suppress(Exception):
            Context.of(self.comm).drain()
            self._sequence.finish()

    def leave(self) -> None:
        """Bring what was begun to its end and free the communicator; one that is broken is left as it is.

        MPI may still write for a call that was given up, also through a communicator that was freed.
        """
        context = Context.of(self.comm)
        self.finish()
        if context.broken:
            ABANDONED.append(self)
        else:
            self.comm.Free()

    def withdraw(self, error: MpicollError) -> None:
        """Have what was begun end with this error, at once and on this rank alone, and serve no further call."""
        ABANDONED.append(self)
        Context.of(self.comm).in_disorder(error, tell=False)
        PROGRESS.poll()
