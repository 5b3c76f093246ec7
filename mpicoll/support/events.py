"""Events of timelines."""

from typing import Any, NamedTuple


class Event(NamedTuple):
    """A span of time."""

    #: the row of the timeline
    kind: str
    name: str
    #: in seconds of perf_counter
    begin: float
    end: float
    #: shown with the event
    facts: dict[str, Any] | None = None
