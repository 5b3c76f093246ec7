"""The table of planted faults and of those that the doctor named."""

import json
from collections import Counter
from pathlib import Path

from .markdown import table_of

RESULTS = Path(__file__).resolve().parents[1] / "results" / "doctor.json"


def table():
    """Markdown: a line for each kind of fault, and one for the healthy runs."""
    document = json.loads(RESULTS.read_text(encoding="utf-8"))
    runs = [run for run in document["runs"] if run["fault"] != "none"]
    planted = Counter(run["fault"] for run in runs)
    named = Counter(run["fault"] for run in runs if run["named"])
    lines = [[fault, planted[fault], named[fault]] for fault in sorted(planted)]
    counts = document["counts"]
    lines.append(["all", counts["planted"], counts["named"]])
    lines.append([f"none ({counts['healthy']} runs)", 0, f"{counts['false alarms']} false alarms"])
    return table_of([["fault", "planted", "named"], ["---"] * 3, *lines])
