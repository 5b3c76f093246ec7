"""The table of `mpicoll top`: a line per rank with its call and the ranks that it waits for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..support.checks import ranks_text
from ..support.units import format_bytes, format_seconds
from .diagnosis import SILENT, diagnose
from .files import State
from .waiting import PATIENCE, awaited, calls_of

_ROW = "{:>5} {:<12} {:>8} {:>7} {:>5}  {}"
#: characters of a host's name
_HOST = 12


def live_table(states: Sequence[State], now: float, width: int, lines: int) -> str:
    """The table, cut to the screen. now: seconds since 1970 by the clocks of the job's hosts."""
    states = sorted(states, key=lambda state: state["rank"])
    size = max(state["size"] for state in states)
    waits = awaited(states, range(size), PATIENCE)
    diagnosis = diagnose(states, range(size)).splitlines()
    verdict = diagnosis[-1] if diagnosis else ""
    head = f"{size} ranks, {sum(state['ended'] for state in states)} ended"
    rows = {}
    for state in states:
        rank = state["rank"]
        rows[rank] = _row(state, now, sorted(waits.get(rank, ())))
    room = max(lines - 4, 1)
    shown = _most_interesting(states, waits, room)
    text = [head, _ROW.format("rank", "host", "calls/s", "sent/s", "in", "call")]
    text += [rows[rank] for rank in shown]
    if len(rows) > len(shown):
        text.append(f"and {len(rows) - len(shown)} other ranks")
    return "\n".join(line[:width] for line in [*text, verdict])


def _most_interesting(states: Sequence[State], waits: dict[int, set[int]], room: int) -> list[int]:
    """The ranks to show: first those that others wait for, then those that wait longest."""
    wanted = Counter(rank for ranks in waits.values() for rank in ranks)
    longest = {
        state["rank"]: max((call["seconds"] for _, call in calls_of(state)), default=0.0)
        for state in states
    }
    first = sorted(longest, key=lambda rank: (-wanted[rank], -longest[rank], rank))
    return sorted(first[:room])


def _row(state: State, now: float, waits: Sequence[int]) -> str:
    rates = state.get("rates") or {"calls": 0.0, "bytes": 0.0, "inside": 0.0}
    figures = f"{rates['calls']:.0f}", format_bytes(int(rates["bytes"])), f"{rates['inside']:.0%}"
    text = _doing(state, now) + (f", waits for {ranks_text(waits)}" if waits else "")
    return _ROW.format(state["rank"], state["host"][:_HOST], *figures, text)


def _doing(state: State, now: float) -> str:
    """What a rank does, and for how long."""
    silent = now - state["time"]
    if state["failed"]:
        return f"failed: {state['failed'].splitlines()[0]}"
    if state["ended"]:
        return "ended"
    if silent > SILENT:
        return f"silent for {format_seconds(silent)}: killed, stopped, or cut off"
    if calls := calls_of(state):
        _, call = max(calls, key=lambda pair: float(pair[1]["seconds"]))
        at = f" at {_short(call['site'])}" if call["site"] else ""
        return f"{format_seconds(call['seconds'] + max(silent, 0.0))} in {call['call']}{at}"
    return f"at {_short(state['at'])}"


def _short(site: str) -> str:
    """A file's name and line."""
    return site.rpartition("/")[2]
