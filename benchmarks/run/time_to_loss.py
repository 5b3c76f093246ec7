"""Seconds until a transformer has learned so much, by ways to average gradients on a slow network.

    mpicoll cluster --hosts 7 --rate 200mbit --mpi mpich -- \\
        python -m benchmarks.run.time_to_loss --link 200mbit --json F

Ways: mpicoll's wrapper of PyTorch modules, exact and with compressed gradients; PyTorch's own
DistributedDataParallel over gloo, exact and with its bfloat16 hook, and on mpicoll's backend with
mpicoll's hook. First weights, the samples of each step and the optimizer are the same for all. They
train by turns, a block of steps each; the seconds of each are its own, of the slowest rank. The
loss is the mean over the ranks and over the last steps; it is put together at the end, so that no
training waits for it. What computing alone takes is measured before.
"""

import argparse
import itertools
import json
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any, TypeAlias

import numpy
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import mpicoll.torch
from mpicoll import Communicator, install_abort_hook
from mpicoll.cluster import goodput
from mpicoll.measure import measured_on
from mpicoll.support.node import share_cores
from mpicoll.support.units import parse_rate
from mpicoll.train import Sampler
from mpicoll.train.torch import wrap

from ..peers.gloo import Gloo
from ..peers.pieces import Pieces, tensors_of
from ..peers.sizes import add_size
from ..peers.torch_steps import adamw
from ..peers.transformer import Transformer, loss_of

#: name: options of mpicoll's wrapper
WRAPPED: dict[str, dict[str, Any]] = {
    "mpicoll, exact": {},
    "mpicoll, int8": {"compression": "int8"},
    "mpicoll, int8, error feedback": {"compression": "int8", "error_feedback": True},
    "mpicoll, int4, error feedback": {"compression": "int4", "error_feedback": True},
}
#: MiB of DistributedDataParallel's buckets: with its own, which hold the whole model, it sends
#: nothing before backward ends
BUCKET_MB = 1
#: steps over which losses are averaged
WINDOW = 20
#: steps from one loss in the result to the next
EVERY = 10
#: steps that show what computing alone takes, after a first one
ALONE = 10

#: what is trained, and its optimizer
Made: TypeAlias = tuple[torch.nn.Module, torch.optim.Optimizer]
Way: TypeAlias = Callable[[torch.nn.Module], Made]


class Training:
    """A transformer that is trained in one of the ways."""

    def __init__(
        self, comm: Communicator, name: str, way: Way, text: Pieces, options: argparse.Namespace
    ) -> None:
        self.comm = comm
        self.name = name
        torch.manual_seed(options.seed)
        module = Transformer(text.letters, options.length, options.width, options.layers)
        self.model, self.optimizer = way(module)
        size = comm.Get_size()
        samples = len(text.dataset)
        sampler = Sampler(samples, options.rows * size, options.seed, comm.Get_rank(), size)
        self.batches = _batches(text, sampler)
        #: of this rank's samples in each step
        self.losses: list[float] = []
        #: when each step ended on this rank, in seconds of this training
        self.ends: list[float] = []

    def train(self, steps: int) -> None:
        """Make some steps. Collective."""
        self.comm.Barrier()
        start = perf_counter() - (self.ends[-1] if self.ends else 0.0)
        for inputs, outputs in itertools.islice(self.batches, steps):
            self.optimizer.zero_grad()
            loss = loss_of(self.model, inputs, outputs)
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())
            self.ends.append(perf_counter() - start)

    def seconds(self) -> list[float]:
        """When each step ended on the slowest rank. Collective."""
        return numpy.max(self.comm.allgather(self.ends), axis=0).tolist()

    def result(self, loss: float) -> dict[str, Any]:
        """Steps and seconds until the smoothed loss was below `loss`. Collective."""
        seconds = self.seconds()
        smoothed = smooth(numpy.mean(self.comm.allgather(self.losses), axis=0).tolist())
        step = first_below(smoothed, loss)
        shown = range(EVERY, len(seconds) + 1, EVERY)
        return {
            "name": self.name,
            "step_s": median(numpy.diff(seconds)),
            "steps_to_loss": step,
            "seconds_to_loss": step and seconds[step - 1],
            "loss": smoothed[-1],
            "curve": [[at, round(seconds[at - 1], 2), round(smoothed[at - 1], 4)] for at in shown],
        }


def smooth(losses: list[float]) -> list[float]:
    """For each step the mean of the last WINDOW losses; of the first steps, which have fewer
    before them, the mean of those.
    """
    return [
        sum(losses[max(0, end - WINDOW) : end]) / min(end, WINDOW)
        for end in range(1, len(losses) + 1)
    ]


def first_below(smoothed: list[float], loss: float) -> int | None:
    """The number of the first step, from 1, whose smoothed loss is below `loss`, if there is one."""
    return next((step for step, value in enumerate(smoothed, 1) if value < loss), None)


def main() -> None:
    """Train, print, write."""
    install_abort_hook()
    options = _options()
    comm = Communicator(MPI.COMM_WORLD)
    share_cores(comm)
    torch.set_num_threads(1)
    text = Pieces(options.length)
    alone = Training(comm, "computing alone", _alone, text, options)
    alone.train(1 + ALONE)
    with Gloo(comm):
        ways = _ways(comm).items()
        trainings = [Training(comm, name, way, text, options) for name, way in ways]
        for done in range(0, options.steps, options.block):
            for training in trainings:
                training.train(min(options.block, options.steps - done))
            if comm.Get_rank() == 0:
                print(f"{min(done + options.block, options.steps)} steps", flush=True)
        results = [training.result(options.loss) for training in trainings]
    facts = _facts(comm, alone, options)
    if comm.Get_rank() == 0:
        _report(results, options)
        if options.json:
            document = {"schema": 1, "environment": facts, "results": results}
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump(document, file, indent=1)


def _batches(text: Pieces, sampler: Sampler) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """This rank's samples of each step; what is left of an epoch for less than a step is not used,
    as ranks must have as many samples each.
    """
    for epoch in itertools.count():
        for batch in sampler.batches(epoch):
            if len(batch) == sampler.batch_size:
                yield tensors_of(*text.dataset.take(sampler.share(batch)))


# The ways.


def _ways(comm: Communicator) -> dict[str, Way]:
    """All of them; there must be a process group of gloo. Collective."""
    own = dist.new_group(backend="mpicoll")
    gloo = dist.group.WORLD
    hook = mpicoll.torch.compression_hook("int8", error_feedback=True)
    wrapped = {name: partial(_wrapped, comm, given) for name, given in WRAPPED.items()}
    return wrapped | {
        "DDP, gloo": partial(_distributed, gloo, None),
        "DDP, gloo, bfloat16 hook": partial(_distributed, gloo, _bfloat16_hook),
        "DDP, mpicoll, int8 hook, error feedback": partial(_distributed, own, hook),
    }


def _wrapped(comm: Communicator, options: dict[str, Any], module: torch.nn.Module) -> Made:
    model = wrap(module, comm, optimizer=torch.optim.AdamW, lr=1e-3, **options)
    return model, model.optimizer


def _distributed(
    group: dist.ProcessGroup, hook: Callable[..., Any] | None, module: torch.nn.Module
) -> Made:
    model = DistributedDataParallel(
        module, process_group=group, bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True
    )
    if hook is not None:
        model.register_comm_hook(group, hook)
    return model, adamw(model.parameters())


def _bfloat16_hook(
    group: dist.ProcessGroup, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """PyTorch's own under another name: it refuses its name where there is no NCCL, although gloo
    reduces bfloat16, too.
    """
    return bf16_compress_hook(group, bucket)


def _alone(module: torch.nn.Module) -> Made:
    """Each rank for itself."""
    return module, adamw(module.parameters())


# What came of it.


def _facts(comm: Communicator, alone: Training, options: argparse.Namespace) -> dict[str, Any]:
    """The environment of the result. Collective."""
    parameters = sum(parameter.numel() for parameter in alone.model.parameters())
    size = comm.Get_size()
    sent = 2 * (size - 1) / size * 4 * parameters
    names = ("link", "rows", "length", "width", "layers", "seed", "steps", "block")
    return measured_on(comm) | {
        **{name: getattr(options, name) for name in names},
        "target_loss": options.loss,
        "window": WINDOW,
        "parameters": parameters,
        "computing_s": median(numpy.diff(alone.seconds())),
        "links_s": sent / goodput(parse_rate(options.link)),
        "torch": torch.__version__,
    }


def _report(results: list[dict[str, Any]], options: argparse.Namespace) -> None:
    for row in results:
        seconds = row["seconds_to_loss"]
        reached = "not reached" if seconds is None else f"{seconds:7.1f} s"
        print(
            f"{row['name']:>40} {row['step_s'] * 1e3:7.1f} ms a step, loss {options.loss}:"
            f" {reached}, at the end {row['loss']:.4f}",
            flush=True,
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--link", required=True, help="the cluster's --rate; inside a node, what is to count as it")
    add("--loss", type=float, default=2.4, help="that is to be reached (default 2.4)")
    add("--steps", type=int, default=160)
    add("--block", type=int, default=20, help="steps of a training in its turn (default 20)")
    add("--rows", type=int, default=2, help="pieces of text per rank and step (default 2)")
    add_size(parser, width=256)
    add("--seed", type=int, default=0)
    add("--json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
