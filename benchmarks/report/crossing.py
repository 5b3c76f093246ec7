"""Tables of the bytes that cross groups of ranks (benchmarks/results/crossing-groups.json)."""

from benchmarks.run.crossing import PAIRS

from .markdown import table_of
from .results import results_of

ALLOCATIONS = "aligned", "shifted", "fragmented", "scattered"
#: (ranks, ranks of a group) of the table of all algorithms
SHOWN = 64, 16
RIGHT = "---:"


def _counted():
    """{(collective, algorithm, ranks, ranks of a group, allocation): vectors that cross groups}."""
    (document,) = results_of("crossing-groups")
    keys = "collective", "algorithm", "size", "group", "allocation"
    return {tuple(row[key] for key in keys): row["crossing"] for row in document["results"]}


def pairs():
    """How much less or more crosses groups than with the counterpart."""
    counted = _counted()
    situations = sorted({key[2:4] for key in counted})
    lines = [
        ["collective", "compared", "allocation", *(f"{p} / {g}" for p, g in situations)],
        ["---"] * 3 + [RIGHT] * len(situations),
    ]
    for collective, word, other in PAIRS:
        for allocation in ALLOCATIONS:
            cells = []
            for situation in situations:
                ours = counted[(collective, word, *situation, allocation)]
                theirs = counted[(collective, other, *situation, allocation)]
                cells.append(f"{100 * (ours / theirs - 1):+.0f} %")
            lines.append([collective, f"{word} : {other}", allocation, *cells])
    return table_of(lines) + "\n"


def every():
    """What crosses groups, of all algorithms, in units of the vector."""
    counted = _counted()
    lines = [["collective", "algorithm", *ALLOCATIONS], ["---"] * 2 + [RIGHT] * len(ALLOCATIONS)]
    for collective, word in dict.fromkeys(key[:2] for key in counted if key[2:4] == SHOWN):
        cells = [f"{counted[(collective, word, *SHOWN, name)]:.1f}" for name in ALLOCATIONS]
        lines.append([collective, word, *cells])
    return table_of(lines) + "\n"
