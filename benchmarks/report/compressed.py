"""The tables and the picture of compressed calls: times beside exact ones, and errors."""

from mpicoll.support.units import format_bytes

from .compared import plotting, save
from .markdown import table_of
from .results import results_of


def table():
    """A table per result."""
    return "\n".join(map(_table, _documents()))


def draw():
    """The gain over ours, exact, over size, and the error beside it."""
    figure, (gains, errors) = plotting().subplots(1, 2, figsize=(10, 4), layout="constrained")
    for document in _documents():
        facts = document["environment"]
        sizes, _, _, exact, compressed = _fastest(document["results"])
        for name, coded in compressed.items():
            label = f"{name}, {facts['nodes']} hosts, {facts['mpi'].rpartition(' ')[0]}"
            (line,) = gains.plot(sizes, list(map(_gain, exact, coded)), marker=".", label=label)
            error = [row["rms_error"] for row in coded]
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
    return results_of("compressed-*-[0-9][0-9]", "compressed")


def _table(document):
    facts = document["environment"]
    sizes, natives, forced, exact, compressed = _fastest(document["results"])
    wrong = sum(row["wrong"] for row in document["results"])
    caption = (
        f"allreduce, {facts['mpi']}, float32, {facts['nodes']} hosts, links of {facts['link']},"
        f" virtual cluster on {facts['machine']}, {facts['date'].partition('T')[0]}, wrong elements: {wrong}"
    )
    lines = [["", *map(format_bytes, sizes)], ["---"] + ["---:"] * len(sizes)]
    lines.append(["MPI's own, ms", *map(_ms, natives)])
    lines.append(["MPI's best algorithm, forced, ms", *map(_ms, forced)])
    lines.append(["ours, exact, ms", *map(_ms, exact)])
    for name, coded in compressed.items():
        lines.append([f"**{name}, ms**", *map(_ms, coded)])
        for others, what in ((exact, "ours, exact"), (natives, "MPI's own"), (forced, "its best")):
            lines.append([f"x {what}", *map(_ratio, others, coded)])
        lines.append(["error, RMS", *(f"{row['rms_error']:.4f}" for row in coded)])
        lines.append(["largest error, of the bound", *(f"{row['of_bound']:.2f}" for row in coded)])
    return f"{caption}\n\n{table_of(lines)}"


def _fastest(rows):
    """Sizes, and the fastest row of each size: of MPI's own calls, of its forced algorithms, of ours,
    exact, and by name of ours, compressed. None where none was measured.
    """
    sizes = sorted({row["bytes"] for row in rows})

    def of(is_meant):
        meant = [[row for row in rows if row["bytes"] == size and is_meant(row)] for size in sizes]
        return [min(group, key=lambda row: row["median_us"], default=None) for group in meant]

    names = dict.fromkeys(row["compression"] for row in rows if "compression" in row)
    compressed = {name: of(lambda row: row.get("compression") == name) for name in names}
    native = of(lambda row: row["algorithm"] == "native")
    return sizes, native, of(_is_forced), of(_is_ours), compressed


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
    return "-" if other is None else f"**{_gain(other, row):.2f}**"


def _gain(other, row):
    return other["median_us"] / row["median_us"]
