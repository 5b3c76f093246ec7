"""What `mpicoll verify --msccl` says of algorithms that others publish."""

import json
import os
import re
from collections import defaultdict
from pathlib import Path

from mpicoll.support.units import format_bytes

from .markdown import table_of

RESULTS = Path(__file__).resolve().parents[1] / "results"


def table():
    """Markdown: a line for files of one kind with the same outcome."""
    document = json.loads((RESULTS / "msccl.json").read_text(encoding="utf-8"))
    groups = defaultdict(list)
    for row in document["files"]:
        kind = re.sub(r"\d+", "", row["path"])
        groups[row["repository"], kind, row["collective"], outcome(row)].append(row)
    lines = [["repository", "file", "collective", "GPUs", "steps", "outcome"], ["---"] * 6]
    for (repository, _, collective, words), rows in groups.items():
        first = rows[0]["path"]
        others = f" and {len(rows) - 1} like it" if len(rows) > 1 else ""
        lines.append([
            repository, f"`{os.path.basename(first)}`{others}", collective, span(rows, "gpus"), span(rows, "steps"),
            words,
        ])
    return table_of(lines)


def outcome(row):
    """The outcome of a file, as text."""
    if row["outcome"] == "wrong":
        return f"**wrong**: {row['why']}"
    words = [row["outcome"]]
    if row["limit"]:
        words.append(f"for vectors of at most {format_bytes(row['limit'])}")
    if not row["same_bits"]:
        words.append("maybe other bits on each GPU")
    return ", ".join(words)


def span(rows, key):
    """The least and the largest value."""
    values = sorted({row[key] for row in rows})
    return f"{values[0]:,}" if len(values) == 1 else f"{values[0]:,} to {values[-1]:,}"
