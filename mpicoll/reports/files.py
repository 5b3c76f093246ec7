"""Reports in files: one per rank, whole or not at all, so that those of a job that was killed can be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import ArgumentError
from ..support.files import parse_json, write_whole

SCHEMA = 1
State = dict[str, Any]


def death_file(rank: int) -> str:
    """The name of the file in which a process that outlives a rank leaves when it died."""
    return f"rank-{rank:05d}.died"


def write_report(folder: Path, state: State) -> None:
    """Leave this rank's state in the folder, in the place of the one before."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"rank-{state['rank']:05d}.json", json.dumps(state))


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
        raise ArgumentError(f"{folder} has no reports (rank-*.json): was the job run with MPICOLL_REPORT={folder}?")
    return states


def _parsed(path: Path) -> State:
    try:
        state = parse_json(path.read_bytes())
        if state["schema"] != SCHEMA or not isinstance(state["communicators"], list):
            raise KeyError("schema")
    except (ValueError, KeyError, TypeError):
        raise ArgumentError(f"{path} is no report of mpicoll") from None
    found: State = state
    return found | {"died": _died(path.with_suffix(".died"))}


def _died(path: Path) -> float | None:
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return None
