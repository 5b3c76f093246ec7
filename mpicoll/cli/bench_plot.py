"""`bench --plot`, `simulate --plot`: a line for each algorithm over size, in one panel for each thing to know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any, NamedTuple

from ..simulate import lower_bound
from ..support.files import save_figure
from ..support.optional import require
from ..support.units import format_bytes, parse_rate

Row = dict[str, Any]  # an entry of `--json`
_MARKERS, _COLOURS = "osD^v<>ph*Pd", [f"C{number}" for number in range(10)]
#: of lines that must be found among the others
_STYLES: dict[str, dict[str, Any]] = {
    "native": {"color": "black", "linewidth": 2.5, "marker": "o"},
    "auto": {"color": "gold", "linewidth": 5, "alpha": 0.6, "marker": "", "zorder": 1},
}
_ABOVE = "above 1: what a short message puts into the buffers of an idle link is not waited for"


class Panel(NamedTuple):
    """One quantity. value: of a row, None where it has none; one: what a line at 1 means; above: what values above it do."""

    label: str
    value: Callable[[Row], float | None]
    one: str = ""
    above: str = ""


def bandwidth() -> Panel:
    """Bus bandwidth."""
    return Panel("bus bandwidth, GB/s", lambda row: float(row["busbw"]))


def against_native(results: Sequence[Row]) -> Panel:
    """How many times as fast as MPI's own call. results: which have that call at every size."""
    native = {row["bytes"]: row["median_us"] for row in results if row["algorithm"] == "native"}
    return Panel("x native", lambda row: float(native[row["bytes"]] / row["median_us"]), "MPI's own call")


def share_of_link(rate: str, nodes: int) -> Panel:
    """The time in which a node's link of this rate carries what it must, over the time measured."""

    def share(row: Row) -> float:
        seconds = lower_bound(row["collective"], nodes).sent * row["bytes"] * 8 / parse_rate(rate)
        return float(seconds / row["median_us"] * 1e6)

    return Panel(f"share of a link of {rate}", share, "all it can carry", _ABOVE)


def share_of_bound() -> Panel:
    """The time that no algorithm can beat, over the time predicted."""
    return Panel("share of the bound", lambda row: row["x_bound"] and 1 / row["x_bound"], "none is faster")


def draw(path: str, results: Sequence[Row], title: str, panels: Sequence[Panel]) -> None:
    """Write the picture."""
    figure = require("matplotlib.figure", "--plot").Figure(figsize=(9, 0.8 + 3.2 * len(panels)), layout="constrained")
    every = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axes, panel in zip(every, panels):
        _panel(axes, results, panel)
    figure.legend(*every[0].get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    figure.suptitle(title, fontsize="medium")
    save_figure(figure, path)


def _panel(axes: Any, results: Sequence[Row], panel: Panel) -> None:
    words = list(dict.fromkeys(row["algorithm"] for row in results))
    highest = 0.0
    for number, (word, marker, colour) in enumerate(zip(words, cycle(_MARKERS), cycle(_COLOURS))):
        points = [(row["bytes"], panel.value(row)) for row in results if row["algorithm"] == word]
        shown = [(nbytes, value) for nbytes, value in points if value]
        highest = max([highest, *(value for _, value in shown)])
        # of lines that lie on one another each is narrower than the one below, and has smaller, hollow markers of another form
        below = (len(words) - number) / len(words)
        style: dict[str, Any] = {"marker": marker, "markerfacecolor": "none", "color": colour, "markersize": 4 + 6 * below,
                                 "linewidth": 0.8 + 2.4 * below}  # fmt: skip
        axes.plot([nbytes for nbytes, _ in shown], [value for _, value in shown], label=word, **style | _STYLES.get(word, {}))
    if panel.one:
        axes.axhline(1, color="grey", linewidth=0.8, linestyle="--", zorder=0)
    _scale(axes, sorted({row["bytes"] for row in results}))
    note = f"\n{panel.above}" if panel.above and highest > 1 else ""
    axes.set(xlabel=f"m, bytes of the vector{note}", ylabel=f"{panel.label}\n(1: {panel.one})" if panel.one else panel.label)


def _scale(axes: Any, sizes: Sequence[int]) -> None:
    """Both axes in powers, with sizes as 64K and numbers as they are."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = sizes[:: -(-len(sizes) // 10)]
    axes.set_xticks(ticks, [format_bytes(nbytes) for nbytes in ticks])
    axes.set_xticks([], minor=True)
    ticker = require("matplotlib.ticker", "--plot")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter("")
    axes.grid(True, axis="both", alpha=0.3)
