"""Step times of ways to train one PyTorch transformer: shared by the comparisons with PyTorch.

The batch is chosen so that computing takes RATIO times as long as communicating. Candidates
alternate; a block of steps of each at a time, the first of which is not counted. Times are the
maximum over ranks of each step, then the median. All must end with the same loss.
"""

import argparse
import json
from statistics import median
from time import perf_counter

import numpy as np
import torch
from mpi4py import MPI

from mpicoll.cluster import goodput
from mpicoll.errors import MpicollError
from mpicoll.measure import measured_on
from mpicoll.support.units import parse_bytes, parse_rate
from mpicoll.train.torch import wrap

from .sizes import add_size
from .transformer import Text, Transformer, help_pages, loss_of

#: computation over communication, as in benchmarks.run.training
RATIO = 1.5
#: how far the losses of two candidates may be apart in the end: they add in other orders
CLOSE = 1e-2


def parser(description):
    """The options of such a comparison."""
    made = argparse.ArgumentParser(description=description)
    add = made.add_argument
    add_size(made, width=256, layers=4, length=32)
    add("--bucket-bytes", type=parse_bytes, default=1 << 20)
    add("--rounds", type=int, default=5)
    add("--steps", type=int, default=4, help="of each candidate in a round, the first not counted")
    add(
        "--link", required=True, help="the cluster's --rate; inside a node, what is to count as one"
    )
    add("--json")
    return made


def race(comm, options, candidates):
    """(environment, rows of the table) of candidates: {name: function that makes the model and its
    optimizer}.
    """
    pieces = _calibrated(comm, options)
    runs = [Run(comm, name, make(), options) for name, make in candidates.items()]
    for run in runs:  # after its first step DDP makes its buckets anew
        run.steps(pieces, 2)
        run.found.clear()
    for _ in range(options.rounds):
        for run in runs:
            run.steps(pieces, options.steps)
    rows = [run.row() for run in runs]
    _check(rows)
    facts = measured_on(comm) | {
        "link": options.link,
        "rows": pieces,
        "length": options.length,
        "width": options.width,
        "layers": options.layers,
        "bucket_bytes": options.bucket_bytes,
        "torch": torch.__version__,
    }
    return facts, rows


def report(comm, options, facts, rows, base=None, **more):
    """Print the rows, each beside the one that it is compared with: that of the name `base(name)`,
    or the first; write all.
    """
    if comm.Get_rank():
        return
    took = {row["name"]: row["step_s"] for row in rows}
    for row in rows:
        ratio = row["step_s"] / took[base(row["name"]) if base else rows[0]["name"]]
        print(
            f"{row['name']:>45} {row['step_s'] * 1e3:8.1f} ms (least {row['least_s'] * 1e3:.1f})"
            f" x{ratio:.2f}  loss {row['loss']:.5f}",
            flush=True,
        )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"schema": 1, "environment": facts, "results": rows, **more}, file, indent=1)


def transformer(options):
    """The same on all ranks and for all candidates."""
    torch.manual_seed(0)
    return Transformer(len(set(help_pages())), options.length, options.width, options.layers)


def adamw(parameters):
    """The optimizer of all candidates."""
    return torch.optim.AdamW(parameters, lr=1e-3)


def ours(comm, strategy, options):
    """(model, optimizer) by mpicoll's own wrapper."""
    made = wrap(
        transformer(options),
        comm,
        strategy,
        optimizer=torch.optim.AdamW,
        bucket_bytes=options.bucket_bytes,
        lr=1e-3,
    )
    return made, made.optimizer


class Run:
    """One candidate, and what its steps took on the slowest rank."""

    def __init__(self, comm, name, made, options):
        self.comm = comm
        self.name = name
        self.model, self.optimizer = made
        self.text = Text(help_pages(), comm.Get_rank(), options.length)
        self.found = []
        self.loss = None

    def step(self, rows):
        """One update; the loss stays a tensor."""
        self.optimizer.zero_grad()
        loss = loss_of(self.model, *self.text.batch(rows))
        loss.backward()
        self.optimizer.step()
        return loss

    def steps(self, rows, count):
        """Make steps on `rows` pieces of text per rank; all but the first are counted."""
        self.comm.Barrier()
        times = [perf_counter()]
        for _ in range(count):
            self.loss = self.step(rows)
            times.append(perf_counter())
        if hasattr(self.model, "settle"):
            self.model.settle()
        own = np.diff(times)[1:]
        self.comm.Allreduce(MPI.IN_PLACE, own, op=MPI.MAX, algorithm="native")
        self.found += own.tolist()

    def row(self):
        """A row of the table."""
        loss = self.comm.allreduce(self.loss.item()) / self.comm.Get_size()
        return {
            "name": self.name,
            "step_s": median(self.found),
            "least_s": min(self.found),
            "steps": len(self.found),
            "loss": loss,
        }


def _calibrated(comm, options):
    """Pieces of text per rank with which computation takes RATIO times as long as communication."""
    run = Run(comm, "", ours(comm, "allreduce", options), options)
    rows = 8
    size = comm.Get_size()
    elements = sum(one.numel() for one in run.model.parameters())
    communication = 2 * (size - 1) / size * 4 * elements / goodput(parse_rate(options.link))
    for _ in range(3):
        first = len(run.model.meter.steps)
        for _ in range(options.steps):
            with run.model.step():
                run.step(rows)
        meter = run.model.meter
        computing = comm.allreduce(
            meter.typical("step_s", first + 1) - meter.typical("exposed_s", first + 1), op=MPI.MAX
        )
        rows = comm.bcast(max(1, round(RATIO * communication * rows / computing)))
    return rows


def _check(rows):
    """Raise MpicollError where a candidate has learned something else than the first."""
    for row in rows:
        if not abs(row["loss"] / rows[0]["loss"] - 1) < CLOSE:
            raise MpicollError(
                f"{row['name']}: expected the loss {rows[0]['loss']} of {rows[0]['name']}, got"
                f" {row['loss']}"
            )
