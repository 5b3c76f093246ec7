"""What timelines are made of."""

from typing import Any, NamedTuple


class Event(NamedTuple):
    """Something that took from `begin` to `end`, seconds of perf_counter.

    kind: the row of a timeline that it is on. facts: what else is told of it, or None.
    """

    kind: str
    name: str
    begin: float
    end: float
    facts: dict[str, Any] | None = None
