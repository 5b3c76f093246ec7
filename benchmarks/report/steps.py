"""A picture of one step of several timelines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from mpicoll.measure import Json
from mpicoll.support.checks import check
from mpicoll.support.files import save_figure
from mpicoll.support.optional import require

#: of the picture: the row of the two of a rank, colour and meaning
_STYLES = {
    "compute": (0, "tab:blue", "computing"),
    "wait": (0, "tab:red", "waiting for communication"),
    "communication": (1, "tab:orange", "communication in flight"),
}


class Bar(NamedTuple):
    """A rank's event of a kind in the picture of a step; milliseconds from the step's begin."""

    rank: int
    kind: str
    begin: float
    end: float


def picture(
    output: str | os.PathLike[str], traces: Iterable[tuple[str, str | os.PathLike[str]]], step: int
) -> None:
    """Draw one step of several traces below each other, on one scale of time.

    output: a file whose name ends in .svg, .png or another that matplotlib writes. traces: (title,
    path) of each. step: its number in the traces, from 0. Each rank has a row for its main thread
    (computing, or waiting for communication) and one for what was in flight. Raises ArgumentError
    if a trace does not have that step, LaunchError without matplotlib.
    """
    figure_of = require("matplotlib.figure", "a picture").Figure
    opened = [(title, *_step_of(path, step)) for title, path in traces]
    heights = [1 + ranks for _, ranks, _ in opened]
    figure = figure_of(figsize=(9, 0.4 + 0.55 * sum(heights)), layout="constrained")
    panels = figure.subplots(len(opened), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (title, ranks, bars) in zip(panels, opened):
        _draw(axes, ranks, bars)
        axes.set_title(title, fontsize="medium", loc="left")
    panels[-1].set_xlabel("milliseconds from the begin of the step")
    shown = panels[0].get_legend_handles_labels()
    figure.legend(*shown, loc="outside upper right", ncols=3, fontsize="small")
    # an SVG of the same trace is the same file
    save_figure(figure, output, metadata={"Date": None} if str(output).endswith(".svg") else None)


def _draw(axes: Any, ranks: int, bars: Sequence[Bar]) -> None:
    """Two rows per rank, and the end of each rank's step."""
    for kind, (row, colour, label) in _STYLES.items():
        for rank in range(ranks):
            own = [bar for bar in bars if (bar.rank, bar.kind) == (rank, kind)]
            axes.broken_barh(
                [(bar.begin, bar.end - bar.begin) for bar in own],
                (2 * rank + row - 0.4, 0.8),
                facecolor=colour,
                edgecolor="white",
                linewidth=0.4,
                label=None if rank else label,
            )
    for bar in bars:
        if bar.kind == "step":
            axes.vlines(bar.end, 2 * bar.rank - 0.5, 2 * bar.rank + 1.5, color="black", linewidth=1)
    names = [name for rank in range(ranks) for name in (f"rank {rank}", "in flight")]
    axes.set_yticks(range(2 * ranks), names, fontsize="small")
    axes.invert_yaxis()


def _step_of(path: str | os.PathLike[str], number: int) -> tuple[int, list[Bar]]:
    """Ranks of a trace, and its bars within a step."""
    with open(path, encoding="utf-8") as file:
        events = [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]
    steps = [event for event in events if event["cat"] == "step"]
    whole = {event["pid"]: event for event in steps if event["name"] == f"step {number}"}
    check("step", number, whole, f"the number of a step in {path}")
    return 1 + max(whole), list(_bars(events, whole))


def _bars(events: Iterable[Json], whole: dict[int, Json]) -> Iterator[Bar]:
    """Those of one step, cut at its ends. whole: the event of the step, by rank."""
    zero = min(event["ts"] for event in whole.values())
    for event in events:
        if event["pid"] not in whole or event["cat"] == "step" and event is not whole[event["pid"]]:
            continue
        limits = whole[event["pid"]]
        begin = max(event["ts"], limits["ts"])
        end = min(event["ts"] + event["dur"], limits["ts"] + limits["dur"])
        if end > begin:
            yield Bar(event["pid"], event["cat"], (begin - zero) / 1000, (end - zero) / 1000)
