"""Step time of every strategy with and without overlap, over a network, in one run.

    mpicoll cluster --hosts 4 --rate 200mbit --mpi mpich -- \\
        python -m benchmarks.run.training --link 200mbit --json F

The batch is chosen so that computing takes 1.5 times as long as communicating: one forward (a third
of the computation) then takes about as long as one allgather (half of the communication), so that
everything can be hidden, but only if all is overlapped: the step times of `none`, `gradients` and
`all` are 5 : 4 : 3 at best. Candidates alternate; a block of steps of each at a time, the first of
which is not counted. Times are the maximum over ranks of each step, then the median.

`limit` is the shortest step that these links and cores allow: the time the links need for the
bytes, or, if longer, the computing without overlap and the seconds in which plain TCP occupies the
cores to move as many bytes, shared among them. It supposes that computing occupies all cores, and
that all hosts are on one machine. What comes after the last gradient, its reduction and the
allgather of what the first layer needs, has nothing to hide behind and is not in it.
"""

import argparse
import json
import os
from statistics import median

import numpy as np
from mpi4py import MPI

from mpicoll import Communicator, install_abort_hook
from mpicoll.cluster import goodput
from mpicoll.measure import measured_on, write_timeline
from mpicoll.support.node import share_cores
from mpicoll.support.units import parse_bytes, parse_rate
from mpicoll.train import Adam, Trainer, mlp

from .cores import seconds_to_move

CANDIDATES = [
    ("allreduce", "none", "native"),
    ("allreduce", "none", "ring"),
    ("allreduce", "gradients", "ring"),
    ("zero1", "none", "ring"),
    ("zero1", "gradients", "ring"),
    ("zero1", "all", "ring"),
    ("zero2", "none", "ring"),
    ("zero2", "gradients", "ring"),
    ("zero2", "all", "ring"),
    ("parameter_server", "none", "ring"),
]
FIELDS = ("step_s", "compute_s", "communication_s", "exposed_s")
#: computation over communication
RATIO = 1.5


def main():
    """Calibrate, measure, print, write."""
    install_abort_hook()
    options = _options()
    comm = Communicator(MPI.COMM_WORLD)
    share_cores(comm)
    runs = [Run(comm, *candidate, options) for candidate in CANDIDATES]
    rows = _calibrated(comm, runs[1], options)
    for _ in range(options.rounds):
        for run in runs:
            run.steps(rows, options.steps)
    results = [run.result() for run in runs]
    limits = _limits(comm, results, options)
    if comm.Get_rank() == 0:
        _print(results)
        print(
            "limit:",
            ", ".join(f"{name[:-2]} {seconds * 1e3:.0f} ms" for name, seconds in limits.items()),
        )
    if options.trace:
        for run in runs:
            if run.strategy == "zero1":
                write_timeline(f"{options.trace}-{run.overlap}.json", run.traced(rows), comm)
    facts = measured_on(comm) | {"link": options.link, "rows": rows, "widths": options.widths}
    facts |= {"bucket_bytes": runs[-2].trainer.options.bucket_bytes, "limit": limits}
    facts |= {"traced_step": len(runs[-1].trainer.strategy.meter.steps) + 1}
    if comm.Get_rank() == 0 and options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"schema": 1, "environment": facts, "results": results}, file, indent=1)


def _options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--widths", type=lambda text: [int(width) for width in text.split(",")], default=[512] * 9)
    add("--bucket-bytes", type=parse_bytes, help="default: the trainer's")
    add("--rounds", type=int, default=3)
    add("--steps", type=int, default=4, help="of each candidate in a round, the first not counted")
    add("--link", required=True, help="the cluster's --rate")
    add("--trace", metavar="PREFIX", help="timelines of zero1: PREFIX-none.json and so on")
    add("--json")
    return parser.parse_args()


class Run:
    """One candidate: a trainer, and what its steps took on the slowest rank."""

    def __init__(self, comm, strategy, overlap, algorithm, options):
        self.comm = comm
        self.overlap = overlap
        self.algorithm = algorithm
        self.strategy = strategy
        self.trainer = Trainer(
            mlp(options.widths, seed=1),
            Adam(),
            comm,
            strategy,
            overlap=overlap,
            algorithm=algorithm,
            bucket_bytes=options.bucket_bytes,
        )
        self.found = []
        self.losses = []
        self.inputs = options.widths[0]
        self.outputs = options.widths[-1]

    def steps(self, rows, count):
        """Make steps on `rows` samples per rank; all but the first are counted."""
        random = np.random.default_rng(self.comm.Get_rank())
        x = random.standard_normal((rows, self.inputs), "float32")
        y = random.integers(0, self.outputs, rows)
        strategy = self.trainer.strategy
        meter = self.trainer.strategy.meter
        first = len(meter.steps)
        self.comm.Barrier()
        for _ in range(count):
            with meter.step():
                strategy.step([(x, y)], rows * self.comm.Get_size())
        strategy.reduce_losses()
        for step in meter.steps[first + 1 :]:
            own = np.array([step[name] for name in FIELDS])
            self.comm.Allreduce(MPI.IN_PLACE, own, op=MPI.MAX, algorithm="native")
            self.found.append(dict(zip(FIELDS, own.tolist())))

    def typical(self, name):
        """Median over the counted steps of the slowest rank's seconds."""
        return median(step[name] for step in self.found)

    def result(self):
        """A row of the table."""
        report = self.trainer.report()
        hidden = self.typical("communication_s") - self.typical("exposed_s")
        least = min(self.typical("compute_s"), self.typical("communication_s"))
        return {
            "strategy": self.strategy,
            "overlap": self.overlap,
            "algorithm": self.algorithm,
            "steps": len(self.found),
            **{name: self.typical(name) for name in FIELDS},
            "hidden": hidden / least,
            **{
                name: report[name]
                for name in (
                    "bytes_sent_per_step",
                    "parameter_bytes",
                    "gradient_bytes",
                    "optimizer_bytes",
                )
            },
        }

    def traced(self, rows):
        """The timeline of some more steps."""
        self.trainer.strategy.meter.tracing = True
        self.steps(rows, 3)
        return self.trainer.strategy.meter.events


def _calibrated(comm, run, options):
    """Samples per rank with which computation takes RATIO times as long as the links need for the
    communication.
    """
    sent = run.trainer.strategy.predicted_bytes()
    communication = sent / goodput(parse_rate(options.link))
    rows = 64
    for _ in range(3):
        run.found.clear()
        run.steps(rows, options.steps)
        # undisturbed by what else the machine does
        computing = min(step["compute_s"] for step in run.found)
        rows = comm.bcast(max(8, round(RATIO * communication * rows / computing)))
    run.found.clear()
    return rows


def _limits(comm, results, options):
    """Seconds of the shortest step, and of what it is made: computing alone, cores to move the
    bytes, links to carry them.
    """
    ring = next(
        row
        for row in results
        if (row["strategy"], row["overlap"], row["algorithm"]) == ("allreduce", "none", "ring")
    )
    sent = ring["bytes_sent_per_step"]
    moving = seconds_to_move(comm, sent) / os.cpu_count()
    links = sent / goodput(parse_rate(options.link))
    return {
        "limit_s": max(ring["compute_s"] + moving, links),
        "compute_s": ring["compute_s"],
        "moving_s": moving,
        "links_s": links,
    }


def _print(results):
    for row in results:
        times = " ".join(f"{name[:-2]} {row[name] * 1e3:7.1f} ms" for name in FIELDS)
        who = f"{row['strategy']:>17} {row['overlap']:>10} {row['algorithm']:>7}"
        print(who, times, f"hidden {row['hidden']:.2f}", flush=True)


if __name__ == "__main__":
    main()
