"""A limit for code that may not return: a user's generator that loops without yielding."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType

#: seconds to the next signal, where `_SPARED` code ran at the first, or its error was lost
_AGAIN = 0.1


class Endless(BaseException):
    """Raised inside of a block that computes for too long; `except Exception` does not catch it."""


class EndsWithin:
    """Raises Endless inside of the block, where it computes for longer than a limit.

    The limit is CPU time of this process, so that a busy machine does not matter. It holds in the
    main thread, where Python runs signal handlers; other threads have no limit.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._is_limited = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> None:
        if self._is_limited:
            self._unraisablehook = sys.unraisablehook
            sys.unraisablehook = self._unraisable
            self._handler = signal.signal(signal.SIGVTALRM, _interrupt)
            self._timer = signal.setitimer(signal.ITIMER_VIRTUAL, self._seconds, _AGAIN)

    def __exit__(self, *raised: object) -> None:
        if self._is_limited:
            signal.setitimer(signal.ITIMER_VIRTUAL, *self._timer)
            handler = signal.SIG_DFL if self._handler is None else self._handler
            signal.signal(signal.SIGVTALRM, handler)
            sys.unraisablehook = self._unraisablehook

    def _unraisable(self, lost: sys.UnraisableHookArgs) -> None:
        """Called where an error cannot be raised, as in what the garbage collector calls."""
        if lost.exc_type is not Endless:
            self._unraisablehook(lost)


def _interrupt(_: int, frame: FrameType | None) -> None:
    """The handler of the signal: raises in the middle of the block."""
    while frame is not None:
        if frame.f_code in _SPARED or frame.f_code.co_name == "__del__":
            return
        frame = frame.f_back
    raise Endless


#: code in which Endless would leave the timer running; `__del__` is spared, as its errors get lost
_SPARED = EndsWithin.__enter__.__code__, EndsWithin.__exit__.__code__
