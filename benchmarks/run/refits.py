"""A training of several fits, for jobs in which ranks die.

    python -m benchmarks.run.refits JSON

Runs on ranks.

JSON: `steps`, of each fit, and what else a `Plan` has. Each rank that lives to the end writes
`result-RANK.json` to the
directory, without a message to others: none of them can keep it from that.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy
from mpi4py import MPI

from mpicoll import Communicator
from mpicoll.train import Adam, Dataset, Trainer, living, mlp, surviving

SAMPLES = 240
FEATURES = 12
CLASSES = 4
BATCH = 24


@dataclass(frozen=True)
class Plan:
    """One training. options: of the `Trainer`."""

    steps: Sequence[int] = (4, 5)
    options: dict[str, Any] = field(default_factory=dict)
    #: every rank seeds its model differently: that of rank 0 counts
    seeds: bool = False
    #: parameters are written before the first fit
    weights: bool = False
    #: state of the optimizer and its count of updates are written before the first fit
    state: bool = False
    #: parameters are written between two fits; with `state` the optimizer's arrays, too
    between: bool = False
    #: a sample has features that are not numbers
    nan: bool = False
    directory: str = "."

    def text(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))


def dataset(nan: bool) -> Dataset:
    """The same on all ranks."""
    random = numpy.random.default_rng(7)
    rows = random.standard_normal((SAMPLES, FEATURES)).astype("f4")
    rows[77 if nan else 0 : 78 if nan else 0] = numpy.nan
    labels = (rows @ random.standard_normal((FEATURES, CLASSES))).argmax(axis=1)
    return Dataset(rows[:-40], labels[:-40], rows[-40:], labels[-40:])


def train(plan: Plan, comm: MPI.Intracomm = MPI.COMM_WORLD) -> Trainer:
    """Make all fits."""
    data = dataset(plan.nan)

    def make(comm: Communicator) -> Trainer:
        model = mlp([FEATURES, 16, 16, CLASSES], seed=comm.Get_rank() if plan.seeds else 0)
        return Trainer(model, Adam(0.01), comm, bucket_bytes=512, **plan.options)

    trainer, _ = surviving(living(comm), make)
    if plan.weights:
        random = numpy.random.default_rng(11)
        for array in trainer.params.values():
            array[...] = 0.3 * random.standard_normal(array.shape)
    if plan.state:
        trainer.optimizer.steps = 10
        for number, array in enumerate(trainer.optimizer.state.values()):
            array[...] = (0.01, 0.002)[number]
    for number, steps in enumerate(plan.steps):
        if number and plan.between:
            for array in trainer.params.values():
                array *= 0.8
            if plan.state:
                for array in trainer.optimizer.state.values():
                    array *= 0.5
        trainer.fit(data, steps=steps, batch_size=BATCH, seed=number)
    return trainer


def result(trainer: Trainer) -> dict[str, Any]:
    """What the training has come to on this rank."""
    return {
        "losses": trainer.losses,
        "epochs": [epoch["loss"] for epoch in trainer.epochs],
        "ranks": trainer.comm.Get_size(),
        "updates": trainer.optimizer.steps,
        "parameters": {
            name: float(array.astype("f8").sum()) for name, array in trainer.params.items()
        },
        "recoveries": trainer.report().get("recoveries", []),
    }


def main() -> None:
    asked = json.loads(sys.argv[1])
    plan = Plan(**asked)
    found = result(train(plan))
    Path(plan.directory, f"result-{MPI.COMM_WORLD.Get_rank()}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
