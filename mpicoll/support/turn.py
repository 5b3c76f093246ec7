"""What threads share, and a signal handler cannot break, wherever it raises: locks and queues."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")
Item = TypeVar("Item")

#: as patience
FOR_EVER = -1.0


class Flag:
    """`threading.Event` for one waiting thread.

    `Event.set` takes a lock in Python code: a signal handler that raises there leaves it locked for
    ever. Each method of a SimpleQueue is one call of C.
    """

    def __init__(self) -> None:
        #: holds an item while the flag is set
        self._items: SimpleQueue[None] = SimpleQueue()

    def is_set(self) -> bool:
        """Whether `wait` would return at once."""
        return not self._items.empty()

    def set(self) -> None:
        """Let the waiting thread go on."""
        if self._items.empty():
            self._items.put(None)

    def clear(self) -> None:
        """Let the next `wait` wait."""
        with suppress(Empty):
            while True:  # threads that set it at the same time put an item each
                self._items.get_nowait()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is set, or for so long; whether it is."""
        try:
            self._items.get(timeout=seconds)
        except Empty:
            return False
        self._items.put(None)
        return True


class Turn:
    """The right to advance the tasks: a lock that is released whatever happens.

    A signal handler may raise after any call, also one of `acquire` or `release`. So the lock is
    taken within `try`, and its release is the first thing that follows: nothing comes between.
    """

    def __init__(self) -> None:
        #: called when the turn is over, without it: the end of a task may begin calls and wait for
        #: them, which a thread that holds the turn must not
        self.afterwards: deque[Callable[[], object]] = deque()
        #: of the thread that has it
        self.lock: Any = threading.RLock()

    @property
    def is_mine(self) -> bool:
        """Whether this thread has it, also in a finalizer or a signal handler."""
        is_mine: bool = self.lock._is_owned()
        return is_mine

    def take(
        self, function: Callable[..., Result], *arguments: object, patience: float = 0.0
    ) -> Result | None:
        """Call a function in turn, and return its result.

        None where another thread keeps the turn for longer than `patience` seconds.
        """
        if self.is_mine:
            return function(*arguments)
        try:
            if not self.lock.acquire(timeout=patience):
                return None
            return function(*arguments)
        finally:
            try:
                self.lock.release()
            except RuntimeError:  # another thread has it
                pass
            else:
                self._see_to_what_waited()

    def _see_to_what_waited(self) -> None:
        if self.afterwards:  # most often not: no time for a generator then
            for call in drained(self.afterwards):
                call()


def drained(queue: deque[Item]) -> Iterator[Item]:
    """Take the items until none is left; threads, finalizers and handlers may add and take some."""
    while queue:
        try:
            item = queue.popleft()
        except IndexError:  # somebody else was faster
            return
        yield item
