"""Strong and weak scaling, from the results of `jobs/scaling.sh`: DIR/strong-N, DIR/weak-N."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import ArgumentError
from ..support.files import parse_json

#: larger than any figure of a training
_LARGEST = 2**63
_NAME = re.compile(r"(strong|weak)-(\d+)")
#: {column: its width and format}
COLUMNS = {
    "scaling": "<8",
    "nodes": ">6",
    "ranks": ">6",
    "batch": ">8",
    "step ms": ">9.1f",
    "samples/s": ">11,.0f",
    "speed-up": ">10.2f",
    "efficiency": ">12.2f",
}


def gather(directory: str | Path) -> tuple[list[dict[str, Any]], list[str]]:
    """(rows, missing): a dict per successful job, and the names of the others.

    A row has kind, nodes, ranks, batch (samples of a step), step_s, rate (samples per second), and,
    against the row of its kind with the fewest nodes, speedup (of the rate) and efficiency
    (speed-up per node). Raises ArgumentError where there is nothing to gather.
    """
    matches = {match[0]: match for match in map(_NAME.fullmatch, _names(directory)) if match}
    order = sorted(matches, key=lambda name: (matches[name][1], int(matches[name][2])))
    rows = []
    missing = []
    for name in order:
        path = Path(directory) / name / "result.json"
        try:
            rows.append(_row(matches[name], parse_json(path.read_bytes())))
        except (OSError, ValueError, TypeError, KeyError, OverflowError):
            missing.append(name)
    if not matches:
        raise ArgumentError(
            f"{directory}: expected directories strong-N and weak-N, as scaling.sh makes them"
        )
    for row in rows:
        first = next(other for other in rows if other["kind"] == row["kind"])
        row["speedup"] = row["rate"] / first["rate"]
        row["efficiency"] = row["speedup"] * first["nodes"] / row["nodes"]
    return rows, missing


def _names(directory: str | Path) -> list[str]:
    try:
        return [path.name for path in Path(directory).iterdir()]
    except OSError as error:
        raise ArgumentError(f"cannot read {directory}: {error.strerror}") from None


def _row(match: re.Match[str], result: dict[str, Any]) -> dict[str, Any]:
    batch = result["config"]["batch_size"]
    seconds = result["report"]["step_s"]
    where = result["environment"]
    for figure in (batch, seconds, where["nodes"], where["size"]):
        if not 0 < float(figure) < _LARGEST or isinstance(figure, str):
            raise ValueError(f"expected a number above 0, got {figure!r}")
    return {
        "kind": match[1],
        "nodes": where["nodes"],
        "ranks": where["size"],
        "batch": batch,
        "step_s": seconds,
        "rate": batch / seconds,
    }


def table(rows: Iterable[dict[str, Any]], missing: Iterable[str]) -> str:
    """The rows as lines of text."""
    widths = [re.split("[,.]", style)[0] for style in COLUMNS.values()]
    lines = ["".join(format(name, width) for name, width in zip(COLUMNS, widths))]
    for row in rows:
        values = (
            row["kind"],
            row["nodes"],
            row["ranks"],
            row["batch"],
            row["step_s"] * 1e3,
            row["rate"],
            row["speedup"],
            row["efficiency"],
        )
        cells = [format(value, style) for value, style in zip(values, COLUMNS.values())]
        lines.append("".join(cells))
    lines += [f"{name} has no result: see {name}-JOB.out" for name in missing]
    return "\n".join(lines)
