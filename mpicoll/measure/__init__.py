"""Measuring: fair timing of alternating candidates, provenance of results, and timelines."""

from .provenance import command, machine, measured_on, nodes
from .timeline import OF_CALLS, Json, write_timeline
from .timing import alternate, calls_per_time, collect, how_often, in_turn, repeats_for, statistics

__all__ = [
    "OF_CALLS",
    "Json",
    "alternate",
    "calls_per_time",
    "collect",
    "command",
    "how_often",
    "in_turn",
    "machine",
    "measured_on",
    "nodes",
    "repeats_for",
    "statistics",
    "write_timeline",
]
