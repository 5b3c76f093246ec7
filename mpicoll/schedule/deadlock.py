"""What is said of ranks that wait for ever: by the verifier, on symbols, and by the simulator, on clocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized


def deadlock(stuck: Iterable[tuple[int, int, Iterable[str]]]) -> str:
    """Of ranks that wait for ever. stuck: rank, index of the round, and what it wants ("send to 3") of each."""
    waiting = [f"rank {rank} waits in round {number + 1} ({', '.join(wants)})" for rank, number, wants in stuck]
    return "deadlock: " + "; ".join(waiting[:8])


def unmatched(channels: Mapping[tuple[int, int], Sized]) -> str:
    """Of what waits in a channel (source, target) for a partner that never comes; empty where nothing does."""
    left = [channel for channel, waiting in channels.items() if waiting]
    return "; ".join(f"a message from rank {source} to rank {target} is never matched" for source, target in left[:8])
