"""Whose turn it is to advance the tasks, and what waits for that turn to be over."""

import threading
from collections import deque
from collections.abc import Callable


class Turn:
    """A lock that its thread may take again. afterwards: called by whoever gives it back, without it.

    What ends a task may begin other calls and wait for them, which nobody can who holds up all others meanwhile.
    """

    def __init__(self) -> None:
        self.afterwards: deque[Callable[[], object]] = deque()
        self._lock, self._times = threading.RLock(), 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As a lock's."""
        if not self._lock.acquire(blocking, timeout):
            return False
        self._times += 1
        return True

    def release(self) -> None:
        """Give it back, then see to what has waited for that."""
        self._times -= 1
        is_over = not self._times
        self._lock.release()
        while is_over and self.afterwards:
            try:
                call = self.afterwards.popleft()
            except IndexError:  # another thread was faster
                return
            call()
