"""Whose turn it is to advance the tasks, and what waits for that turn to be over."""

import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

#: as patience
FOR_EVER = -1.0


class Turn:
    """Held by one thread at a time, and given back whatever happens meanwhile.

    afterwards: called when the turn is over, without it. What ends a task may begin other calls and wait for them, which
    nobody can who holds up all others meanwhile.

    A signal handler may raise between any two lines. So the lock is taken within `try`, and released by asking for it: what
    `acquire` returned may be lost.
    """

    def __init__(self) -> None:
        self.afterwards: deque[Callable[[], object]] = deque()
        self._lock = threading.RLock()
        self._owner = 0

    @property
    def is_mine(self) -> bool:
        """Whether this thread has it: a finalizer or a signal handler that asks has interrupted who took it."""
        return self._owner == threading.get_ident()

    def take(
        self, function: Callable[..., Result], *arguments: object, patience: float = 0.0
    ) -> Result | None:
        """Call it in turn, and return what it does; None where another thread has had the turn for so many seconds."""
        if self.is_mine:
            return function(*arguments)
        try:
            if not self._lock.acquire(timeout=patience):
                return None
            self._owner = threading.get_ident()
            return function(*arguments)
        finally:
            if self._owner == threading.get_ident():
                self._owner = 0
            try:
                self._lock.release()
            except RuntimeError:  # another thread has it
                pass
            else:
                self._see_to_what_waited()

    def _see_to_what_waited(self) -> None:
        while self.afterwards:
            try:
                call = self.afterwards.popleft()
            except IndexError:  # another thread was faster
                return
            call()
