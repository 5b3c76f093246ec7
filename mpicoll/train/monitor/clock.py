"""When arithmetic is done: at once on the host, later on a device.

The host must not wait for the device to find out.
"""

from __future__ import annotations

from math import inf
from time import perf_counter
from types import ModuleType
from typing import Any, NamedTuple

#: on a device, of an event; on the host None: what was asked for is done
Mark = Any


class HostClock:
    """Of arithmetic that is done when its function returns.

    All times are seconds of `perf_counter`.
    """

    def mark(self) -> Mark:
        """What was asked for until now."""
        return None

    def done(self, mark: Mark) -> float:
        """When that was done; before any time asked about on the host, infinite where it is not
        done yet.
        """
        return 0.0

    def settle(self) -> bool:
        """Wait until all that was asked for is done; whether there is anything to wait for."""
        return False


class _Anchor(NamedTuple):
    """An event of the device whose time on the host is known."""

    event: Any
    time: float


class _Asked(NamedTuple):
    event: Any
    anchor: _Anchor


class DeviceClock(HostClock):
    """A clock for the current stream of a device: marks are events; only `settle` waits.

    module: CuPy. The device's clock and the host's drift apart, so each `settle` compares them
    anew.
    """

    def __init__(self, module: ModuleType) -> None:
        self._cuda: Any = module.cuda
        self.settle()

    def _recorded(self) -> Any:
        event = self._cuda.Event()
        event.record(self._cuda.get_current_stream())
        return event

    def mark(self) -> Mark:
        return _Asked(self._recorded(), self._anchor)

    def done(self, mark: Mark) -> float:
        if not mark.event.done:
            return inf
        milliseconds = float(self._cuda.get_elapsed_time(mark.anchor.event, mark.event))
        return float(mark.anchor.time + milliseconds / 1e3)

    def settle(self) -> bool:
        event = self._recorded()
        event.synchronize()
        self._anchor = _Anchor(event, perf_counter())
        return True


def clock_of(module: ModuleType) -> HostClock:
    """The clock for arithmetic by NumPy or CuPy."""
    return DeviceClock(module) if hasattr(module, "cuda") else HostClock()
