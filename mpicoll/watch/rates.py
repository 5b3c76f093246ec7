"""How much this process communicates between two reports."""

from __future__ import annotations

from time import perf_counter

from ..execute import Context
from ..failure import past


class Rates:
    """The counts of the last report."""

    def __init__(self) -> None:
        self._reported = perf_counter()
        self._calls = 0
        self._bytes = 0

    def since_before(self) -> dict[str, float]:
        """Calls and bytes sent in schedules, per second, and the share of time spent in calls."""
        now = perf_counter()
        before = self._reported
        living = Context.living()
        calls = sum(context.recorder.count for context in living)
        nbytes = sum(context.sent[1] for context in living)
        seconds = max(now - before, 1e-3)
        begun = [record.begun for context in living for record in context.recorder.under_way]
        spans = [(max(call.begun, before), call.ended) for call in past() if call.ended > before]
        inside = _covered([*spans, *((max(start, before), now) for start in begun)])
        observed = seconds
        # more calls than are remembered: the share of the remembered time stands for all
        if calls - self._calls > len(spans) > 0:
            observed = max(now - spans[0][0], 1e-6)
        # a freed communicator takes its counts along
        rates = {
            "calls": max(calls - self._calls, 0) / seconds,
            "bytes": max(nbytes - self._bytes, 0) / seconds,
            "inside": min(inside / observed, 1.0),
        }
        self._reported = now
        self._calls = calls
        self._bytes = nbytes
        return rates


def _covered(spans: list[tuple[float, float]]) -> float:
    """The seconds in at least one of the spans."""
    total = 0.0
    end = 0.0
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total
