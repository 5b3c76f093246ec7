"""Persistent plans beside MPI's own, inside a node.

    mpiexec -n 2 python -m benchmarks.run.plans --json FILE

Each collective's default plan and MPI's own, in turn: waited for as soon as it was started, and
with computation before the start and before the wait, up to 20 us each, drawn at random on each
rank. Each result is compared with that of MPI's own first. `ratio`: MPI's median by ours.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.measure import alternate, measured_on, statistics
from mpicoll.measure.timing import repeats_for

#: of doubles on a rank
COUNTS = (1, 128, 1024, 8192, 65536)
#: starts that one time is the mean of
STARTS = 20
#: seconds of computation before a start and before a wait, at most
MOST = 20e-6
FORMS = ("at once", "beside computation")


def plans_of(count: int, size: int) -> Iterator[tuple[str, list[np.ndarray[Any, Any]]]]:
    """(method, its arrays), the result last."""
    one, whole = np.arange(1.0, count + 1), np.arange(1.0, count * size + 1)
    yield "Allreduce", [one, np.zeros(count)]
    yield "Reduce", [one, np.zeros(count)]
    yield "Bcast", [one.copy()]
    yield "Allgather", [one, np.zeros(count * size)]
    yield "Alltoall", [whole, np.zeros(count * size)]
    yield "Reduce_scatter_block", [whole, np.zeros(count)]
    yield "Scan", [one, np.zeros(count)]


def spin(seconds: float) -> None:
    """Compute."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def at_once(plan: Any) -> None:
    """Start and wait."""
    plan.Start()
    plan.Wait()


def beside_computation(source: random.Random, plan: Any) -> None:
    """The same, later on some ranks than on others."""
    spin(source.uniform(0, MOST))
    plan.Start()
    spin(source.uniform(0, MOST))
    plan.Wait()


def row_of(comm: Any, method: str, arrays: list[Any], seconds: float) -> dict[str, Any]:
    """One collective and size."""
    own = MPI.Intracomm(comm)
    plans = {"ours": getattr(comm, f"{method}_init")(*arrays)}
    plans["mpi"] = getattr(own, f"{method}_init")(*arrays)
    results = {}
    for name, plan in plans.items():
        at_once(plan)
        results[name] = arrays[-1].copy()
    assert np.array_equal(results["ours"], results["mpi"]), method
    served = getattr(plans["ours"], "name", "native")
    source = random.Random(comm.Get_rank())
    row = {"method": method, "bytes": arrays[0].nbytes, "served": served}
    for form in FORMS:
        call = at_once if form == FORMS[0] else partial(beside_computation, source)
        calls = {name: partial(call, plan) for name, plan in plans.items()}
        repeats = repeats_for(comm, calls, seconds, calls=STARTS)
        times = alternate(comm, calls, repeats, calls=STARTS)
        ratio = float(np.median(times["mpi"]) / np.median(times["ours"]))
        row[form] = {
            "ratio": round(ratio, 3),
            "repeats": repeats,
            **{name: statistics(each) for name, each in times.items()},
        }
    for plan in plans.values():
        plan.Free()
    return row


def main() -> None:
    """Measure all collectives and sizes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--counts", type=int, nargs="+", default=COUNTS, help="of doubles on a rank")
    add("--seconds", type=float, default=1.0, help="for each collective, size and form")
    add("--json", type=Path, help="write the result there")
    options = parser.parse_args()
    comm = mpicoll.Communicator(MPI.COMM_WORLD)
    rows = []
    for count in options.counts:
        for method, arrays in plans_of(count, comm.Get_size()):
            row = row_of(comm, method, arrays, options.seconds)
            rows.append(row)
            if comm.Get_rank() == 0:
                ratios = ", ".join(f"{form} x {row[form]['ratio']:.2f}" for form in FORMS)
                print(f"{8 * count:>8} bytes {method:<22} {ratios}   {row['served']}", flush=True)
    document = {"schema": 1, "environment": measured_on(comm), "rows": rows}
    if options.json and comm.Get_rank() == 0:
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
