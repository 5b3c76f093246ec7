"""The tables and the picture of compressed calls: times beside exact ones, and errors."""

import json
from pathlib import Path

from mpicoll.support.units import format_bytes

from .compared import plotting, save
from .markdown import table_of

RESULTS = Path(__file__).resolve().parents[1] / "results"


def table():
    """A table per result."""
    return "\n".join(map(_table, _documents()))


def draw():
    """The gain over ours, exact, over size, and the error beside it."""
    figure, (gains, errors) = plotting().subplots(1, 2, figsize=(10, 4), layout="constrained")
    for document in _documents():
        facts = document["environment"]
        exact = {}
        coded = {}
        for row in document["results"]:
            name = row.get("compression")
            group = coded.setdefault(name, {}) if name else exact
            if not row["algorithm"].startswith("native"):
                group.setdefault(row["bytes"], []).append(row)
        for name, by_size in coded.items():
            sizes = sorted(by_size)
            best = [min(by_size[size], key=_time) for size in sizes]
            gain = [min(map(_time, exact[size])) / _time(row) for size, row in zip(sizes, best)]
            label = f"{name}, {facts['nodes']} hosts, {facts['mpi'].rpartition(' ')[0]}"
            (line,) = gains.plot(sizes, gain, marker=".", label=label)
            error = [row["rms_error"] for row in best]
            errors.plot(sizes, error, marker=".", color=line.get_color())
    gains.set(ylabel="times as fast as ours, exact", ylim=0)
    errors.set(ylabel="error, RMS, of the RMS of the sum", yscale="log")
    for ax in (gains, errors):
        ax.set(xscale="log", xlabel="m, bytes of the vector")
        ax.set_xticks(sizes, [format_bytes(nbytes) for nbytes in sizes])
        ax.set_xticks([], minor=True)
    figure.legend(fontsize="small", loc="outside right center")
    save(figure, "compression")


def _documents():
    paths = sorted(RESULTS.glob("compressed-*-[0-9][0-9].json"))
    if not paths:
        raise SystemExit("there is no compressed-*.json: run python -m benchmarks.run.suite compressed")
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def _time(row):
    return row["median_us"]


def _table(document):
    facts = document["environment"]
    rows = document["results"]
    sizes = sorted({row["bytes"] for row in rows})
    by_size = {size: [row for row in rows if row["bytes"] == size] for size in sizes}
    wrong = sum(row["wrong"] for row in rows)
    caption = (
        f"allreduce, {facts['mpi']}, float32, {facts['nodes']} hosts, links of {facts['link']},"
        f" virtual cluster on {facts['machine']}, {facts['date'].partition('T')[0]}, wrong elements: {wrong}"
    )
    lines = [["", *map(format_bytes, sizes)], ["---"] + ["---:"] * len(sizes)]
    natives = [_fastest(by_size[size], lambda row: row["algorithm"] == "native") for size in sizes]
    forced = [_fastest(by_size[size], _is_forced) for size in sizes]
    exact = [_fastest(by_size[size], _is_ours) for size in sizes]
    lines.append(["MPI's own, ms", *map(_ms, natives)])
    lines.append(["MPI's best algorithm, forced, ms", *map(_ms, forced)])
    lines.append(["ours, exact, ms", *map(_ms, exact)])
    for name in dict.fromkeys(row["compression"] for row in rows if "compression" in row):
        coded = [
            _fastest(by_size[size], lambda row: row.get("compression") == name) for size in sizes
        ]
        lines.append([f"**{name}, ms**", *map(_ms, coded)])
        for others, what in ((exact, "ours, exact"), (natives, "MPI's own"), (forced, "its best")):
            lines.append([f"x {what}", *map(_ratio, others, coded)])
        lines.append(["error, RMS", *(f"{row['rms_error']:.4f}" for row in coded)])
        lines.append(["largest error, of the bound", *(f"{row['of_bound']:.2f}" for row in coded)])
    return f"{caption}\n\n{table_of(lines)}"


def _fastest(rows, is_meant):
    """None where none was measured."""
    return min(filter(is_meant, rows), key=lambda row: row["median_us"], default=None)


def _is_forced(row):
    return row["algorithm"].startswith("native ") and row["algorithm"] != "native again"


def _is_ours(row):
    return not row["algorithm"].startswith("native") and "compression" not in row


def _ms(row):
    if row is None:
        return "-"
    time = row["median_us"] / 1e3
    return f"{time:.3g}" if time < 1000 else f"{time:,.0f}"


def _ratio(other, row):
    return "-" if other is None else f"**{other['median_us'] / row['median_us']:.2f}**"
