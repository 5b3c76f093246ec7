"""The diagnosis: a paragraph that says which ranks are missing and what the others wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import CollectiveMismatch
from ..support.checks import ranks_text
from .divergence import alike, first_divergence
from .files import State
from .waiting import PATIENCE, calls_of, ends_of_chains, unreachable

#: seconds by which the last report of a dead, stopped or disconnected rank is older than others'
SILENT = 4.0
#: lines of other threads that are named
_MOST_THREADS = 4


def diagnose(states: Sequence[State], ranks: Sequence[int], patience: float = PATIENCE) -> str:
    """The paragraph; its last line is the verdict.

    Parameters
    ----------
    states : sequence of State
        The states of ranks, as far as they were reported.
    ranks : sequence of int
        All ranks of the job, as numbered in the world.
    patience : float
        Seconds from which on a call counts as waiting.
    """
    states = sorted(states, key=lambda state: state["rank"])
    latest = max((state["time"] for state in states), default=0.0)
    failed = [state for state in states if state.get("failed")]
    others = [state for state in states if state not in failed]
    silent = [state for state in others if not state["ended"] and latest - state["time"] > SILENT]
    awake = [state for state in others if state not in silent]
    lines = [_absent(ranks, states)]
    lines += [_silent(state, latest) for state in silent]
    lines += _waiting(awake)
    for text, group in alike((state["failed"], state["rank"]) for state in failed):
        lines.append(_sentence(group, text))
    outside = [state for state in awake if not (state["ended"] or calls_of(state))]
    for text, group in alike((_doing(state), state["rank"]) for state in outside):
        lines.append(_sentence(group, f"{'is' if len(group) == 1 else 'are'} {text}"))
    if ended := [state["rank"] for state in awake if state["ended"]]:
        lines.append(_sentence(ended, "came to the end of the program"))
    apart = first_divergence(states)
    if apart is not None:
        lines.append(apart.text)
    if len(ranks) > 1:
        went_apart = apart.verdict if apart is not None else ""
        lines.append(
            (went_apart if _all_are_mismatches(failed) else _failure(failed))
            or _missing(ranks, states, silent)
            or went_apart
            or _verdict(ranks, awake, patience)
        )
    return "\n".join(filter(None, lines))


# What each rank does.


def _absent(ranks: Sequence[int], states: Sequence[State]) -> str:
    silent, _ = unreachable(states)
    absent = sorted(set(ranks) - {state["rank"] for state in states} - set(silent))
    lines = []
    if silent:
        lines.append(_sentence(silent, "did not answer: dead, stopped, or cut off from the others"))
    if absent:
        why = "not started, or ended before a Communicator was made"
        lines.append(_sentence(absent, f"left no report: {why}"))
    return "\n".join(lines)


def _silent(state: State, latest: float) -> str:
    return (
        f"Rank {state['rank']} (process {state['pid']} on {state['host']}) gave its last sign of"
        f" life {latest - state['time']:.0f} s before the others: killed, stopped, or cut off. It"
        f" was {_doing(state)}."
    )


def _waiting(states: Sequence[State]) -> list[str]:
    """The calls under way, each with its ranks and what these wait for."""
    ranks_of: dict[tuple[str, int, str, str], list[int]] = {}
    details: dict[tuple[str, int, str, str], list[str]] = {}
    for state in states:
        for communicator, call in calls_of(state):
            key = communicator["name"], call["number"], call["call"], call["site"]
            ranks_of.setdefault(key, []).append(state["rank"])
            if where := _where(communicator, call):
                details.setdefault(key, []).append(f"  rank {state['rank']}: {where}")
    lines = []
    for key, ranks in ranks_of.items():
        name, number, text, site = key
        at = f" at {site}" if site else ""
        lines.append(_sentence(ranks, f"in call {number} of communicator {name}: {text}{at}"))
        lines += details.get(key, [])[:8]
    return lines


def _where(communicator: Mapping[str, Any], call: Mapping[str, Any]) -> str:
    """How far a call is."""
    where = call["where"]
    ranks = communicator["ranks"]
    if where and ranks != list(range(len(ranks))):
        where += " (as ranks are numbered in that communicator)"
    if call.get("inside"):  # in the user's op or signal handler
        where += f"{'; ' if where else ''}busy in the user's own code at {call['inside']}"
    return str(where)


def _doing(state: State) -> str:
    if calls := calls_of(state):
        communicator, call = calls[0]
        where = f", {call['where']}" if call["where"] else ""
        return (
            f"in call {call['number']} of communicator {communicator['name']},"
            f" {call['call']}{where}"
        )
    past = [
        (communicator["name"], call)
        for communicator in state["communicators"]
        for call in communicator["past"]
    ]
    last = min(past, key=lambda pair: pair[1]["seconds"], default=None)
    at = f" but at {state['at']}" if state["at"] else ""
    if threads := state.get("threads"):
        at += f" (other threads at {', '.join(threads[:_MOST_THREADS])})"
    if last is None:
        return f"in no collective{at}"
    name, call = last
    return (
        f"in no collective{at}; its last was call {call['number']} of communicator {name}:"
        f" {call['call']}"
    )


def _sentence(ranks: Sequence[int], text: str) -> str:
    return f"{ranks_text(ranks).capitalize()} {text}."


# The verdict: the ranks for which the others wait.


def _failure(failed: Sequence[State]) -> str:
    """The rank that ended the job: the first to fail, as others may fail because of it.

    A rank that another rank told is earlier to report, at times, than that rank.
    """
    if not failed:
        return ""
    failures = sorted(failed, key=lambda state: float(state["time"]))
    order = ", the first to fail" if len(failed) > 1 else ""
    return f"So the job ended because of rank {_told_by(failures[0])}{order}."


def _told_by(state: State) -> int:
    """The rank that this rank failed for: the one that gave a communicator up, or itself."""
    told = (communicator.get("given_up_by") for communicator in state["communicators"])
    return next((rank for rank in told if rank is not None), int(state["rank"]))


def _all_are_mismatches(failed: Sequence[State]) -> bool:
    """Whether all failures are mismatches of calls; then their order means nothing."""
    return bool(failed) and all(CollectiveMismatch.__name__ in state["failed"] for state in failed)


def _missing(ranks: Sequence[int], states: Sequence[State], silent: Sequence[State]) -> str:
    """The ranks that are not there."""
    unheard, groups = unreachable(states)
    absent = set(ranks) - {state["rank"] for state in states}
    if missing := sorted({*unheard, *absent, *(state["rank"] for state in silent)}):
        return f"So the job waits for {ranks_text(missing)}."
    if len(groups) > 1:
        sides = " and ".join(map(ranks_text, sorted(groups)))
        return f"So the network is down between {sides}: they do not hear each other."
    return ""


def _verdict(ranks: Sequence[int], states: Sequence[State], patience: float) -> str:
    """What the ranks wait for that are there."""
    waiting = [
        (state["rank"], communicator["name"], call)
        for state in states
        for communicator, call in calls_of(state, patience)
    ]
    if not waiting:
        return _first_to_die(states) or "No rank has waited in a collective for long."
    numbers = {(name, call["number"]) for _, name, call in waiting}
    methods = {(name, call["number"], call["call"].split()[0]) for _, name, call in waiting}
    if len(methods) > len(numbers):
        return _DIFFERENT
    if ends := ends_of_chains(states, ranks, patience):
        idle = all(not calls_of(state) for state in states if state["rank"] in ends)
        wait = "waits" if len(ends) == 1 else "wait"
        why = (
            "which made no such call" if idle else f"which {wait} for nobody: slow, stuck, or gone"
        )
        return f"So the others wait for {ranks_text(ends)}, {why}."
    if busy := sorted({rank for rank, _, call in waiting if call.get("inside")}):
        where = "busy in the user's own code in the middle of a call"
        return f"So the job waits for {ranks_text(busy)}, {where}."
    if len({(name, call["call"]) for _, name, call in waiting}) > 1:
        return _DIFFERENT
    alone = sorted({rank for rank, _, _ in waiting})
    if len(alone) < len(states):
        return f"So the job waits for {ranks_text(alone)}: the others have that call behind them."
    return "All ranks are in the same call: the network, or a rank that is slow, holds them up."


_DIFFERENT = (
    "So ranks are in different calls, which wait for each other; MPICOLL_CHECK=always names the"
    " first such call."
)


#: deaths so many seconds apart have no certain order: launchers end the other ranks at once, and
#: witnesses wake up when they get a core
_TOGETHER = 0.005


def _first_to_die(states: Sequence[State]) -> str:
    """The first rank to die, where the launcher ended the job before others could wait for it."""
    dead = sorted((state["died"], state["rank"]) for state in states if state.get("died"))
    if not dead or any(state.get("last_words") for state in states):
        return ""
    first = dead[0][0]
    together = [rank for died, rank in dead if died - first < _TOGETHER]
    if len(together) > 1:
        return (
            f"So {ranks_text(together)} died first, at the same time as far as can be told: "
            "one was killed, or crashed."
        )
    before = f", {dead[1][0] - first:.3f} s before the next" if len(dead) > 1 else ""
    state = next(state for state in states if state["rank"] == together[0])
    where = f"(process {state['pid']} on {state['host']})"
    return f"So rank {together[0]} was the first to die{before}: killed, or crashed {where}."
