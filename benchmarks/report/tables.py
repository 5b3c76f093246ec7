"""Write what the README and the pages of docs/ show.

    python -m benchmarks.report.tables [--check]

What stands between `<!-- results:NAME -->` and `<!-- end -->` becomes the tables of
benchmarks/results/NAME-*.json; after `<!-- output:COMMAND -->` it becomes what the command prints,
and after `<!-- file:PATH -->` the file; after `<!-- program:PATH -->` a program and its transcript,
which a test of its own runs.
"""

import argparse
import json
import re
import os
import subprocess
import sys
from pathlib import Path

from mpicoll.support.units import format_bytes

from . import (
    beside,
    chosen,
    compared,
    compressed,
    cores,
    crossing,
    devices,
    exchanged,
    front,
    gallery,
    planted,
    predicted,
    published,
    quirks,
    supported,
    trained,
    trusted,
)
from .markdown import table_of

ROOT = Path(__file__).resolve().parents[2]
#: markers with a report of their own
REPORTS = {
    "hosts": lambda: compared.table("hosts-*"),
    "others": lambda: compared.table("others-*"),
    "moves": lambda: compared.brief("moves-*"),
    "between": lambda: compared.brief("between-*"),
    "scans": lambda: compared.brief("scans-*-scan-*", "scans-*-exscan-*"),
    "barriers": compared.barriers,
    "halo": exchanged.halos,
    "transposes": exchanged.transposes,
    "plans": exchanged.plans,
    "front": front.cells,
    "supported": supported.table,
    "gallery": gallery.page,
    "planted": planted.table,
    "predictions": predicted.table,
    "placed": lambda: compared.table("placed-*"),
    "chosen": chosen.table,
    "law": compared.law_table,
    "beside": beside.table,
    "gpu": devices.table,
    "cores": cores.table,
    "crossing-pairs": crossing.pairs,
    "crossing-every": crossing.every,
    "training": trained.table,
    "compressed": compressed.table,
    "compressed-training": trained.compressed_table,
    "compressed-text": lambda: trained.compressed_table("compressed-text-*"),
    "time-to-loss": trained.time_to_loss_table,
    "local-steps": trained.local_steps_table,
    "torch": trained.torch_table,
    "backend": trained.backend_table,
    "bits": trusted.bits,
    "checks": trusted.cost,
    "survive": trusted.survival,
    "survive-fits": trusted.several_fits,
    "cut": trusted.cut_off,
    "copies": trusted.copies,
    "bugs": trusted.bugs,
    "trust": trusted.proof,
    "elastic-off": trusted.elastic_off,
    "msccl": published.table,
    "quirks": quirks.table,
}
MARKED = re.compile(r"(<!-- (results|output|file|program):(.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit status 1 where a page differs"
    )
    parser.add_argument("--readme", type=Path, help="this page alone")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args(arguments)
    for page in (
        [options.readme]
        if options.readme
        else [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    ):
        _write(page, options.results, options.check)
    if not options.check and not options.readme:
        compared.pictures()
        compressed.draw()
        front.draw()
        gallery.draw()
        trained.draw()


def _write(page, results, check):
    """Write a page, or end where it is not as it would be written."""
    old = page.read_text(encoding="utf-8")
    write = {
        "results": lambda name: tables(results, name),
        "output": _output,
        "file": _file,
        "program": _program,
    }
    new = MARKED.sub(lambda found: found[1] + write[found[2]](found[3]) + found[4], old)
    if check and new != old:
        sys.exit(
            f"{page.name} differs from {results.name}/: run python -m benchmarks.report.tables"
        )
    if new != old:
        page.write_text(new, encoding="utf-8")


def _output(command):
    """What a command of ours prints: a Markdown table as it is, anything else as text."""
    words = [sys.executable, "-m", *command.split()]
    wide = {**os.environ, "COLUMNS": "100"}
    printed = subprocess.run(
        words, capture_output=True, text=True, check=True, cwd=ROOT, env=wide
    ).stdout.rstrip()
    return printed + "\n" if printed.startswith("|") else f"```text\n{printed}\n```\n"


def _file(path):
    return f"```python\n{(ROOT / path).read_text(encoding='utf-8').rstrip()}\n```\n"


def _program(path):
    """`py`, not `python`: blocks of that name are run as parts of one program of the page."""
    program = (ROOT / path).read_text(encoding="utf-8").rstrip()
    transcript = (ROOT / path).with_suffix(".txt").read_text(encoding="utf-8").rstrip()
    return f"```py\n{program}\n```\n\n```console\n{transcript}\n```\n"


def tables(folder, name):
    """The Markdown for one marker."""
    if name in REPORTS:
        return REPORTS[name]()
    documents = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob(f"{name}-*.json"))
    ]
    if not documents:
        sys.exit(f"there is no {folder.name}/{name}-*.json for the marker results:{name}")
    if "build" in documents[0]:
        return "".join(_overhead(document) for document in documents)
    if "least" in documents[0]["results"][0]:
        return _volume(documents)
    return "".join(_bench(document) for document in documents)


def _caption(facts, what):
    date = facts["date"].partition("T")[0]
    where = (
        f"{facts['size']} ranks on {facts['nodes']} {'node' if facts['nodes'] == 1 else 'nodes'}"
    )
    return (
        f"{facts['mpi']}, mpi4py {facts['mpi4py']}, {where}, {facts['machine']}, {date}: {what}\n\n"
    )


def _markdown(header, rows):
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return table_of(lines) + "\n"


def _microseconds(number):
    return f"{number:.1f}" if number < 100 else f"{number:,.0f}"


def _bench(document):
    """Algorithms by sizes: MPI's own median time, and how many times as fast each of ours is; the
    best is bold.
    """
    results = document["results"]
    median = {(row["algorithm"], row["bytes"]): row["median_us"] for row in results}
    sizes = sorted({size for _, size in median})
    words = [word for word in dict.fromkeys(word for word, _ in median) if word != "native"]
    least = {size: min(median[word, size] for word in words) for size in sizes}

    def cell(word, size):
        ratio = f"{median['native', size] / median[word, size]:.2f}"
        return f"**{ratio}**" if median[word, size] == least[size] else ratio

    rows = [["native, µs", *(_microseconds(median["native", size]) for size in sizes)]]
    rows += [[f"`{word}`, x native", *(cell(word, size) for size in sizes)] for word in words]
    wrong = sum(row["wrong"] for row in results)
    what = f"{results[0]['collective']}, {results[0]['dtype']}, wrong elements: {wrong}"
    return _caption(document["environment"], what) + _markdown(
        ["", *map(format_bytes, sizes)], rows
    )


def _overhead(document):
    names = ("hand_written", "plan", "blocking", "native")
    header = [
        "bytes",
        "by hand",
        "plan",
        "blocking",
        "MPI's own",
        "plan : by hand",
        "blocking : by hand",
    ]
    rows = [
        [
            format_bytes(row["bytes"]),
            *(_microseconds(row[name]["median_us"]) for name in names),
            f"{row['plan_ratio']:.2f}",
            f"{row['blocking_ratio']:.2f}",
        ]
        for row in document["results"]
    ]
    few = document["small"]
    build = document["build"]
    rest = (
        f"{few['bytes']} bytes, without options: {few['plain']['median_us']:.2f} µs from mpi4py,"
        f" {few['mpicoll']['median_us']:.2f} µs from mpicoll. One rank's {build['rounds']:,} rounds"
        f" of a ring on {build['size']:,} ranks are made in {build['milliseconds']:.1f} ms.\n\n"
    )
    return (
        _caption(document["environment"], "microseconds (median)") + _markdown(header, rows) + rest
    )


def _volume(documents):
    """What the busiest rank sent, as a multiple of the vector, at each number of ranks."""
    documents = sorted(documents, key=lambda document: document["environment"]["size"])
    sizes = [document["environment"]["size"] for document in documents]
    most = {
        (row["collective"], row["algorithm"], document["environment"]["size"]): (
            row["most"] / row["bytes"]
        )
        for document in documents
        for row in document["results"]
    }
    cases = dict.fromkeys((collective, word) for collective, word, _ in most)
    rows = [[*case, *(f"{most[(*case, size)]:.4f} m" for size in sizes)] for case in cases]
    return _markdown(
        ["collective", "algorithm", *(f"most by a rank, {size} ranks" for size in sizes)], rows
    )


if __name__ == "__main__":
    main()
