"""Which ranks wait for which: the chains from rank to rank, and the ranks at their ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .files import State

#: seconds from which on a call counts as waiting, not as working
PATIENCE = 1.0

#: (communicator, call) of a call under way
Pair = tuple[Mapping[str, Any], Mapping[str, Any]]


def calls_of(state: State, patience: float = 0.0) -> list[Pair]:
    """All calls of a rank that have been under way for so long, or were given up."""
    return [
        (communicator, call)
        for communicator in state["communicators"]
        for call in communicator["under_way"]
        if call["seconds"] >= patience or call.get("given_up")
    ]


def ends_of_chains(states: Sequence[State], ranks: Sequence[int], patience: float) -> list[int]:
    """The ranks that others wait for and that do not wait themselves."""
    waits = awaited(states, ranks, patience)
    wanted: set[int] = set().union(*waits.values())
    return sorted(rank for rank in wanted if not waits.get(rank))


def awaited(states: Sequence[State], ranks: Sequence[int], patience: float) -> dict[int, set[int]]:
    """The ranks that each rank waits for."""
    by_rank = {state["rank"]: state for state in states}
    return {state["rank"]: _awaited(state, by_rank, patience) & set(ranks) for state in states}


def _awaited(state: State, by_rank: Mapping[int, State], patience: float) -> set[int]:
    """The ranks that this rank waits for: each call's peer, or all ranks not in the call yet."""
    ranks: set[int] = set()
    for communicator, call in calls_of(state, patience):
        if call.get("inside"):  # it is busy with the user's own code
            return set()
        name = communicator["name"]
        number = call["number"]
        peer = call.get("peer")
        if peer is None:
            members = communicator["ranks"]
            ranks.update(rank for rank in members if _progress(by_rank.get(rank), name) < number)
        elif not _has_passed(by_rank.get(peer), name, number):
            ranks.add(peer)
    return ranks - {state["rank"]}


def _communicator(state: State | None, name: str) -> Mapping[str, Any] | None:
    communicators: Sequence[Mapping[str, Any]] = state["communicators"] if state else ()
    return next((item for item in communicators if item["name"] == name), None)


def _progress(state: State | None, name: str) -> int:
    """The number of the last call that a rank has begun, with no earlier call under way."""
    communicator = _communicator(state, name)
    if not communicator:
        return 0
    numbers: list[int] = [call["number"] for call in communicator["under_way"]]
    return min(numbers, default=communicator["calls"])


def _has_passed(state: State | None, name: str, number: int) -> bool:
    """Whether a rank has completed this call."""
    communicator = _communicator(state, name)
    return (
        communicator is not None
        and communicator["calls"] >= number
        and all(call["number"] != number for call in communicator["under_way"])
    )


def unreachable(states: Sequence[State]) -> tuple[list[int], list[list[int]]]:
    """(ranks that did not answer, groups of ranks that answer each other but no other group).

    The largest group counts as the job, and the others as unreachable, unless two are the largest.
    """
    asked = {state["rank"]: state for state in states if state.get("heard") or state.get("unheard")}
    groups: list[set[int]] = []
    for rank, state in asked.items():
        group = {rank, *state["heard"]}
        group = group.union(*(other for other in groups if other & group))
        groups = [other for other in groups if not other & group] + [group]
    silent = {rank for state in asked.values() for rank in state["unheard"]}.difference(*groups)
    groups.sort(key=len, reverse=True)
    if len(groups) < 2 or len(groups[0]) == len(groups[1]):
        return sorted(silent), [sorted(group) for group in groups]
    return sorted(silent.union(*groups[1:])), [sorted(groups[0])]
