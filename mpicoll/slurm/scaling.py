"""Strong and weak scaling, gathered from the results that `jobs/scaling.sh` leaves: DIR/strong-N/result.json, DIR/weak-N/…."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import ArgumentError
from ..support.files import parse_json, save_figure
from ..support.optional import require
from ..support.units import many

#: beyond any figure of a training
_LARGEST = 2**63
_NAME = re.compile(r"(strong|weak)-(\d+)")
HEADER = f"{'scaling':<8}{'nodes':>6}{'ranks':>6}{'batch':>8}{'step ms':>9}{'samples/s':>11}{'speed-up':>10}{'efficiency':>12}"


def gather(directory: str | Path) -> tuple[list[dict[str, Any]], list[str]]:
    """(rows, missing): a dict for each job that ended well, and the names of those that did not, by kind and nodes.

    A row has kind, nodes, ranks, batch (samples of a step), step_s, rate (samples per second), and, against the row of its
    kind with the fewest nodes, speedup (of the rate) and efficiency (speed-up per node). Raises ArgumentError where there
    is nothing to gather.
    """
    found = {match[0]: match for match in map(_NAME.fullmatch, _names(directory)) if match}
    order = sorted(found, key=lambda name: (found[name][1], int(found[name][2])))
    rows, missing = [], []
    for name in order:
        try:
            rows.append(_row(found[name], parse_json((Path(directory) / name / "result.json").read_bytes())))
        except (OSError, ValueError, TypeError, KeyError, OverflowError):
            missing.append(name)
    if not found:
        raise ArgumentError(f"{directory}: expected directories strong-N and weak-N, as scaling.sh makes them")
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
    batch, seconds = result["config"]["batch_size"], result["report"]["step_s"]
    where = result["environment"]
    for figure in (batch, seconds, where["nodes"], where["size"]):
        if not 0 < float(figure) < _LARGEST or isinstance(figure, str):
            raise ValueError(f"expected a number above 0, got {figure!r}")
    return {"kind": match[1], "nodes": where["nodes"], "ranks": where["size"], "batch": batch, "step_s": seconds,
            "rate": batch / seconds}  # fmt: skip


def table(rows: Iterable[dict[str, Any]], missing: Iterable[str]) -> str:
    """The rows as lines of text."""
    lines = [HEADER]
    for row in rows:
        lines.append(f"{row['kind']:<8}{row['nodes']:>6}{row['ranks']:>6}{row['batch']:>8}{row['step_s'] * 1e3:>9.1f}"
                     f"{row['rate']:>11,.0f}{row['speedup']:>10.2f}{row['efficiency']:>12.2f}")  # fmt: skip
    lines += [f"{name} has no result: see {name}-JOB.out" for name in missing]
    return "\n".join(lines)


def plot(path: str, rows: list[dict[str, Any]]) -> None:
    """Draw speed-up over nodes, of both kinds."""
    figure = require("matplotlib.figure", "a picture").Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for kind, marker, size in zip(dict.fromkeys(row["kind"] for row in rows), "os", (9, 5)):  # seen where they coincide
        mine = [row for row in rows if row["kind"] == kind]
        axes.plot([row["nodes"] for row in mine], [row["speedup"] for row in mine], marker=marker,
                  markersize=size, markerfacecolor="none", label=kind)  # fmt: skip
    nodes = sorted({row["nodes"] for row in rows})
    axes.plot(nodes, [count / nodes[0] for count in nodes], color="black", linestyle=":", label="ideal")
    axes.set(xlabel="nodes", ylabel=f"samples per second, over those of {many(nodes[0], 'node')}", xticks=nodes)
    axes.grid(True, alpha=0.3)
    axes.legend()
    save_figure(figure, path)
