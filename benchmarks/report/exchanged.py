"""Tables of halo exchanges, of transposes and of plans (results/halo-*, transposes-*, plans-*)."""

from statistics import median

from mpicoll.support.units import format_bytes

from .markdown import table_of
from .results import results_of

FORMS = ("blocking", "persistent")
#: of one of ours where MPI's own is the default
OURS = ("direct", "packed", "combined")


def halos():
    """Markdown: a row per library, place and grid; by the bytes of a face, how the default stands."""
    documents = results_of("halo-*")
    sizes = [row["bytes_per_face"] for row in documents[0]["rows"]]
    lines = [
        ["MPI", "8 ranks on", "grid", "form", *map(format_bytes, sizes)],
        ["---"] * 4 + ["---:"] * len(sizes),
    ]
    for document in documents:
        facts = document["environment"]
        link = document["link"]
        place = "one node" if link == "none" else f"{facts['nodes']} hosts, {link}"
        grid = "periodic" if document["periodic"] else "open"
        for form in FORMS:
            cells = [_halo(row["results"], form) for row in document["rows"]]
            lines.append([facts["mpi"], place, grid, form, *cells])
    return table_of(lines)


def _halo(results, form):
    """MPI's time by the default's, in bold, and by that of the fastest of ours."""
    default = results.get(f"default {form}")
    ours = [results[f"{name} {form}"]["ratio"] for name in OURS if f"{name} {form}" in results]
    if default is None or not ours:
        return "-"
    return f"**{default['ratio']:.2f}** {max(ours):.2f}"


def transposes():
    """Markdown: a row per library; by pair of axes, how the default, `direct` and a copy stand."""
    documents = results_of("transposes-*")
    pairs = [f"{row['cut_before']} to {row['cut_after']}" for row in documents[0]["results"]]
    lines = [["MPI", "cube", *pairs, "median"], ["---"] * 2 + ["---:"] * (len(pairs) + 1)]
    for document in documents:
        rows = document["results"]
        figures = [_transpose(row["median_us"]) for row in rows]
        cells = [_cell(*each) for each in figures]
        middle = [median(each) for each in zip(*figures, strict=True)]
        lines.append(
            [
                document["environment"]["mpi"],
                f"{rows[0]['length']}^3, {rows[0]['dtype']}",
                *cells,
                _cell(*middle),
            ]
        )
    return table_of(lines)


def _transpose(times):
    return [times["MPI"] / times[name] for name in ("default", "direct", "copy")]


def _cell(default, direct, copy):
    return f"**{default:.2f}** {direct:.2f} ({copy:.2f})"


def plans():
    """Markdown: a row per library, number of ranks and collective; by the bytes of a rank."""
    documents = results_of("plans-*")
    sizes = sorted({row["bytes"] for row in documents[0]["rows"] if row["method"] == "Allreduce"})
    lines = [
        ["MPI", "ranks", "collective", *map(format_bytes, sizes)],
        ["---", "---:", "---", *["---:"] * len(sizes)],
    ]
    for document in documents:
        facts = document["environment"]
        by_method = {}
        for row in document["rows"]:
            by_method.setdefault(row["method"], []).append(row)
        for method, rows in by_method.items():
            lines.append([facts["mpi"], str(facts["size"]), method, *map(_plan, rows)])
    return table_of(lines)


def _plan(row):
    """MPI's time by ours, waited for at once in bold, and beside computation; "-": MPI serves."""
    if row["served"] == "native":
        return "-"
    return f"**{row['at once']['ratio']:.2f}** {row['beside computation']['ratio']:.2f}"
