"""What is said of ranks that wait for ever: by the verifier, on symbols, and by the simulator, on clocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized

from ..errors import ScheduleError


def deadlock(stuck: Iterable[tuple[int, int, Iterable[str]]]) -> ScheduleError:
    """The error for ranks that wait for ever. stuck: rank, round, and what it wants ("send to 3") of each."""
    waiting = [f"rank {rank} waits in round {number} ({', '.join(wants)})" for rank, number, wants in stuck]
    return ScheduleError("deadlock: " + "; ".join(waiting[:8]))


def unmatched(channels: Mapping[tuple[int, int], Sized]) -> None:
    """Raise ScheduleError where something waits in a channel (source, target) for a partner that never comes."""
    for (source, target), waiting in channels.items():
        if waiting:
            raise ScheduleError(f"a message from rank {source} to rank {target} is never matched")
