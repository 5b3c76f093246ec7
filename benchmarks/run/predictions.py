"""How near the model that `mpicoll doctor` makes of a cluster comes to measured times.

    python -m benchmarks.run.predictions --json predictions.json

On the virtual cluster the doctor measures 4 hosts at one rate, and its model predicts allreduces
on other numbers of hosts. Of another rate it knows no more than that: its bandwidth is multiplied
by the ratio of the rates. The model saw neither those hosts together, nor a collective call.
Messages are cut into the pieces that `auto` sends on this transport.

All of that twice: as Linux is set by default, where a TCP connection that was idle begins slowly
again, which no model of ours knows; and without that.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median

from mpicoll import algorithms
from mpicoll.cluster import Cluster
from mpicoll.doctor.transports import IDLE_RESTART
from mpicoll.simulate import model_from, predict
from mpicoll.support.units import parse_rate

FITTED_HOSTS, FITTED_RATE = 4, "200mbit"
#: not fitted on
HOSTS, RATES = (2, 3, 7), ("100mbit", "200mbit", "500mbit")
ALGORITHMS = ("ring", "circulant", "halving_doubling", "recursive_doubling", "reduce_bcast")
SIZES = "64K,256K,1M,4M"
#: bytes from which predictions count: an idle virtual link may be ahead of its rate by 64 KiB,
#: see `mpicoll.cluster.lead`, which shortens what is smaller
COUNTED_FROM = 1 << 20


def main():
    """Measure and compare; status 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mpi", default="mpich,openmpi")
    parser.add_argument("--json")
    options = parser.parse_args()
    rows, models = [], []
    for mpi, restart in itertools.product(options.mpi.split(","), (1, 0)):
        sysctl = {IDLE_RESTART: restart}
        with Cluster(FITTED_HOSTS, FITTED_RATE, sysctl=sysctl) as cluster:
            document = _written_by(cluster, mpi, "doctor", "--output")
        models.append({"mpi": mpi, "idle_restart": restart, "model": document})
        model = model_from(document)
        for rate, hosts in itertools.product(RATES, HOSTS):
            with Cluster(hosts, rate, sysctl=sysctl) as cluster:
                words = ("bench", "--algorithms", ",".join(ALGORITHMS), "--sizes", SIZES)
                words += ("--min-time", "0.4")
                measured = _written_by(cluster, mpi, *words, "--json")
            case = {"mpi": mpi, "rate": rate, "hosts": hosts, "idle_restart": restart}
            rows += [{**case, **row} for row in _compared(model, case, measured["results"])]
            print(json.dumps({"idle_restart": restart, **summary(rows, restart)}), flush=True)
            if options.json:
                document = {"schema": 1, "environment": measured["environment"],
                            "models": models, "rows": rows}  # fmt: skip
                Path(options.json).write_text(json.dumps(document, indent=1))
    found = summary(rows, restart=0)
    sys.exit(1 if found["median"] > 0.15 or found["worst"] > 0.3 else 0)


def _written_by(cluster, mpi, *words):
    """The document that a command writes to the file behind its last word."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "written.json")
        command = ["python", "-m", "mpicoll", *words, str(file)]
        done = cluster.run(
            command, mpi, env=os.environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        if not file.exists():  # the doctor's status is 1 where it finds something
            sys.exit(f"{' '.join(command)}: status {done.returncode}\n{done.stdout[-2000:]}")
        return json.loads(file.read_text())


def _compared(model, case, results):
    """A row for each algorithm and size: seconds predicted and measured."""
    ratio = parse_rate(case["rate"]) / parse_rate(FITTED_RATE)
    network = replace(model, bandwidth=model.bandwidth * ratio).network(case["hosts"])
    for row in results:
        if row["algorithm"] not in ALGORITHMS:
            continue
        algorithm = algorithms.find("allreduce", row["algorithm"])
        predicted = predict(
            algorithm, case["hosts"], row["bytes"], network, segment_bytes=row["segment_bytes"]
        ).seconds
        yield {
            "algorithm": row["algorithm"], "bytes": row["bytes"],
            "segment_bytes": row["segment_bytes"],
            "predicted": predicted, "measured": row["median_us"] / 1e6,
        }  # fmt: skip


def counts(row):
    """Whether a prediction counts."""
    return row["bytes"] >= COUNTED_FROM


def error(row):
    """How far a prediction was from the measured time, as a part of this."""
    return abs(row["predicted"] / row["measured"] - 1)


def summary(rows, restart):
    """The median and the worst error of those that count, with that setting of the kernel."""
    errors = [error(row) for row in rows if counts(row) and row["idle_restart"] == restart]
    return {"rows": len(errors), "median": median(errors), "worst": max(errors)}


if __name__ == "__main__":
    main()
