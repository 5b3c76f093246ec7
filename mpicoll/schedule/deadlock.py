"""Messages about ranks that wait for ever, for the verifier and the simulator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized


def deadlock(stuck: Iterable[tuple[int, int, Iterable[str]]]) -> str:
    """The message about a deadlock.

    stuck: of each rank, its number, the index of its round, and its wants ("send to 3").
    """
    waiting = [
        f"rank {rank} waits in round {number + 1} ({', '.join(wants)})"
        for rank, number, wants in stuck
    ]
    return "deadlock: " + "; ".join(waiting[:8])


def unmatched(channels: Mapping[tuple[int, int], Sized]) -> str:
    """The message about channels (source, target) that are not empty at the end, or ""."""
    left = [channel for channel, waiting in channels.items() if waiting]
    return "; ".join(
        f"a message from rank {source} to rank {target} is never matched"
        for source, target in left[:8]
    )
