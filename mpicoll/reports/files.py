"""Report files: one per rank, written atomically, so that those of a killed job are readable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ArgumentError
from ..support.files import parse_json, write_whole

SCHEMA = 1
State = dict[str, Any]
#: {"words": [text], "rows": [[communicator, place, number, call, served, site, begun, seconds]]}:
#: text is stored as the index of a word
History = dict[str, Any]


def death_file(rank: int) -> str:
    """The name of the file in which a process that outlives a rank leaves when it died."""
    return f"rank-{rank:05d}.died"


class PastCall(NamedTuple):
    """A completed call. place: its position among the ordered calls of the communicator, or 0.

    served: by which plan; "": by MPI. begun: seconds since 1970.
    """

    communicator: str
    place: int
    number: int
    call: str
    served: str
    site: str
    begun: float
    seconds: float


def past_calls(state: State) -> list[PastCall]:
    """What a rank remembers, the oldest first; none where its record was not left."""
    history = state.get("history") or {"words": [], "rows": []}
    words = history["words"]
    return [
        PastCall(
            words[name], place, number, words[call], words[served], words[site], begun, seconds
        )
        for name, place, number, call, served, site, begun, seconds in history["rows"]
    ]


def write_report(folder: Path, state: State) -> None:
    """Write this rank's state to the folder, and its history, if it has one, to a second file."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"rank-{state['rank']:05d}"
    if (history := state.get("history")) is not None:
        write_whole(folder / f"{name}.calls", json.dumps(history, separators=(",", ":")))
    write_whole(folder / f"{name}.json", json.dumps({**state, "history": None}))


def read_reports(folder: Path) -> list[State]:
    """The states that ranks left in a folder, by rank, and when they `died`.

    Raises ArgumentError where there are none to be read.
    """
    try:
        paths = sorted(folder.glob("rank-*.json"))
        states = [_parsed(path) for path in paths]
    except OSError as error:
        raise ArgumentError(f"{folder} cannot be read: {error.strerror}") from None
    if not states:
        raise ArgumentError(
            f"{folder} has no reports (rank-*.json): was the job run with MPICOLL_REPORT={folder}?"
        )
    return states


def _parsed(path: Path) -> State:
    try:
        state = parse_json(path.read_bytes())
        if state["schema"] != SCHEMA or not isinstance(state["communicators"], list):
            raise KeyError("schema")
    except (ValueError, KeyError, TypeError):
        raise ArgumentError(f"{path} is no report of mpicoll") from None
    found: State = state
    return found | {
        "died": _died(path.with_suffix(".died")),
        "history": _history(path.with_suffix(".calls")),
    }


def _history(path: Path) -> History | None:
    try:
        history: History = parse_json(path.read_bytes())
        past_calls({"history": history})
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None
    return history


def _died(path: Path) -> float | None:
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return None
