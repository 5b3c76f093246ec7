"""Code that garbage collection must not interrupt, because finalizers would run in its middle."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from .forks import lock_for_forks

#: a child that is forked meanwhile would collect no garbage
_lock = lock_for_forks()


@contextmanager
def no_collection() -> Iterator[None]:
    """Disable garbage collection, in all threads. A single thread at a time may do so."""
    with _lock:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if was_enabled:
                gc.enable()


def frames_of_threads() -> dict[int, FrameType]:
    """The current frame of each thread, by the thread's identifier.

    CPython 3.11 and earlier deadlock where they collect garbage with a `threading.local` meanwhile
    (python/cpython issue 106883).
    """
    with no_collection():
        return sys._current_frames()
