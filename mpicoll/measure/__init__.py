"""What both the probe and the benchmarks need: fair timing of alternating candidates, and what a figure was measured on.

May import: support.
"""

from .provenance import command, environment, machine, nodes
from .timing import alternate, calls_per_time, collect, how_often, race, repeats_for, statistics

__all__ = [
    "alternate", "calls_per_time", "collect", "command", "environment", "how_often", "machine", "nodes", "race", "repeats_for",
    "statistics",
]
