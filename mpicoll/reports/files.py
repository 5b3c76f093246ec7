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
    """The name of the file with the time of a rank's death, written by its witness."""
    return f"rank-{rank:05d}.died"


class PastCall(NamedTuple):
    """A completed call."""

    communicator: str
    #: its position among the ordered calls of the communicator, or 0
    place: int
    number: int
    call: str
    #: the plan that served it; "": MPI
    served: str
    site: str
    #: seconds since 1970
    begun: float
    seconds: float


def past_calls(state: State) -> list[PastCall]:
    """The last calls of a rank, the oldest first; empty where its history was not written."""
    history = state.get("history") or {"words": [], "rows": []}
    words = history["words"]
    calls = []
    for name, place, number, call, served, site, begun, seconds in history["rows"]:
        texts = words[call], words[served], words[site]
        calls.append(PastCall(words[name], place, number, *texts, begun, seconds))
    return calls


def write_report(folder: Path, state: State) -> None:
    """Write this rank's state to the folder, and its history, if it has one, to a second file."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"rank-{state['rank']:05d}"
    if (history := state.get("history")) is not None:
        write_whole(folder / f"{name}.calls", json.dumps(history, separators=(",", ":")))
    write_whole(folder / f"{name}.json", json.dumps({**state, "history": None}))


def read_reports(folder: Path) -> list[State]:
    """The states of ranks from a folder, with the time when they `died`.

    Raises ArgumentError where the folder has none.
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
    return {
        **state,
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
