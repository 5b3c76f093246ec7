"""The first position at which ranks recorded different calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ..support.checks import ranks_text
from .files import State, past_calls


class Divergence(NamedTuple):
    """The first call that differs between ranks."""

    communicator: str
    number: int
    #: (call, its ranks in the world)
    calls: list[tuple[str, list[int]]]
    #: the same with call sites, as text
    lines: list[str]

    @property
    def text(self) -> str:
        """The difference, in several lines."""
        head = (
            f"The first call that ranks do not have in common is call {self.number} of communicator"
            f" {self.communicator}:"
        )
        return "\n".join([head, *self.lines])

    @property
    def verdict(self) -> str:
        """The ranks that left the others, where most ranks make the same call."""
        place = f"call {self.number} of communicator {self.communicator}"
        (_, most), *others = sorted(self.calls, key=lambda pair: -len(pair[1]))
        if len(others[0][1]) == len(most):
            return f"So ranks went apart at {place}, and wait for each other."
        left = sorted(rank for _, ranks in others for rank in ranks)
        return f"So {ranks_text(left)} went apart from the others at {place}."


class _Entry(NamedTuple):
    rank: int
    number: int
    call: str
    site: str
    begun: float


def first_divergence(states: Sequence[State]) -> Divergence | None:
    """The first difference among the recorded calls of ranks; None without any."""
    places: dict[tuple[str, int], dict[int, _Entry]] = {}
    for state in states:  # a call that was given up counts once: it is ended, and still under way
        for name, place, entry in _entries(state):
            places.setdefault((name, place), {})[entry.rank] = entry
    different = {
        key: list(entries.values())
        for key, entries in places.items()
        if len({entry.call for entry in entries.values()}) > 1
    }
    if not different:
        return None
    name, place = min(different, key=lambda key: min(entry.begun for entry in different[key]))
    entries = different[name, place]
    calls = alike((entry.call, entry.rank) for entry in entries)
    described = alike((f"{entry.call} at {entry.site}", entry.rank) for entry in entries)
    most = max(calls, key=lambda pair: len(pair[1]))[1]
    number = next(entry.number for entry in entries if entry.rank in most)
    lines = [f"  {ranks_text(ranks)}: {text}" for text, ranks in described]
    return Divergence(name, number, calls, lines)


def alike(pairs: Iterable[tuple[str, int]]) -> list[tuple[str, list[int]]]:
    """Each text, and the ranks that have it."""
    ranks_of: dict[str, list[int]] = {}
    for text, rank in pairs:
        ranks_of.setdefault(text, []).append(rank)
    return list(ranks_of.items())


def _entries(state: State) -> Iterator[tuple[str, int, _Entry]]:
    """(communicator, place, entry) of the ordered calls of a rank."""
    for past in past_calls(state):
        if past.place:
            entry = _Entry(state["rank"], past.number, past.call, past.site, past.begun)
            yield past.communicator, past.place, entry
    for communicator in state["communicators"]:
        for call in communicator["under_way"]:
            if call.get("place"):
                begun = state["time"] - call["seconds"]
                entry = _Entry(state["rank"], call["number"], call["call"], call["site"], begun)
                yield communicator["name"], call["place"], entry
