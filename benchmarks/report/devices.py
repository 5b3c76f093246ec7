"""Tables of the measurements on devices (benchmarks/results/gpu-*), as the README shows them."""

import json
from pathlib import Path

from mpicoll.support.units import format_bytes

from .markdown import table_of

RESULTS = Path(__file__).resolve().parents[1] / "results"
NAMES = ("by hand", "staged", "direct", "nccl", "host")


def table(folder=RESULTS):
    """A table for each result and type: what is written by hand in microseconds, and how many times
    as fast the others are.
    """
    paths = sorted(folder.glob("gpu-*.json"))
    if not paths:
        return "Not measured yet: `jobs/gpu_check.sbatch` measures it on a node with a GPU.\n"
    return "".join(_tables(json.loads(path.read_text(encoding="utf-8"))) for path in paths)


def _tables(document):
    facts = document["environment"]
    text = f"{_where(facts)}{_limits(document['limits'])}\n\n"
    for dtype in dict.fromkeys(row["dtype"] for row in document["results"]):
        text += _table(dtype, [row for row in document["results"] if row["dtype"] == dtype])
    return text + "".join(
        f"No {name}: {reason}.\n\n" for name, reason in document["left_out"].items()
    )


def _where(facts):
    cards = sorted({one["name"] for one in facts["devices"]})
    number = len({(one["host"], one["device"]) for one in facts["devices"]})
    date = facts["date"].partition("T")[0]
    return (
        f"{facts['mpi']}, {facts['size']} ranks on {number} x {', '.join(cards)}, CuPy"
        f" {facts['cupy']}, driver for CUDA {facts['cuda_driver']}, {facts['machine']}, {date}"
    )


def _limits(rows):
    if not rows:
        return ""
    most = rows[-1]
    ways = ", ".join(
        f"{most[way]:g} {what}"
        for way, what in (
            ("down", "down"),
            ("up", "up"),
            ("both", "each way at once"),
            ("within", "on the device"),
        )
    )
    return f"; a copy of {format_bytes(most['bytes'])} by each rank, GB/s: {ways}"


def _table(dtype, rows):
    median = {(row["name"], row["bytes"]): row["median_us"] for row in rows}
    names = [name for name in NAMES if any(row["name"] == name for row in rows)]
    head = [dtype, "by hand, µs", *(f"{name}, x by hand" for name in names[1:])]
    lines = [head, ["---"] + ["---:"] * (len(head) - 1)]
    for nbytes in sorted({row["bytes"] for row in rows}):
        base = median["by hand", nbytes]
        ratios = (
            f"{base / median[name, nbytes]:.2f}" if (name, nbytes) in median else ""
            for name in names[1:]
        )
        lines.append([format_bytes(nbytes), f"{base:,.0f}", *ratios])
    wrong = sum(row["wrong"] for row in rows)
    return (
        table_of(lines)
        + f"\nWrong elements: {wrong}.\n\n"
    )
