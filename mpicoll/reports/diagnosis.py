"""The diagnosis: a paragraph that says which ranks are missing and what the others wait for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import CollectiveMismatch
from ..support.checks import ranks_text
from .divergence import first_divergence
from .files import State
from .waiting import PATIENCE, calls_of, ends_of_chains, unreachable

#: seconds: a rank whose last sign of life is so much older than that of others was ended, stopped
#: or cut off
SILENT = 4.0


def diagnose(states: Sequence[State], ranks: Sequence[int], patience: float = PATIENCE) -> str:
    """The paragraph; its last line is the verdict.

    Parameters
    ----------
    states : sequence of State
        What is known of ranks.
    ranks : sequence of int
        All that should be there, as numbered in the world.
    patience : float
        Seconds for which a call must have been under way to count as one that waits.
    """
    states = sorted(states, key=lambda state: state["rank"])
    latest = max((state["time"] for state in states), default=0.0)
    failed = [state for state in states if state.get("failed")]
    old = [
        one
        for one in states
        if not one["ended"] and one not in failed and latest - one["time"] > SILENT
    ]
    awake = [state for state in states if state not in old and state not in failed]
    lines = [_absent(ranks, states), *(_silent(state, latest) for state in old), *_waiting(awake)]
    lines += [
        _elsewhere(ranks, text) for text, ranks in _grouped(failed, lambda state: state["failed"])
    ]
    lines += [
        _elsewhere(ranks, f"{'is' if len(ranks) == 1 else 'are'} {text}")
        for text, ranks in _grouped(awake, _what_else)
    ]
    if ended := [state["rank"] for state in awake if state["ended"]]:
        lines.append(f"{ranks_text(ended).capitalize()} came to the end of the program.")
    apart = first_divergence(states)
    if apart is not None:
        lines.append(apart.text)
    went_apart = apart.verdict if apart is not None else ""
    verdict = went_apart if _all_were_told(failed) else _failure(failed)
    verdict = (
        verdict or _missing(ranks, states, old) or went_apart or _verdict(ranks, awake, patience)
    )
    return "\n".join(filter(None, [*lines, verdict if len(ranks) > 1 else ""]))


# What each rank is doing.


def _absent(ranks: Sequence[int], states: Sequence[State]) -> str:
    silent, _ = unreachable(states)
    lines = []
    if silent:
        lines.append(
            f"{ranks_text(silent).capitalize()} did not answer: dead, stopped, or cut off from the"
            " others."
        )
    if absent := sorted(set(ranks) - {state["rank"] for state in states} - set(silent)):
        text = ranks_text(absent).capitalize()
        lines.append(
            f"{text} left no report: not started, or ended before a Communicator was made."
        )
    return "\n".join(lines)


def _silent(state: State, latest: float) -> str:
    return (
        f"Rank {state['rank']} (process {state['pid']} on {state['host']}) gave its last sign of"
        f" life {latest - state['time']:.0f} s before the others: killed, stopped, or cut off. It"
        f" was {_doing(state)}."
    )


def _grouped(states: Sequence[State], text: Callable[[State], str]) -> list[tuple[str, list[int]]]:
    ranks_of: dict[str, list[int]] = {}
    for state in states:
        if said := text(state):
            ranks_of.setdefault(said, []).append(state["rank"])
    return list(ranks_of.items())


def _waiting(states: Sequence[State]) -> list[str]:
    """The calls under way, each with its ranks and what these wait for."""
    calls: dict[tuple[str, int, str, str], list[str]] = {}
    ranks: dict[tuple[str, int, str, str], list[int]] = {}
    for state in states:
        for communicator, call in calls_of(state):
            key = communicator["name"], call["number"], call["call"], call["site"]
            ranks.setdefault(key, []).append(state["rank"])
            if where := _where(communicator, call):
                calls.setdefault(key, []).append(f"rank {state['rank']}: {where}")
    lines = []
    for (name, number, text, site), those in ranks.items():
        at = f" at {site}" if site else ""
        lines.append(
            f"{ranks_text(those).capitalize()} in call {number} of communicator {name}: {text}{at}."
        )
        lines += [f"  {line}" for line in calls.get((name, number, text, site), [])[:8]]
    return lines


def _where(communicator: Mapping[str, Any], call: Mapping[str, Any]) -> str:
    """How far a call is."""
    where = call["where"]
    ranks = communicator["ranks"]
    if where and ranks != list(range(len(ranks))):
        where += " (as ranks are numbered in that communicator)"
    if call.get("inside"):  # an op of the user's, or a handler of signals
        where += f"{'; ' if where else ''}busy in the user's own code at {call['inside']}"
    return str(where)


def _what_else(state: State) -> str:
    return "" if state["ended"] or calls_of(state) else _doing(state)


def _doing(state: State) -> str:
    if calls := calls_of(state):
        communicator, call = calls[0]
        where = f", {call['where']}" if call["where"] else ""
        return (
            f"in call {call['number']} of communicator {communicator['name']},"
            f" {call['call']}{where}"
        )
    past = [(one["name"], call) for one in state["communicators"] for call in one["past"]]
    last = min(past, key=lambda pair: pair[1]["seconds"], default=None)
    at = f" but at {state['at']}" if state["at"] else ""
    if last is None:
        return f"in no collective{at}"
    name, call = last
    return (
        f"in no collective{at}; its last was call {call['number']} of communicator {name}:"
        f" {call['call']}"
    )


def _elsewhere(ranks: Sequence[int], text: str) -> str:
    return f"{ranks_text(ranks).capitalize()} {text}."


# The verdict: whom the others wait for.


def _failure(failed: Sequence[State]) -> str:
    """Who ended the job: the first to fail, as others may fail because of it."""
    if not failed:
        return ""
    first = min(failed, key=lambda state: state["time"])
    return (
        "So the job ended because of rank"
        f" {first['rank']}{', the first to fail' if len(failed) > 1 else ''}."
    )


def _all_were_told(failed: Sequence[State]) -> bool:
    """Whether all failures are mismatches of calls; then the order of failures means nothing."""
    return bool(failed) and all(CollectiveMismatch.__name__ in state["failed"] for state in failed)


def _missing(ranks: Sequence[int], states: Sequence[State], old: Sequence[State]) -> str:
    """Who is not there."""
    silent, groups = unreachable(states)
    absent = set(ranks) - {state["rank"] for state in states}
    if missing := sorted({*silent, *absent, *(state["rank"] for state in old)}):
        return f"So the job waits for {ranks_text(missing)}."
    if len(groups) > 1:
        return (
            f"So the network is down between {' and '.join(map(ranks_text, sorted(groups)))}: they"
            " do not hear each other."
        )
    return ""


def _verdict(ranks: Sequence[int], states: Sequence[State], patience: float) -> str:
    """What those that are there wait for."""
    waiting = [
        (communicator["name"], call["number"], call["call"])
        for state in states
        for communicator, call in calls_of(state, patience)
    ]
    if not waiting:
        return _first_to_die(states) or "No rank has waited in a collective for long."
    if len({(name, number, text.split()[0]) for name, number, text in waiting}) > len(
        {call[:2] for call in waiting}
    ):
        return _DIFFERENT
    if ends := ends_of_chains(states, ranks, patience):
        idle = all(not calls_of(state) for state in states if state["rank"] in ends)
        wait = "waits" if len(ends) == 1 else "wait"
        why = (
            "which made no such call" if idle else f"which {wait} for nobody: slow, stuck, or gone"
        )
        return f"So the others wait for {ranks_text(ends)}, {why}."
    if busy := [
        state["rank"]
        for state in states
        if any(call.get("inside") for _, call in calls_of(state, patience))
    ]:
        return (
            f"So the job waits for {ranks_text(busy)}, busy in the user's own code in the middle of"
            " a call."
        )
    if len({(name, text) for name, _, text in waiting}) > 1:
        return _DIFFERENT
    if len(alone := [state["rank"] for state in states if calls_of(state, patience)]) < len(states):
        return f"So the job waits for {ranks_text(alone)}: the others have that call behind them."
    return "All ranks are in the same call: the network, or a rank that is slow, holds them up."


_DIFFERENT = (
    "So ranks are in different calls, which wait for each other; MPICOLL_CHECK=always names the"
    " first such call."
)


#: seconds between deaths that tell no order: launchers end the others at once, and witnesses wake
#: up when they get a core
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
            f"So {ranks_text(together)} died first, at the same time as far as can be told: one was"
            " killed, or crashed."
        )
    before = f", {dead[1][0] - first:.3f} s before the next" if len(dead) > 1 else ""
    state = next(state for state in states if state["rank"] == together[0])
    where = f"(process {state['pid']} on {state['host']})"
    return f"So rank {together[0]} was the first to die{before}: killed, or crashed {where}."
