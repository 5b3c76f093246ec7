"""Table of what an allreduce adds to a computation beside it (benchmarks/results/beside-*)."""

from mpicoll.support.units import format_bytes

from .markdown import table_of
from .results import results_of


def table():
    """A row per place and kind of computation.

    In each cell the added milliseconds: ours in bold, MPI's own, and a blocking call after it.
    """
    documents = results_of("beside-*")
    text = ""
    for library in dict.fromkeys(document["environment"]["mpi"] for document in documents):
        some = [one for one in documents if one["environment"]["mpi"] == library]
        facts = some[0]["environment"]
        sizes = sorted({row["bytes"] for one in some for row in one["results"]})
        lines = [["hosts", "beside", *map(format_bytes, sizes)]]
        lines += [["---"] * 2 + ["---:"] * len(sizes)]
        lines += [row for document in some for row in _rows(document, sizes)]
        text += (
            f"{library}, mpi4py {facts['mpi4py']}, {facts['machine']},"
            f" {facts['date'].partition('T')[0]}, ring, float32: milliseconds\n\n"
            + table_of(lines)
            + "\n"
        )
    return text


def _rows(document, sizes):
    facts, results = document["environment"], document["results"]
    for work in dict.fromkeys(row["work"] for row in results):
        wall = {(r["algorithm"], r["bytes"]): r["wall_ms"] for r in results if r["work"] == work}
        cells = []
        for size in sizes:
            alone = wall["alone", size]
            ours, native, after = (
                f"{wall[word, size] - alone:.3g}" for word in ("ours", "native", "after")
            )
            cells.append(f"**{ours}** {native} {after}")
        yield [f"{facts['size']}, {facts['link']}", work, *cells]
