"""Tables and the picture of the training measurements: results/training-*, torch-*, backend-*,
compressed-training-*, compressed-text-*, time-to-loss-*, local-steps-*.
"""

from mpicoll.support.units import format_bytes

from ..peers.gloo import on_gloo
from .compared import PICTURES
from .markdown import table_of
from .results import RESULTS, results_of
from .steps import picture

COLUMNS = (
    "",
    "step, ms",
    "computing",
    "communicating",
    "exposed",
    "hidden",
    "x none",
    "x limit",
    "optimizer, MB",
    "gradients, MB",
)


def table(pattern="training-*"):
    """A table per result: strategies with and without overlap, medians of the slowest rank."""
    return "".join(_table(document) for document in _found(pattern))


def _found(pattern):
    return results_of(pattern, "training")


def _caption(facts):
    date = facts["date"].partition("T")[0]
    where = f"{facts['size']} ranks on one host"
    if facts["nodes"] > 1:
        where = f"{facts['size']} ranks on {facts['nodes']} hosts, links of {facts['link']}"
    return f"{facts['mpi']}, {where}, {facts['machine']}, {date}"


def _table(document):
    facts = document["environment"]
    rows = document["results"]
    alone = {
        row["strategy"]: row["step_s"]
        for row in rows
        if (row["overlap"], row["algorithm"]) == ("none", "ring")
    }
    lines = [_row(row, alone, facts.get("limit")) for row in rows]
    what = (
        f"{facts['rows']} samples per rank, {rows[0]['parameter_bytes'] / 1e6:.1f} MB of"
        f" parameters{_limit(facts)}\n\n"
    )
    head = [COLUMNS, ["---"] + ["---:"] * (len(COLUMNS) - 1)]
    return f"{_caption(facts)}: {what}" + _markdown([*head, *lines])


def _limit(facts):
    """The shortest step there can be, and why; results from before it was measured have none."""
    if "limit" not in facts:
        return ""
    parts = ("limit_s", "compute_s", "moving_s", "links_s")
    whole, compute, moving, links = (round(facts["limit"][name] * 1e3) for name in parts)
    return (
        f"; limit {whole} ms: computing {compute}, cores moving the bytes {moving}; links {links}"
    )


def _row(row, alone, limit):
    native = ", MPI_Allreduce" if row["algorithm"] == "native" else ""
    times = [
        f"{row[name] * 1e3:.0f}" for name in ("step_s", "compute_s", "communication_s", "exposed_s")
    ]
    bytes_ = [f"{row[name] / 1e6:.1f}" for name in ("optimizer_bytes", "gradient_bytes")]
    return [
        f"`{row['strategy']}`, overlap {row['overlap']}{native}",
        *times,
        f"{max(0, row['hidden'] or 0):.2f}",
        f"{row['step_s'] / alone[row['strategy']]:.2f}",
        f"{row['step_s'] / limit['limit_s']:.2f}" if limit else "",
        *bytes_,
    ]


def torch_table():
    """A table per result: PyTorch's own data parallelism against ours."""
    return "".join(_torch_table(document, "x DDP") for document in _found("torch-*"))


def backend_table():
    """Two tables per result: trainings by PyTorch's means, and its allreduce, on our backend
    against gloo.
    """
    documents = _found("backend-*")
    return "".join(
        _torch_table(document, "x gloo", on_gloo) + _allreduce_table(document["allreduce"])
        for document in documents
    )


def _torch_table(document, against, base=None):
    """against: what the last column is called. base: the name of what a row is compared with, by
    its own; the first row.
    """
    facts = document["environment"]
    rows = document["results"]
    lines = [["", "step, ms", "least", against], ["---", "---:", "---:", "---:"]]
    took = {row["name"]: row["step_s"] for row in rows}
    for row in rows:
        milliseconds = [f"{row[name] * 1e3:.0f}" for name in ("step_s", "least_s")]
        other = base(row["name"]) if base else rows[0]["name"]
        lines.append([row["name"], *milliseconds, f"{row['step_s'] / took[other]:.2f}"])
    return f"{_caption(facts)}, PyTorch {facts['torch']}\n\n" + _markdown(lines)


def _allreduce_table(rows):
    medians = {name: [row[name]["median_us"] for row in rows] for name in ("gloo", "mpicoll")}
    return _markdown(
        [
            ["allreduce", *(format_bytes(row["bytes"]) for row in rows)],
            ["---"] + ["---:"] * len(rows),
            *(
                [
                    f"{name}, µs",
                    *(f"{time:.3g}" if time < 1000 else f"{time:,.0f}" for time in medians[name]),
                ]
                for name in medians
            ),
            [
                "**x gloo**",
                *(
                    f"**{theirs / own:.2f}**"
                    for theirs, own in zip(medians["gloo"], medians["mpicoll"])
                ),
            ],
        ]
    )


#: what is measured on samples that were not trained on, and how its column is called
MEASURES = {"test_accuracy": "test accuracy", "held_out_loss": "held-out loss"}


def compressed_table(pattern="compressed-training-*"):
    """A table per result: what is learned with compressed gradients, means over seeds."""
    return "".join(compressed(document) for document in _found(pattern))


def compressed(document):
    """The table of a result of `benchmarks.run.compressed_training`."""
    what = f"`{document['strategy']}`, {_trained(document)}, {document['epochs']} epochs"
    learned = _learned(document["results"], "gradients", "float32")
    return f"{_caption(document['environment'])}: {what}, {_seeds(document)}\n\n{learned}"


def _trained(document):
    return f"{document['runs'][0]['parameters']:,} parameters"


def _seeds(document):
    return f"{len({run['seed'] for run in document['runs']})} seeds"


def _learned(rows, title, beside):
    """Losses of each candidate, and the mean of their differences from another one's."""
    measure = next(name for name in MEASURES if name in rows[0])
    header = [title, "bytes sent per step"]
    for name in ("loss", MEASURES[measure]):
        header += [name, "spread", f"to {beside}"]
    lines = [header, ["---"] + ["---:"] * (len(header) - 1)]
    for row in rows:
        cells = [row["name"], f"{row['bytes_sent_per_step']:,}"]
        for name in ("loss", measure):
            spread = row[f"{name}_spread"]
            difference = round(row[f"{name}_difference"], 4) + 0.0  # no negative zero
            cells += [f"{row[name]:.4f}", f"{spread:.4f}", f"{difference:+.4f}"]
        lines.append(cells)
    return _markdown(lines)


def local_steps_table():
    """A table per result: local steps beside synchronous ones."""
    return "".join(local_steps(document) for document in _found("local-steps-*"))


def local_steps(document):
    """The table of a result of `benchmarks.run.local_steps`."""
    rows = document["results"]
    facts = document["environment"] | {"link": document["link"]}
    round_of = f"{document['round']} inner steps"
    if document["what"] == "learned":
        after = f"{document['epochs']} epochs, the first {document['warmup']} synchronous"
        what = f"{_trained(document)}, {round_of}, {after}, {_seeds(document)}"
        learned = _learned(rows, "", "synchronous")
        return f"{_caption(facts)}: {what}\n\n{learned}"
    lines = [("", "step, ms", "samples/s", "of computing alone", "bytes sent per step", "hidden")]
    lines.append(["---"] + ["---:"] * 5)
    for row in rows:
        hidden = "-" if row["hidden"] is None else f"{row['hidden']:.0%}"
        step = f"{row['step_s'] * 1e3:.0f}"
        alone = f"{row['of_computing_alone']:.0%}"
        sent = f"{row['bytes_sent_per_step']:,}"
        lines.append((row["name"], step, f"{row['samples_per_s']:.0f}", alone, sent, hidden))
    each = f"{document['batch_per_rank']} samples per rank"
    what = f"{rows[0]['parameters']:,} parameters, {each}, {round_of}"
    return f"{_caption(facts)}: {what}\n\n{_markdown(lines)}"


#: what the seconds of the others are compared with
EXACT = ("mpicoll, exact", "DDP, gloo")


def time_to_loss_table():
    """A table per result: seconds until a loss is reached."""
    return "".join(time_to_loss(document) for document in _found("time-to-loss-*"))


def time_to_loss(document):
    """The table of a result of `benchmarks.run.time_to_loss`."""
    facts = document["environment"]
    rows = document["results"]
    seconds = {row["name"]: row["seconds_to_loss"] for row in rows}
    header = ["", "step, ms", "steps to loss", "seconds to loss"]
    header += [f"times as fast as {name}" for name in EXACT]
    header.append("loss at the end")
    lines = [header, ["---"] + ["---:"] * (len(header) - 1)]
    for row in rows:
        own = row["seconds_to_loss"]
        cells = [row["name"], f"{row['step_s'] * 1e3:.0f}"]
        cells += ["-", "not reached"] if own is None else [row["steps_to_loss"], f"{own:.1f}"]
        for name in EXACT:
            known = own is not None and seconds[name] is not None
            cells.append(f"{seconds[name] / own:.2f}" if known else "-")
        lines.append([*cells, f"{row['loss']:.3f}"])
    samples = facts["rows"] * facts["size"]
    what = (
        f"{facts['parameters']:,} parameters, {samples} pieces of {facts['length']} characters a"
        f" step, {facts['steps']} steps, loss {facts['target_loss']:g} (mean of {facts['window']}"
        f" steps); of a step, computing alone takes {facts['computing_s'] * 1e3:.0f} ms and the"
        f" links {facts['links_s'] * 1e3:.0f} for exact sums"
    )
    return f"{_caption(facts)}, PyTorch {facts['torch']}: {what}\n\n" + _markdown(lines)


def _markdown(lines):
    return table_of(lines) + "\n"


def draw():
    """The step of zero1 with each overlap, from the traces that the benchmark left."""
    facts = _found("training-mpich-4")[0]["environment"]
    traces = [
        (f"zero1, overlap {word}", RESULTS / f"timeline-{word}.json")
        for word in ("none", "gradients", "all")
    ]
    picture(PICTURES / "timeline.svg", traces, facts["traced_step"])
