"""Tables and the picture of the training measurements (benchmarks/results/training-*, torch-*)."""

import json
from pathlib import Path

from mpicoll.train.monitor.trace import picture

RESULTS = Path(__file__).resolve().parents[1] / "results"
COLUMNS = ("", "step, ms", "computing", "communicating", "exposed", "hidden", "x none", "optimizer, MB", "gradients, MB")


def table(pattern="training-*"):
    """A table per result: strategies with and without overlap, medians of the slowest rank."""
    return "".join(_table(_read(path)) for path in _found(pattern))


def _found(pattern):
    paths = sorted(RESULTS.glob(f"{pattern}.json"))
    if not paths:
        raise SystemExit(f"there is no {RESULTS.name}/{pattern}.json: run python -m benchmarks.run.suite training")
    return paths


def _read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def _caption(facts):
    date = facts["date"].partition("T")[0]
    where = f"{facts['size']} ranks on {facts['nodes']} hosts, links of {facts['link']}"
    return f"{facts['mpi']}, {where}, {facts['machine']}, {date}"


def _table(document):
    facts, rows = document["environment"], document["results"]
    alone = {row["strategy"]: row["step_s"] for row in rows if (row["overlap"], row["algorithm"]) == ("none", "ring")}
    lines = [_row(row, alone) for row in rows]
    what = f"{facts['rows']} samples per rank, {rows[0]['parameter_bytes'] / 1e6:.1f} MB of parameters\n\n"
    head = [COLUMNS, ["---"] + ["---:"] * (len(COLUMNS) - 1)]
    return f"{_caption(facts)}: {what}" + _markdown([*head, *lines])


def _row(row, alone):
    native = ", MPI_Allreduce" if row["algorithm"] == "native" else ""
    times = [f"{row[name] * 1e3:.0f}" for name in ("step_s", "compute_s", "communication_s", "exposed_s")]
    bytes_ = [f"{row[name] / 1e6:.1f}" for name in ("optimizer_bytes", "gradient_bytes")]
    return [f"`{row['strategy']}`, overlap {row['overlap']}{native}", *times, f"{max(0, row['hidden']):.2f}",
            f"{row['step_s'] / alone[row['strategy']]:.2f}", *bytes_]  # fmt: skip


def torch_table():
    """A table per result: PyTorch's own data parallelism against ours."""
    return "".join(_torch_table(_read(path)) for path in _found("torch-*"))


def _torch_table(document):
    facts, rows = document["environment"], document["results"]
    lines = [["", "step, ms", "least", "x DDP"], ["---", "---:", "---:", "---:"]]
    base = rows[0]["step_s"]
    for row in rows:
        milliseconds = [f"{row[name] * 1e3:.0f}" for name in ("step_s", "least_s")]
        lines.append([row["name"], *milliseconds, f"{row['step_s'] / base:.2f}"])
    return f"{_caption(facts)}, PyTorch {facts['torch']}\n\n" + _markdown(lines)


def _markdown(lines):
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n\n"


def draw():
    """The step of zero1 with each overlap, from the traces that the benchmark left."""
    facts = _read(RESULTS / "training-mpich-4.json")["environment"]
    traces = [(f"zero1, overlap {word}", RESULTS / f"timeline-{word}.json") for word in ("none", "gradients", "all")]
    picture(RESULTS / "timeline.svg", traces, facts["traced_step"])
