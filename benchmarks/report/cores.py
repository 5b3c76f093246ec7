"""Table of what was measured where each rank has a core (benchmarks/results/cores16-*)."""

from mpicoll.support.units import format_bytes

from .compared import rounded
from .markdown import table_of
from .results import results_of


def table():
    """A row per collective and number of ranks: how many times as fast as MPI's own call `auto` is,
    in bold, and `direct` on arrays of `comm.empty`.
    """
    documents = results_of("cores16-*")
    text = ""
    for library in dict.fromkeys(document["environment"]["mpi"] for document in documents):
        some = [one for one in documents if one["environment"]["mpi"] == library]
        facts = some[0]["environment"]
        sizes = sorted({rounded(row["bytes"]) for one in some for row in one["results"]})
        lines = [["collective", "ranks", *map(format_bytes, sizes)]]
        lines += [["---", "---:"] + ["---:"] * len(sizes)]
        lines += [_row(document, sizes) for document in some]
        wrong = sum(row["wrong"] for one in some for row in one["results"])
        text += (
            f"{library}, mpi4py {facts['mpi4py']}, {facts['machine']},"
            f" {facts['date'].partition('T')[0]}, float32, wrong elements: {wrong}\n\n"
            + table_of(lines)
            + "\n"
        )
    return text


def _row(document, sizes):
    median = {
        (row["algorithm"], rounded(row["bytes"])): row["median_us"] for row in document["results"]
    }

    def cell(size):
        native = median.get(("native", size))
        if native is None:
            return "-"
        direct = median.get(("shared arrays, direct", size))
        told = f"**{native / median['auto', size]:.2f}**"
        return told if direct is None else f"{told} {native / direct:.2f}"

    collective = document["results"][0]["collective"]
    return [collective, str(document["environment"]["size"]), *map(cell, sizes)]
