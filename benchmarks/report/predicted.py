"""The table of predictions by the doctor's model beside measured times."""

import json
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from statistics import median

from mpicoll.support.units import format_bytes

from ..run.predictions import COUNTED_FROM, counts, error
from .markdown import table_of

RESULTS = Path(__file__).resolve().parents[1] / "results" / "predictions.json"
CASE = itemgetter("mpi", "rate", "hosts")


def table():
    """Markdown: a line for each library, rate and number of hosts, one for all, one for the small."""
    rows = sorted(json.loads(RESULTS.read_text(encoding="utf-8"))["rows"], key=CASE)
    small = [row for row in rows if not counts(row)]
    rows = [row for row in rows if counts(row)]
    lines = [[*map(str, case), *_errors(list(group))] for case, group in groupby(rows, CASE)]
    lines.append(["all", "", "", *_errors(rows)])
    if small:
        lines.append([f"below {format_bytes(COUNTED_FROM)}", "", "", *_errors(small)])
    header = ["MPI", "rate", "hosts", "median error", "worst", "there, predicted / measured"]
    return table_of([header, ["---"] * len(header), *lines])


def _errors(rows):
    worst = max(rows, key=error)
    of = f"{worst['algorithm']}, {format_bytes(worst['bytes'])}"
    ratio = worst["predicted"] / worst["measured"]
    return f"{median(map(error, rows)):.0%}", f"{error(worst):.0%}", f"{of}: {ratio:.2f}"
