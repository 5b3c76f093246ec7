"""How much this process communicates, from one report to the next."""

from __future__ import annotations

from time import perf_counter

from ..execute import Context, past


class Rates:
    """What was counted when somebody asked last."""

    def __init__(self) -> None:
        self._asked = perf_counter()
        self._calls = self._bytes = 0

    def since_before(self) -> dict[str, float]:
        """Calls and bytes sent in schedules, per second, and the share of time spent in calls."""
        now, living = perf_counter(), Context.living()
        calls = sum(context.recorder.count for context in living)
        nbytes = sum(context.sent[1] for context in living)
        seconds = max(now - self._asked, 1e-3)
        begun = [record.begun for context in living for record in context.recorder.under_way]
        spans = [(max(one.begun, self._asked), one.ended) for one in past() if one.ended > self._asked]
        inside = _covered([*spans, *((max(start, self._asked), now) for start in begun)])
        if calls - self._calls > len(spans) > 0:  # more than are remembered: those of the end stand for all
            seconds_seen = max(now - spans[0][0], 1e-6)
        else:
            seconds_seen = seconds
        # a communicator that was freed takes its counts along
        rates = {"calls": max(calls - self._calls, 0) / seconds, "bytes": max(nbytes - self._bytes, 0) / seconds,
                 "inside": min(inside / seconds_seen, 1.0)}  # fmt: skip
        self._asked, self._calls, self._bytes = now, calls, nbytes
        return rates


def _covered(spans: list[tuple[float, float]]) -> float:
    """The seconds that lie in at least one of them."""
    total, end = 0.0, 0.0
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total
