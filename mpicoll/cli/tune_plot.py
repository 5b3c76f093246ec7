"""`tune --plot`: which algorithm a table chooses, over bytes and ranks, a panel for each collective."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..algorithms import NATIVE
from ..support.files import save_figure
from ..support.optional import require
from ..support.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..select import table

#: powers of two of the bytes shown
_FIRST, _LAST = 10, 27
_GREY = "#b8bcc2"


def draw(path: str, entries: Sequence[table.Entry], where: str) -> None:
    """Write the picture. entries: of one place, whose `ranks` are numbers; where: what the title says."""
    collectives = list(dict.fromkeys(entry.collective for entry in entries))
    words = list(dict.fromkeys(rule.algorithm for entry in entries for rule in entry.rules))
    rows = max(sum(entry.collective == name for entry in entries) for name in collectives)
    figure = require("matplotlib.figure", "--plot").Figure(
        figsize=(9, 1.2 + len(collectives) * (0.75 + 0.4 * rows)), layout="constrained")  # fmt: skip
    bright = require("matplotlib", "--plot").colormaps["tab20"]
    colours = {word: _GREY if word == NATIVE else bright(number) for number, word in enumerate(words)}
    panels = figure.subplots(len(collectives), 1, squeeze=False)[:, 0]
    for axes, name in zip(panels, collectives):
        _panel(axes, [entry for entry in entries if entry.collective == name], colours)
        axes.set_title(name, fontsize="medium", loc="left")
        axes.set_xlabel("m, bytes of the vector")
    figure.supxlabel("a number in a field: the pieces that messages are cut into", fontsize="small")
    patch = require("matplotlib.patches", "--plot").Patch
    figure.legend([patch(color=colours[word]) for word in words], words, loc="outside right upper")
    figure.suptitle(where, fontsize="medium")
    save_figure(figure, path)


def _panel(axes: Any, entries: Sequence[table.Entry], colours: dict[str, Any]) -> None:
    """One collective: a row for each number of ranks."""
    order = sorted(entries, key=lambda entry: (int(entry.ranks), str(entry.nodes)))
    for row, entry in enumerate(order):
        before = None
        for power in range(_FIRST, _LAST):
            rule = entry.rule(1 << power, int(entry.ranks))
            if rule is None:
                continue
            axes.barh(row, 1, left=power - 0.5, height=0.9, color=colours[rule.algorithm], linewidth=0)
            if rule != before and rule.segment_bytes:
                axes.text(power - 0.42, row, format_bytes(rule.segment_bytes), fontsize="x-small", va="center")
            before = rule
    ticks = range(_FIRST, _LAST, 2)
    axes.set(yticks=range(len(order)), yticklabels=[f"{entry.ranks} on {entry.nodes}" for entry in order],
             ylabel="ranks on nodes", xticks=ticks, xticklabels=[format_bytes(1 << power) for power in ticks],
             xlim=(_FIRST - 0.5, _LAST - 0.5))  # fmt: skip
    axes.spines[:].set_visible(False)
