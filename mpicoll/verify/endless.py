"""A limit for code that may never come back: a user's generator that loops without yielding."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

#: seconds to the next try, where the first came at a bad moment, or a bare `except` swallowed it
_AGAIN = 0.1


class Endless(BaseException):
    """Raised in the middle of what computes for too long; no `except Exception` in there catches it."""


@contextmanager
def ends_within(seconds: float) -> Iterator[None]:
    """Raise Endless where the block computes for longer.

    Seconds of this process's own computing, so that a busy machine does not matter. In the main thread, where Python runs
    signal handlers; in others nothing is limited.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_name == "__del__":  # which Python runs in the middle of anything, and whose errors it swallows
                return
            frame = frame.f_back
        raise Endless

    handler = signal.getsignal(signal.SIGVTALRM)
    signal.signal(signal.SIGVTALRM, interrupt)
    timer = signal.setitimer(signal.ITIMER_VIRTUAL, seconds, _AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, *timer)
        signal.signal(signal.SIGVTALRM, signal.SIG_DFL if handler is None else handler)
