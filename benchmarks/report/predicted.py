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
    """Markdown: a line for each library, rate and number of hosts, one for all, one for the small.

    In each the errors without slow restarts of idle connections, and those with them.
    """
    rows = sorted(json.loads(RESULTS.read_text(encoding="utf-8"))["rows"], key=CASE)
    small = [row for row in rows if not counts(row)]
    rows = [row for row in rows if counts(row)]
    lines = [[*map(str, case), *_errors(list(group))] for case, group in groupby(rows, CASE)]
    lines.append(["all", "", "", *_errors(rows)])
    lines.append([f"below {format_bytes(COUNTED_FROM)}", "", "", *_errors(small)])
    columns = ["median error", "worst", "there, predicted / measured"]
    header = ["MPI", "rate", "hosts", *columns, *(f"slow restarts: {name}" for name in columns)]
    return table_of([header, ["---"] * len(header), *lines])


def _errors(rows):
    for restart in (0, 1):
        chosen = [row for row in rows if row["idle_restart"] == restart]
        worst = max(chosen, key=error)
        ratio = worst["predicted"] / worst["measured"]
        yield f"{median(map(error, chosen)):.0%}"
        yield f"{error(worst):.0%}"
        yield f"{worst['algorithm']}, {format_bytes(worst['bytes'])}: {ratio:.2f}"
