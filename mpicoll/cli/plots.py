"""The pictures of `--plot`: of results, schedules, tuning tables and scaling sweeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..algorithms import NATIVE
from ..collectives import Collective
from ..simulate import lower_bound
from ..support.files import save_figure
from ..support.optional import require
from ..support.units import format_bytes, many, parse_rate

if TYPE_CHECKING:
    from ..select import table
    from .show import Moment, Played

#: an entry of `bench --json` or `simulate --json`, or a row of a scaling sweep
Row = Mapping[str, Any]

_MARKERS = "osD^v<>ph*Pd"
#: styles of lines that must be found among the others
_STYLES: dict[str, dict[str, Any]] = {
    "native": {"color": "black", "linewidth": 2.5, "marker": "o"},
    "auto": {"color": "gold", "linewidth": 5, "alpha": 0.6, "marker": "", "zorder": 1},
}
#: width and height of a rank's blocks in the picture of a schedule; ranks and rounds are 1 apart
_WIDTH = 0.72
_HEIGHT = 0.34
_INK = "#33415c"
_FULL = "#1b7f79"
_WRONG = "#b3261e"
_GREY = "#b8bcc2"
#: powers of two of the bytes in the picture of a tuning table
_POWERS = range(10, 27)


def _canvas(width: float, height: float, panels: int = 1) -> tuple[Any, list[Any]]:
    """A figure and its axes, one below the other."""
    make = require("matplotlib.figure", "--plot").Figure
    figure = make(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(panels, 1, squeeze=False)[:, 0])


def _save(figure: Any, path: str, title: str) -> None:
    figure.suptitle(title, fontsize="medium")
    save_figure(figure, path)


def _line(axes: Any, points: Iterable[tuple[float, float]], label: str, rank: int, of: int) -> None:
    """One of several lines, narrower than the one drawn before, so that equal lines are seen."""
    below = (of - rank) / of
    style = {
        "marker": _MARKERS[rank % len(_MARKERS)],
        "markerfacecolor": "none",
        "markersize": 4 + 6 * below,
        "linewidth": 0.8 + 2.4 * below,
    }
    axes.plot(*zip(*points), label=label, **style | _STYLES.get(label, {}))


class Panel(NamedTuple):
    """One quantity of results over size."""

    label: str
    #: of a row, or None where it has none
    value: Callable[[Row], float | None]
    #: what a value of 1 means
    one: str = ""
    #: what a value above 1 means
    above: str = ""


def bandwidth() -> Panel:
    """Bus bandwidth."""
    return Panel("bus bandwidth, GB/s", lambda row: float(row["busbw"]))


def against_native(results: Sequence[Row]) -> Panel:
    """The speed-up over MPI's own call, which the results contain at every size."""
    native = {row["bytes"]: row["median_us"] for row in results if row["algorithm"] == "native"}

    def speedup(row: Row) -> float:
        return float(native[row["bytes"]] / row["median_us"])

    return Panel("x native", speedup, "MPI's own call")


def share_of_link(rate: str, nodes: int) -> Panel:
    """The least time in which a node's link of this rate carries its data, over the time."""

    def share(row: Row) -> float:
        seconds = lower_bound(row["collective"], nodes).sent * row["bytes"] * 8 / parse_rate(rate)
        return float(seconds / row["median_us"] * 1e6)

    above = "above 1: what a short message puts into the buffers of an idle link is not waited for"
    return Panel(f"share of a link of {rate}", share, "all it can carry", above)


def share_of_bound() -> Panel:
    """The lower bound of the time over the predicted time."""

    def share(row: Row) -> float | None:
        return 1 / row["x_bound"] if row["x_bound"] else None

    return Panel("share of the bound", share, "none is faster")


def draw_results(path: str, results: Sequence[Row], title: str, panels: Sequence[Panel]) -> None:
    """A line for each algorithm over size, in one panel per quantity."""
    figure, every = _canvas(9, 0.8 + 3.2 * len(panels), len(panels))
    words = list(dict.fromkeys(map(_label, results)))
    for axes, panel in zip(every, panels):
        values = [value for row in results if (value := panel.value(row))]
        for number, word in enumerate(words):
            rows = [row for row in results if _label(row) == word]
            points = [(row["bytes"], value) for row in rows if (value := panel.value(row))]
            _line(axes, points or [(float("nan"), float("nan"))], word, number, len(words))
        if panel.one:
            axes.axhline(1, color="grey", linewidth=0.8, linestyle="--", zorder=0)
        _scale(axes, sorted({row["bytes"] for row in results}))
        note = f"\n{panel.above}" if panel.above and max(values, default=0) > 1 else ""
        axes.set(
            xlabel=f"m, bytes of the vector{note}",
            ylabel=f"{panel.label}\n(1: {panel.one})" if panel.one else panel.label,
        )
    lines, labels = every[0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside right upper", fontsize="small")
    _save(figure, path, title)


def _label(row: Row) -> str:
    """The algorithm, and what it is compressed with."""
    return " ".join(filter(None, (row["algorithm"], row.get("compression"))))


def _scale(axes: Any, sizes: Sequence[int]) -> None:
    """Logarithmic axes, with sizes such as 64K and plain numbers."""
    ticker = require("matplotlib.ticker", "--plot")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = sizes[:: -(-len(sizes) // 10)]
    axes.set_xticks(ticks, [format_bytes(nbytes) for nbytes in ticks])
    axes.set_xticks([], minor=True)
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    axes.grid(True, axis="both", alpha=0.3)


def draw_schedule(path: str, played: Played) -> None:
    """Ranks across, rounds down, an arrow for each message, and the blocks as they fill up."""
    size = played.size
    figure, (axes,) = _canvas(min(24, 1.2 + 1.15 * size), min(40, 1.4 + 0.62 * len(played.frames)))
    has = [[0] * played.blocks for _ in range(size)]
    for frame in played.frames:
        for moment in frame:
            has[moment.rank] = moment.held
            for peer, _ in moment.arrived:
                _arrow(axes, peer, moment)
        for rank, held in enumerate(has):
            _blocks(axes, played, rank, frame[0].clock, held)
    clocks = [frame[0].clock for frame in played.frames]
    axes.set(
        xlim=(-0.6, size - 0.4),
        ylim=(max(clocks, default=0) + 0.5, -0.5),
        xticks=range(size),
        yticks=clocks,
        xticklabels=[f"rank {rank}" for rank in range(size)],
        yticklabels=[f"round {clock}" if clock else "start" for clock in clocks],
    )
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize="small")
    axes.spines[:].set_visible(False)
    shade = "how much of the sum a block has" if played.collective.reduces else "where data are"
    scope = "in all" if isinstance(played.collective, Collective) else "of a rank at most"
    note = f"a box: a block, {played.blocks} {scope}; its shade: {shade}; an arrow: a message"
    if played.wrong:
        axes.set_xlabel(f"wrong: {played.wrong}", fontsize="small", color=_WRONG, wrap=True)
    else:
        axes.set_xlabel(note, fontsize="small", color=_INK, wrap=True)
    _save(figure, path, played.title)


def _blocks(axes: Any, played: Played, rank: int, clock: int, held: Sequence[int]) -> None:
    """A rank's blocks after a round, side by side. held: the contributors of each, as bits."""
    rgba = require("matplotlib.colors", "--plot").to_rgba
    total = played.size if played.collective.reduces else 1
    colours = [rgba(_FULL, min(ranks.bit_count() / total, 1)) for ranks in held]
    width = _WIDTH / played.blocks
    spans = [(rank - _WIDTH / 2 + block * width, width) for block in range(played.blocks)]
    below = clock - _HEIGHT / 2
    axes.broken_barh(spans, (below, _HEIGHT), facecolors=colours, edgecolors=_INK, linewidth=0.6)


def _arrow(axes: Any, peer: int, moment: Moment) -> None:
    """From a rank at the end of the round before to another at the end of this one."""
    begin = peer, moment.clock - 1 + _HEIGHT / 2
    end = moment.rank, moment.clock - _HEIGHT / 2
    style = {"arrowstyle": "-|>", "color": _INK, "linewidth": 0.8, "alpha": 0.75}
    axes.annotate("", end, begin, arrowprops=style, zorder=0)


def draw_table(path: str, entries: Sequence[table.TableEntry], where: str) -> None:
    """What a tuning table chooses over bytes and ranks, a panel for each collective.

    entries: of one place, whose `ranks` are numbers. where: the title.
    """
    collectives = list(dict.fromkeys(entry.collective for entry in entries))
    words = list(dict.fromkeys(rule.algorithm for entry in entries for rule in entry.rules))
    rows = max(sum(entry.collective == name for entry in entries) for name in collectives)
    height = 1.2 + len(collectives) * (0.75 + 0.4 * rows)
    figure, every = _canvas(9, height, len(collectives))
    bright = require("matplotlib", "--plot").colormaps["tab20"]
    colours = {
        word: _GREY if word == NATIVE else bright(number) for number, word in enumerate(words)
    }
    for axes, name in zip(every, collectives):
        _choices(axes, [entry for entry in entries if entry.collective == name], colours)
        axes.set_title(name, fontsize="medium", loc="left")
        axes.set_xlabel("m, bytes of the vector")
    figure.supxlabel("a number in a field: the pieces that messages are cut into", fontsize="small")
    patch = require("matplotlib.patches", "--plot").Patch
    figure.legend([patch(color=colours[word]) for word in words], words, loc="outside right upper")
    _save(figure, path, where)


def _choices(axes: Any, entries: Sequence[table.TableEntry], colours: Mapping[str, Any]) -> None:
    """One collective: a row for each number of ranks."""
    order = sorted(entries, key=lambda entry: (int(entry.ranks), str(entry.nodes)))
    for row, entry in enumerate(order):
        before = None
        for power in _POWERS:
            rule = entry.rule(1 << power, int(entry.ranks))
            if rule is None:
                continue
            colour = colours[rule.algorithm]
            axes.barh(row, 1, left=power - 0.5, height=0.9, color=colour, linewidth=0)
            if rule != before and rule.segment_bytes:
                pieces = format_bytes(rule.segment_bytes)
                axes.text(power - 0.42, row, pieces, fontsize="x-small", va="center")
            before = rule
    axes.set(
        yticks=range(len(order)),
        yticklabels=[f"{entry.ranks} on {entry.nodes}" for entry in order],
        ylabel="ranks on nodes",
        xticks=_POWERS[::2],
        xticklabels=[format_bytes(1 << power) for power in _POWERS[::2]],
        xlim=(_POWERS[0] - 0.5, _POWERS[-1] + 0.5),
    )
    axes.spines[:].set_visible(False)


def draw_pairs(path: str, hosts: Sequence[str], pairs: Sequence[Any]) -> None:
    """The bandwidth from each node (rows) to each other (columns), in Mb/s.

    pairs: with `source`, `target` and `bandwidth`, as the doctor's.
    """
    count = len(hosts)
    grid = [[float("nan")] * count for _ in hosts]
    for pair in pairs:
        grid[pair.source][pair.target] = 8e-6 * pair.bandwidth
    figure, (axes,) = _canvas(3 + 0.35 * count, 2 + 0.35 * count)
    image = axes.imshow(grid, cmap="viridis", vmin=0)
    figure.colorbar(image, ax=axes, label="Mb/s")
    axes.set(xlabel="to", ylabel="from", xticks=range(count), yticks=range(count))
    axes.set_xticklabels(hosts, rotation=90, fontsize="small")
    axes.set_yticklabels(hosts, fontsize="small")
    _save(figure, path, "bandwidth between nodes")


def draw_scaling(path: str, rows: Sequence[Row]) -> None:
    """Speed-up over nodes, of strong and weak scaling."""
    figure, (axes,) = _canvas(6, 4)
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    for number, kind in enumerate(kinds):
        points = [(row["nodes"], row["speedup"]) for row in rows if row["kind"] == kind]
        _line(axes, points, kind, number, len(kinds))
    nodes = sorted({row["nodes"] for row in rows})
    ideal = [count / nodes[0] for count in nodes]
    axes.plot(nodes, ideal, color="black", linestyle=":", label="ideal")
    unit = f"samples per second, over those of {many(nodes[0], 'node')}"
    axes.set(xlabel="nodes", ylabel=unit, xticks=nodes)
    axes.grid(True, alpha=0.3)
    axes.legend()
    save_figure(figure, path)
