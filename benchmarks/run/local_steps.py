"""Local steps beside synchronous training: what is learned from as many samples, and how fast.

    mpiexec -n 4 python -m benchmarks.run.local_steps learned --json F
    mpicoll cluster --hosts 7 --rate 200mbit --mpi mpich -- \\
        python -m benchmarks.run.local_steps fast --link 200mbit --json F

The workload is the text of `compressed_training` and its transformer. *learned*: of each seed a
synchronous training makes the first epochs, and leaves a checkpoint; from there every candidate goes
on alike, to the same number of samples. Told are means over seeds and spreads (standard deviations)
of the loss of the last epoch and of that on pieces that were not trained on, and of the differences
from the synchronous training of the same seed. *fast*: candidates train by turns; told are
medians over the turns of seconds per step. One of them exchanges nothing.
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from mpi4py import MPI

from mpicoll import Communicator, install_abort_hook
from mpicoll.measure import measured_on
from mpicoll.support.node import share_cores
from mpicoll.train import Adam, Trainer
from mpicoll.train.optim.lr_schedules import Cosine

from ..peers.sizes import add_size
from .compressed_training import HelpPages, summed_up

#: inner steps of a round
ROUND = 30
LOCAL = {"strategy": "diloco", "inner_steps": ROUND, "fragments": 4}
#: name: options of the trainer; the first is what the others are compared with
LEARNED: dict[str, dict[str, Any]] = {
    "synchronous": {"strategy": "allreduce"},
    "local steps": LOCAL,
    "local steps, int4": LOCAL | {"compression": "int4", "algorithm": "pairwise"},
}
FAST = {
    "computing alone": LOCAL | {"inner_steps": 10**9},
    "synchronous": {"strategy": "allreduce"},
    "synchronous, int8": {"strategy": "allreduce", "compression": "int8"},
    "local steps": LOCAL,
    "local steps, int4": LOCAL | {"compression": "int4"},
}
BATCH_PER_RANK = 8
#: of a candidate's turn
STEPS = 3 * ROUND
SYNCHRONOUS = "synchronous"


def main() -> None:
    """Train, print, write."""
    install_abort_hook()
    options = _options()
    comm = Communicator(MPI.COMM_WORLD)
    share_cores(comm)
    workload = HelpPages(options)
    results = (learned if options.what == "learned" else fast)(comm, workload, options)
    facts = measured_on(comm)
    if comm.Get_rank() == 0:
        for row in results["results"]:
            print(row, flush=True)
        if options.json:
            named = vars(options) | {"round": ROUND, "batch_per_rank": BATCH_PER_RANK}
            del named["json"]
            document = {"environment": facts, **named, **results}
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump(document, file, indent=1)


def learned(comm: Communicator, workload: HelpPages, options: argparse.Namespace) -> dict[str, Any]:
    """Losses at equal samples."""
    rows = []
    with shared_directory(comm) as place:
        for seed in range(options.seeds):
            begun = place / f"{seed}"
            _trained(comm, workload, seed, LEARNED[SYNCHRONOUS], options, begun, options.warmup)
            for name, candidate in LEARNED.items():
                own = place / f"{seed} {name}"
                if comm.Get_rank() == 0:
                    shutil.copytree(begun, own)
                comm.Barrier()
                trainer = _trained(comm, workload, seed, candidate, options, own, options.epochs)
                report = trainer.report()
                rows.append(
                    {
                        "name": name,
                        "seed": seed,
                        "loss": trainer.epochs[-1]["loss"],
                        workload.measure: workload.measured(trainer),
                        "drift": report.get("drift"),
                        "bytes_sent_per_step": report["bytes_sent_per_step"],
                        "parameters": trainer.strategy.reducer.layout.elements,
                    }
                )
                if comm.Get_rank() == 0:
                    print(rows[-1], flush=True)
    results = [summed_up(name, rows, workload.measure, SYNCHRONOUS) for name in LEARNED]
    return {"results": results, "runs": rows}


@contextmanager
def shared_directory(comm: Communicator) -> Iterator[Path]:
    """A new one for all ranks of a machine, for a time."""
    place = comm.bcast(tempfile.mkdtemp() if comm.Get_rank() == 0 else None)
    yield Path(place)
    comm.Barrier()
    if comm.Get_rank() == 0:
        shutil.rmtree(place)


def _trained(
    comm: Communicator,
    workload: HelpPages,
    seed: int,
    candidate: dict[str, Any],
    options: argparse.Namespace,
    checkpoint: Path,
    epochs: int,
) -> Trainer:
    data = workload.data(seed)
    batch = BATCH_PER_RANK * comm.Get_size()
    steps = -(-len(data) // batch)
    adam = Adam(1e-3, schedule=Cosine(options.epochs * steps))
    trainer = workload.trainer(comm, seed, candidate, adam)
    trainer.fit(
        data,
        epochs=epochs,
        batch_size=batch,
        seed=seed,
        checkpoint=checkpoint,
        checkpoint_every=epochs * steps,
        resume=True,
    )
    return trainer


def fast(comm: Communicator, workload: HelpPages, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of a step, and bytes."""
    trainers = {name: workload.trainer(comm, 0, candidate) for name, candidate in FAST.items()}
    data = workload.data(0)
    batch = BATCH_PER_RANK * comm.Get_size()
    seconds: dict[str, list[float]] = {name: [] for name in FAST}
    for trainer in trainers.values():  # what is made once
        trainer.fit(data, steps=2, batch_size=batch)
    for _ in range(options.turns):
        for name, trainer in trainers.items():
            meter = trainer.strategy.meter
            before = len(meter.steps)
            trainer.fit(data, steps=STEPS, batch_size=batch)
            # of steps alone: not the exchange with which a fit ends
            own = meter.total("step_s", before) / STEPS
            seconds[name].append(comm.allreduce(own, MPI.MAX))
    rows = []
    alone, *_ = seconds
    for name, trainer in trainers.items():
        report = trainer.report()
        ratios = [mine / its for mine, its in zip(seconds[alone], seconds[name])]
        rows.append(
            {
                "name": name,
                "step_s": median(seconds[name]),
                "of_computing_alone": median(ratios),
                "samples_per_s": batch / median(seconds[name]),
                "bytes_sent_per_step": report["bytes_sent_per_step"],
                "hidden": report["hidden"],
                "parameters": trainer.strategy.reducer.layout.elements,
            }
        )
    return {"results": rows}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("what", choices=["learned", "fast"])
    add("--seeds", type=int, default=5, help="learned")
    add("--warmup", type=int, default=2, help="synchronous epochs; learned")
    add("--epochs", type=int, default=4, help="in all; learned")
    add("--turns", type=int, default=5, help="of 90 steps; fast")
    add("--link", help="the cluster's --rate; fast")
    add_size(parser)
    add("--json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
