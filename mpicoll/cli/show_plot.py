"""`show --plot`: ranks across, rounds down, an arrow for each message, and the blocks of each rank as they fill up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..support.files import save_figure
from ..support.optional import require

if TYPE_CHECKING:
    from .show import Moment, Played

_WIDE, _HIGH = 0.72, 0.34  # of a rank's row of blocks, where ranks and rounds are 1 apart
_INK, _FULL, _WRONG = "#33415c", "#1b7f79", "#b3261e"


def draw(path: str, played: Played, title: str) -> None:
    """Write the picture."""
    size, rounds = played.size, len(played.frames)
    figure = require("matplotlib.figure", "--plot").Figure(
        figsize=(min(24, 1.2 + 1.15 * size), min(40, 1.4 + 0.62 * rounds)), layout="constrained")  # fmt: skip
    axes = figure.subplots()
    has = [[0] * played.blocks for _ in range(size)]
    for frame in played.frames:
        for moment in frame:
            has[moment.rank] = moment.held
            for peer, _ in moment.arrived:
                _arrow(axes, peer, moment)
        for rank, held in enumerate(has):
            _rank(axes, played, (rank, frame[0].clock), held)
    clocks = [frame[0].clock for frame in played.frames]
    axes.set(xlim=(-0.6, size - 0.4), ylim=(max(clocks, default=0) + 0.5, -0.5), xticks=range(size), yticks=clocks,
             xticklabels=[f"rank {rank}" for rank in range(size)],
             yticklabels=[f"round {clock}" if clock else "start" for clock in clocks])  # fmt: skip
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize="small")
    axes.spines[:].set_visible(False)
    shade = "how much of the sum a block has" if played.collective.reduces else "where data are"
    note = f"a box: a block, {played.blocks} in all; its shade: {shade}; an arrow: a message"
    axes.set_xlabel(f"wrong: {played.wrong}" if played.wrong else note, fontsize="small",
                    color=_WRONG if played.wrong else _INK, wrap=True)  # fmt: skip
    figure.suptitle(title, fontsize="medium")
    save_figure(figure, path)


def _rank(axes: Any, played: Played, place: tuple[int, int], held: list[int]) -> None:
    """The blocks that a rank has at the end of a round, side by side. place: rank and round; held: whose, of each block."""
    rectangle, each = require("matplotlib.patches", "--plot").Rectangle, _WIDE / played.blocks
    for block, ranks in enumerate(held):
        share = ranks.bit_count() / played.size if played.collective.reduces else float(ranks > 0)
        box = ((place[0] - _WIDE / 2 + block * each, place[1] - _HIGH / 2), each, _HIGH)
        axes.add_patch(rectangle(*box, facecolor="white", linewidth=0, zorder=2))
        axes.add_patch(rectangle(*box, facecolor=_FULL, alpha=share, linewidth=0, zorder=3))
        axes.add_patch(rectangle(*box, fill=False, edgecolor=_INK, linewidth=0.6, zorder=4))


def _arrow(axes: Any, peer: int, moment: Moment) -> None:
    """From a rank at the end of the round before to another at the end of this one."""
    begin, end = (peer, moment.clock - 1 + _HIGH / 2), (moment.rank, moment.clock - _HIGH / 2)
    axes.annotate("", end, begin, arrowprops={"arrowstyle": "-|>", "color": _INK, "linewidth": 0.8, "alpha": 0.75}, zorder=1)
