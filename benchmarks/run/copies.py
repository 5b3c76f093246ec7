"""What copies for lost ranks cost.

    python -m benchmarks.run.copies --hosts 2 3 4 --json FILE

It needs root.

The same training with and without `--elastic` in turn, one rank per host of the virtual cluster:
seconds of a step, and what the report says of the copies; medians of `--repeat` runs. wire_s: what
a copy takes on a link that does nothing else.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from mpicoll.cluster import Cluster
from mpicoll.measure.provenance import command

from .kills import environment

ROOT = Path(__file__).resolve().parents[2]
TRAINING = ["train", "--data", "synthetic:12288,512,8", "--hidden", "512,512", "--steps", "30"]
KEPT = (
    "step_s",
    "compute_s",
    "exposed_s",
    "hidden",
    "bytes_sent_per_step",
    "copy_bytes_per_step",
    "copy_s",
    "copy_exposed_s",
    "copy_bytes_held",
)


def measured(cluster: Cluster, strategy: str, batch: int, elastic: bool) -> dict[str, Any]:
    """The report of one training."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "result.json")
        words = [
            "python",
            "-m",
            "mpicoll",
            *TRAINING,
            "--strategy",
            strategy,
            "--batch-size",
            str(batch),
            "--json",
            str(path),
        ]
        cluster.run(
            [*words, *(["--elastic"] if elastic else [])],
            "openmpi",
            survive=elastic,
            cwd=ROOT,
            env=dict(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        report = json.loads(path.read_text())["report"]
    return {field: report[field] for field in KEPT if field in report}


def rows_of(cluster: Cluster, strategy: str, batch: int, repeat: int) -> Iterator[dict[str, Any]]:
    """Two: without `--elastic`, and with it."""
    runs = [
        [measured(cluster, strategy, batch, elastic) for elastic in (False, True)]
        for _ in range(repeat)
    ]
    for elastic, reports in zip((False, True), zip(*runs)):
        row: dict[str, Any] = {
            "hosts": len(cluster.hosts),
            "strategy": strategy,
            "batch_size": batch,
            "elastic": elastic,
        }
        row |= {field: median(report[field] or 0 for report in reports) for field in reports[0]}
        if elastic:
            row["wire_s"] = row["copy_bytes_per_step"] / cluster.goodput
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--hosts", type=int, nargs="+", default=[2, 3, 4], help="default 2 3 4")
    add("--rate", default="500mbit", help="of the links (default 500mbit)")
    add("--strategies", nargs="+", default=["allreduce", "zero1", "zero2"])
    add(
        "--batch-sizes",
        type=int,
        nargs="+",
        default=[3072, 6144],
        help="how much there is to compute (default 3072 6144)",
    )
    add("--repeat", type=int, default=3, help="runs of each (default 3)")
    add("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    rows = []
    for hosts in options.hosts:
        with Cluster(hosts, options.rate) as cluster:
            for strategy, batch in product(options.strategies, options.batch_sizes):
                for row in rows_of(cluster, strategy, batch, options.repeat):
                    rows.append(row)
                    print(json.dumps(row), flush=True)
    if options.json:
        facts = {
            **environment(["openmpi"]),
            "rate": options.rate,
            "command": command(),
            "training": TRAINING,
        }
        options.json.write_text(
            json.dumps({"schema": 1, "environment": facts, "results": rows}, indent=1),
            encoding="utf-8",
        )


if __name__ == "__main__":
    sys.exit(main())
