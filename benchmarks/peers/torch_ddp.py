"""Step time of PyTorch's own data parallelism (gloo) and of ours, over a network: one model, one batch, one run.

    mpicoll cluster --hosts 4 --rate 200mbit --mpi mpich -- python -m benchmarks.peers.torch_ddp --link 200mbit --json F

Candidates: DistributedDataParallel with its default buckets and with buckets as small as ours; the faster of the two with
ZeroRedundancyOptimizer would be its ZeRO-1, so both are there as well; and mpicoll's strategies. The batch is chosen so that
computing takes RATIO times as long as communicating. Candidates alternate; a block of steps of each at a time, the first of
which is not counted. Times are the maximum over ranks of each step, then the median. All must end with the same loss.
"""

import argparse
import json
from statistics import median
from time import perf_counter

import numpy as np
import torch
from mpi4py import MPI
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from mpicoll import Communicator, install_abort_hook
from mpicoll.cluster import goodput
from mpicoll.errors import MpicollError
from mpicoll.measure import measured_on
from mpicoll.support.node import share_cores
from mpicoll.support.units import parse_bytes, parse_rate
from mpicoll.train.torch import wrap

from .gloo import Gloo
from .transformer import Text, Transformer, help_pages, loss_of

#: computation over communication, as in benchmarks.run.training
RATIO = 1.5
STRATEGIES = ("allreduce", "zero1", "zero2")
#: how far the losses of two candidates may be apart in the end: they add in other orders
CLOSE = 1e-2


def main():
    """Calibrate, measure, print, write."""
    install_abort_hook()
    options, comm = _options(), Communicator(MPI.COMM_WORLD)
    share_cores(comm)
    torch.set_num_threads(1)
    with Gloo(comm):
        rows = _calibrated(comm, options)
        runs = [Run(comm, name, make(), options) for name, make in _candidates(comm, options)]
        for _ in range(options.rounds):
            for run in runs:
                run.steps(rows, options.steps)
    results = [run.result() for run in runs]
    _check(results)
    facts = measured_on(comm) | {"link": options.link, "rows": rows, "length": options.length, "width": options.width,
                                 "layers": options.layers, "bucket_bytes": options.bucket_bytes,
                                 "torch": torch.__version__}  # fmt: skip
    results = sorted(results[:2], key=lambda row: row["step_s"]) + results[2:]  # the table compares with the first
    if comm.Get_rank() == 0:
        _print(results)
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump({"schema": 1, "environment": facts, "results": results}, file, indent=1)


def _options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--width", type=int, default=256)
    add("--layers", type=int, default=4)
    add("--length", type=int, default=32, help="characters of a piece of text (default 32)")
    add("--bucket-bytes", type=parse_bytes, default=1 << 20)
    add("--rounds", type=int, default=5)
    add("--steps", type=int, default=4, help="of each candidate in a round, the first not counted")
    add("--link", required=True, help="the cluster's --rate")
    add("--json")
    return parser.parse_args()


def _model(options):
    """The same on all ranks and for all candidates."""
    torch.manual_seed(0)
    return Transformer(len(set(help_pages())), options.length, options.width, options.layers)


def _candidates(comm, options):
    """(name, function without arguments that makes the model and its optimizer)."""
    buckets = {"": {}, ", our buckets": {"bucket_cap_mb": options.bucket_bytes / (1 << 20)}}
    for label, given in buckets.items():
        yield f"DDP{label}", lambda given=given: _ddp(options, _adamw, given)
    for label, given in buckets.items():
        yield f"DDP{label}, ZeroRedundancyOptimizer", lambda given=given: _ddp(options, _redundant, given)
    for strategy in STRATEGIES:
        yield f"mpicoll {strategy}", lambda strategy=strategy: _ours(comm, strategy, options)


def _adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3)


def _redundant(parameters):
    return ZeroRedundancyOptimizer(parameters, torch.optim.AdamW, lr=1e-3)


def _ddp(options, make, given):
    model = DistributedDataParallel(_model(options), gradient_as_bucket_view=True, **given)
    return model, make(model.parameters())


def _ours(comm, strategy, options):
    model = wrap(_model(options), comm, strategy, optimizer=torch.optim.AdamW, bucket_bytes=options.bucket_bytes, lr=1e-3)
    return model, model.optimizer


class Run:
    """One candidate, and what its steps took on the slowest rank."""

    def __init__(self, comm, name, made, options):
        self.comm, self.name, (self.model, self.optimizer) = comm, name, made
        self.text = Text(help_pages(), comm.Get_rank(), options.length)
        self.found, self.loss = [], None

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

    def result(self):
        """A row of the table."""
        loss = self.comm.allreduce(self.loss.item()) / self.comm.Get_size()
        return {"name": self.name, "step_s": median(self.found), "least_s": min(self.found), "steps": len(self.found),
                "loss": loss}  # fmt: skip


def _calibrated(comm, options):
    """Pieces of text per rank with which computation takes RATIO times as long as communication."""
    run, rows, size = Run(comm, "", _ours(comm, "allreduce", options), options), 8, comm.Get_size()
    elements = sum(one.numel() for one in run.model.parameters())
    communication = 2 * (size - 1) / size * 4 * elements / goodput(parse_rate(options.link))
    for _ in range(3):
        first = len(run.model.meter.steps)
        for _ in range(options.steps):
            with run.model.step():
                run.step(rows)
        meter = run.model.meter
        computing = comm.allreduce(meter.typical("step_s", first + 1) - meter.typical("exposed_s", first + 1), op=MPI.MAX)
        rows = comm.bcast(max(1, round(RATIO * communication * rows / computing)))
    return rows


def _check(results):
    """Raise MpicollError where a candidate has learned something else than the first."""
    for row in results:
        if not abs(row["loss"] / results[0]["loss"] - 1) < CLOSE:
            raise MpicollError(f"{row['name']}: expected the loss {results[0]['loss']} of DDP, got {row['loss']}")


def _print(results):
    for row in results:
        ratio = row["step_s"] / results[0]["step_s"]
        print(f"{row['name']:>45} {row['step_s'] * 1e3:8.1f} ms (least {row['least_s'] * 1e3:.1f}) x{ratio:.2f}"
              f"  loss {row['loss']:.5f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
