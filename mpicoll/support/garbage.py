"""Code that garbage collection must not interrupt, because finalizers would run in its middle."""

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

from .forks import lock_for_forks

Result = TypeVar("Result")

#: a child that is forked meanwhile would collect no garbage
_lock = lock_for_forks()


def without_collection(function: Callable[..., Result], *arguments: object) -> Result:
    """Call a function while garbage collection is disabled, in all threads; one call at a time.

    Others wait: a finalizer in its middle could wait for what they keep. It is no context manager:
    where a signal handler raises when that begins, nothing would end it.
    """
    with _lock:
        was_enabled = gc.isenabled()
        try:
            gc.disable()
            return function(*arguments)
        finally:
            if was_enabled:
                gc.enable()


def frames_of_threads() -> dict[int, FrameType]:
    """The current frame of each thread, by the thread's identifier.

    CPython 3.11 and earlier deadlock where they collect garbage with a `threading.local` meanwhile
    (python/cpython issue 106883).
    """
    return without_collection(sys._current_frames)
