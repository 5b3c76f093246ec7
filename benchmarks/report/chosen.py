"""`auto` against the best that was measured, over all committed comparisons of collectives.

A cell is a collective at one size on one placement of ranks. What is chosen is asked of the table
that comes with mpicoll; its time is that of the same algorithm in the same pieces in the cell. The
best is the fastest of MPI's own call, its forced algorithms, gloo and ours. What the run measured
twice, under two names, counts by the lesser time; what it gave up after its trial calls is left
out, as those are single calls and all others means of several.
"""

import json
from math import inf
from typing import NamedTuple

from mpicoll.bench import method_of
from mpicoll.collectives import find
from mpicoll.select import Query, choose
from mpicoll.support.units import format_bytes
from mpicoll.transport import Topology

from .compared import forced
from .results import RESULTS

PATTERNS = ("allreduce-*", "hosts-*", "small-*", "others-*", "placed-*", "moves-*", "between-*")
#: what is called near, and what is the limit
NEAR = 1.1
LIMIT = 1.25
WORST = 12


class Cell(NamedTuple):
    """One cell: where and what it is, what is chosen and what was best (words), and how many times
    as long that takes.

    ratio: None where what is chosen was not measured in the pieces that it is chosen in. free: the
    same against what a call may choose: without MPI's forced algorithms, which a job chooses when
    it starts.
    """

    place: str
    collective: str
    nbytes: int
    chosen: str
    best: str
    ratio: float | None
    free: float | None


def table():
    """Markdown: shares of the cells by collective, and the worst cells."""
    everything = [
        cell
        for pattern in PATTERNS
        for path in sorted(RESULTS.glob(f"{pattern}.json"))
        for cell in cells(path)
    ]
    found = [cell for cell in everything if cell.ratio is not None]
    header = [
        "collective",
        "cells",
        f"within {NEAR} x",
        f"within {LIMIT} x",
        "worst",
        f"within {NEAR} x, none forced",
    ]
    lines = [header, ["---"] + ["---:"] * (len(header) - 1)]
    for name in [*dict.fromkeys(cell.collective for cell in found), "all"]:
        ratios = [cell.ratio for cell in found if name in (cell.collective, "all")]
        free = [cell.free for cell in found if name in (cell.collective, "all")]
        shares = [
            _share(ratios, NEAR),
            _share(ratios, LIMIT),
            f"{max(ratios):.2f}",
            _share(free, NEAR),
        ]
        lines.append([name, str(len(ratios)), *shares])
    worst = sorted((cell for cell in found if cell.ratio > LIMIT), key=lambda cell: -cell.ratio)
    rest = [f"and {len(worst) - WORST} more above {LIMIT}"] if len(worst) > WORST else []
    if len(everything) > len(found):
        rest.append(
            f"{len(everything) - len(found)} cells are not counted: what is chosen was not measured"
            " there"
        )
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n\n"
    return text + "".join(f"- {line}\n" for line in [*map(_line, worst[:WORST]), *rest]) + "\n"


def _share(ratios, limit):
    return f"{sum(ratio <= limit for ratio in ratios) / len(ratios):.0%}"


def _line(cell):
    what = f"{cell.collective} of {format_bytes(cell.nbytes)}, {cell.place}"
    return f"{what}: {cell.chosen} takes {cell.ratio:.2f} times as long as {cell.best}"


def cells(path):
    """The `Cell`s of one result."""
    document = json.loads(path.read_text(encoding="utf-8"))
    facts = document["environment"]
    rows = document["results"]
    collective = rows[0]["collective"]
    topology = topology_of(facts)
    split = rows[0].get("split", "even")
    # the root alone knows how many bytes there are
    blind = split != "even" and find(collective).rooted
    for nbytes in sorted({row["bytes"] for row in rows}):
        times = _times(row for row in rows if row["bytes"] == nbytes)
        choice = choose(Query(collective, topology, None if blind else nbytes))
        best = min(times, key=times.get)
        taken = times.get((choice.name, _cut(choice.segment_bytes, nbytes)))
        name = collective if split == "even" else method_of(collective, split)
        free = min(time for (word, _), time in times.items() if not forced(word))
        ratios = (taken / times[best], taken / free) if taken else (None, None)
        yield Cell(_place(facts), name, nbytes, choice.name, best[0], *ratios)


def topology_of(facts):
    """The `Topology` that a run's facts tell of."""
    size = facts["size"]
    nodes = facts["nodes"]
    each = size // nodes
    spread = facts.get("placement") == "round-robin"
    return Topology(
        tuple(rank % nodes if spread else rank // each for rank in range(size)), "tcp", facts["mpi"]
    )


def _place(facts):
    each = facts["size"] // facts["nodes"]
    return (
        f"{facts['mpi']}, {facts['nodes']}"
        f" host{'s' * (facts['nodes'] > 1)}{f' x {each}' * (each > 1)}"
    )


def _times(rows):
    """{(word, pieces): microseconds} of what was raced."""
    found = {}
    for row in rows:
        if not row.get("hopeless"):
            word = {"native again": "native", "auto": row.get("chose")}.get(
                row["algorithm"], row["algorithm"]
            )
            key = word, _cut(row["segment_bytes"], row["bytes"])
            found[key] = min(found.get(key, inf), row["median_us"])
    return found


def _cut(segment_bytes, nbytes):
    """The pieces, or None where they would not cut the vector."""
    return segment_bytes if segment_bytes and segment_bytes < nbytes else None
