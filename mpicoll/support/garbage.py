"""Code in which no garbage may be collected, because finalizers would run in its middle."""

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_lock = threading.RLock()


@contextmanager
def no_collection() -> Iterator[None]:
    """Garbage is not collected meanwhile, in any thread. One thread at a time is here."""
    with _lock:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if was_enabled:
                gc.enable()


def frames_of_threads() -> dict[int, FrameType]:
    """The frame in which each thread is, by its identifier.

    CPython 3.11 and earlier wait for themselves for ever where garbage with a `threading.local` is collected meanwhile
    (python/cpython issue 106883).
    """
    with no_collection():
        return sys._current_frames()
