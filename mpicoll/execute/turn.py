"""The right to advance the tasks, which one thread has at a time."""

import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

#: as patience
FOR_EVER = -1.0


class Turn:
    """A lock that is released whatever happens.

    A signal handler may raise between any two lines. So the lock is taken within `try`, and
    released whenever this thread has it: the return value of `acquire` may be lost.
    """

    def __init__(self) -> None:
        #: called when the turn is over, without it: the end of a task may begin calls and wait for
        #: them, which a thread that holds the turn must not
        self.afterwards: deque[Callable[[], object]] = deque()
        self._lock = threading.RLock()
        self._owner = 0

    @property
    def is_mine(self) -> bool:
        """Whether this thread has it, also in a finalizer or a signal handler."""
        return self._owner == threading.get_ident()

    def take(
        self, function: Callable[..., Result], *arguments: object, patience: float = 0.0
    ) -> Result | None:
        """Call a function in turn, and return its result.

        None where another thread keeps the turn for longer than `patience` seconds.
        """
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
