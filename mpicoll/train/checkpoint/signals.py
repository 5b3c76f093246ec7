"""SIGUSR1 and SIGTERM request that training stops at the next step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    """A request to stop: `received` is None, or the first signal ("SIGUSR1", "SIGTERM")."""

    def __init__(self) -> None:
        self.received: str | None = None

    def note(self, number: int, _frame: FrameType | None) -> None:
        """Handler: it sets a flag only, as it may run in the middle of an MPI call."""
        self.received = self.received or signal.Signals(number).name


@contextmanager
def stop_signals() -> Iterator[Stop]:
    """A context in which SIGUSR1 and SIGTERM only set `received` of the `Stop` it gives.

    The former handlers are restored at its end.

    Outside the main thread, where Python sets no handlers, it changes nothing and `received` stays
    None. Signals reach ranks at different times, or some ranks only: the ranks have to agree on
    `received` before they act on it.

    Tried on one machine, a signal sent to mpiexec: Open MPI 5.0.11 and MPICH 5.0.2 pass SIGUSR1 on
    to all ranks, and the job goes on. MPICH does the same with SIGTERM. With Open MPI send SIGUSR1:
    SIGTERM is too early for most checkpoints (quirk: sigterm-kills-soon).
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    former = {
        number: signal.signal(number, stop.note) for number in (signal.SIGUSR1, signal.SIGTERM)
    }
    try:
        yield stop
    finally:
        for number, handler in former.items():
            # None: a handler that a C library set, which Python cannot put back
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
