"""A limit for code that may never come back: a user's generator that loops without yielding."""

from __future__ import annotations

import signal
import threading
from types import FrameType

#: seconds to the next try, where the first came at a bad moment, or a bare `except` swallowed it
_AGAIN = 0.1


class Endless(BaseException):
    """Raised in the middle of what computes for too long; no `except Exception` in there catches it."""


class EndsWithin:
    """Raises Endless where the block computes for longer, and nowhere else.

    Seconds of this process's own computing, so that a busy machine does not matter. In the main thread, where Python runs
    signal handlers; in others nothing is limited.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._is_limited = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> None:
        if self._is_limited:
            self._handler = signal.signal(signal.SIGVTALRM, _interrupt)
            self._timer = signal.setitimer(signal.ITIMER_VIRTUAL, self._seconds, _AGAIN)

    def __exit__(self, *raised: object) -> None:
        if self._is_limited:
            signal.setitimer(signal.ITIMER_VIRTUAL, *self._timer)
            signal.signal(signal.SIGVTALRM, signal.SIG_DFL if self._handler is None else self._handler)


def _interrupt(_: int, frame: FrameType | None) -> None:
    """The handler of the signal: raises in the middle of the block."""
    while frame is not None:
        if frame.f_code in _SPARED or frame.f_code.co_name == "__del__":
            return
        frame = frame.f_back
    raise Endless


#: where Endless would leave the timer running; as in `__del__`, which Python runs in the middle of anything, and whose errors
#: it swallows
_SPARED = EndsWithin.__enter__.__code__, EndsWithin.__exit__.__code__
