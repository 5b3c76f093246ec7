"""What is learned with compressed gradients, beside what is without.

    mpiexec -n 4 python -m benchmarks.run.compressed_training --json F
    mpiexec -n 4 python -m benchmarks.run.compressed_training --workload text --json F

Workloads: the digits of scikit-learn and a network of about a million parameters; text, Python's
help pages and a small transformer of PyTorch. Of each seed, which draws the first weights, the
order of the samples and, of the digits, the split of the data, every candidate trains alike. It is
about what is learned, not about time: all ranks may be on one node, where `algorithm="pairwise"`
compresses, too. Told is the mean over seeds and their spread (standard deviation) of the loss of
the last epoch, of what is measured on samples that were not trained on (digits: the accuracy, text:
the loss), and of the difference of both from the training of the same seed without compression.
"""

import argparse
import json
from statistics import mean, stdev
from typing import Any

from mpi4py import MPI

from mpicoll import Communicator, install_abort_hook
from mpicoll.measure import measured_on
from mpicoll.schedule import bounds
from mpicoll.support.node import share_cores
from mpicoll.train import Adam, Dataset, Trainer, digits, mlp
from mpicoll.train.optim import Optimizer

from ..peers.sizes import add_size

#: name: options of the trainer, instead of OPTIONS and --strategy
CANDIDATES: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"compression": "bfloat16"},
    "int8": {"compression": "int8"},
    "int8, error feedback": {"compression": "int8", "error_feedback": True},
    "int4": {"compression": "int4"},
    "int4, error feedback": {"compression": "int4", "error_feedback": True},
}
#: of all candidates
OPTIONS: dict[str, Any] = {"algorithm": "pairwise"}


class Digits:
    """The digits of scikit-learn, and a network of linear layers."""

    measure = "test_accuracy"
    batch_size = 64
    epochs = 8

    def __init__(self, options: argparse.Namespace) -> None:
        self.widths = [64, *options.hidden, 10]
        self.facts = {"widths": self.widths}

    def trainer(self, comm: Communicator, seed: int, options: dict[str, Any]) -> Trainer:
        """One that has trained nothing."""
        return Trainer(mlp(self.widths, seed), Adam(1e-3), comm, **options)

    def data(self, seed: int) -> Dataset:
        """The samples, split by the seed."""
        return digits(seed)

    def measured(self, trainer: Trainer) -> float | None:
        """The accuracy on the test samples."""
        return trainer.test_accuracy


class HelpPages:
    """Python's help pages in pieces, and a transformer that continues them."""

    measure = "held_out_loss"
    batch_size = 32
    epochs = 2

    def __init__(self, options: argparse.Namespace) -> None:
        # the other workload does without PyTorch
        import torch

        from benchmarks.peers.pieces import Pieces

        torch.set_num_threads(1)
        self.text = Pieces(options.length)
        self.facts = {name: getattr(options, name) for name in ("layers", "width", "length")}

    def trainer(
        self,
        comm: Communicator,
        seed: int,
        options: dict[str, Any],
        optimizer: Optimizer | None = None,
    ) -> Trainer:
        """One that has trained nothing."""
        import torch

        from benchmarks.peers.pieces import TorchFunction
        from benchmarks.peers.transformer import Transformer

        torch.manual_seed(seed)
        self.function = TorchFunction(Transformer(self.text.letters, **self.facts))
        optimizer = optimizer or Adam(1e-3)
        return Trainer(self.function, optimizer, comm, params=self.function.params, **options)

    def data(self, seed: int) -> Dataset:
        """The pieces, the same for all seeds."""
        return self.text.dataset

    def measured(self, trainer: Trainer) -> float:
        """The mean loss of the pieces that were not trained on. Collective."""
        data = self.text.dataset
        cuts = bounds(data.tests, trainer.comm.Get_size())
        first, last = cuts[trainer.comm.Get_rank() :][:2]
        loss = self.function.loss(trainer.params, data.take_test(slice(first, last)))
        return trainer.comm.allreduce(loss * (last - first)) / data.tests


WORKLOADS = {"digits": Digits, "text": HelpPages}


def main() -> None:
    """Train, print, write."""
    install_abort_hook()
    options = _options()
    comm = Communicator(MPI.COMM_WORLD)
    share_cores(comm)
    workload = WORKLOADS[options.workload](options)
    epochs = options.epochs or workload.epochs
    facts = {
        "environment": measured_on(comm),
        "workload": options.workload,
        "strategy": options.strategy,
        **workload.facts,
        "batch_size": workload.batch_size,
        "epochs": epochs,
    }
    rows: list[dict[str, Any]] = []
    for seed in range(options.seeds):
        for name in CANDIDATES:
            rows.append(_trained(comm, workload, name, seed, epochs, options.strategy))
            if comm.Get_rank() == 0:
                print(rows[-1], flush=True)
        # after each seed: it takes long, and what there is counts
        results = [summed_up(name, rows, workload.measure, "float32") for name in CANDIDATES]
        if comm.Get_rank() == 0 and options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump({**facts, "results": results, "runs": rows}, file, indent=1)
    if comm.Get_rank() == 0:
        for result in results:
            print(result)


def _trained(
    comm: Communicator,
    workload: Digits | HelpPages,
    name: str,
    seed: int,
    epochs: int,
    strategy: str,
) -> dict[str, Any]:
    options = {"strategy": strategy} | OPTIONS | CANDIDATES[name]
    trainer = workload.trainer(comm, seed, options)
    trainer.fit(workload.data(seed), epochs=epochs, batch_size=workload.batch_size, seed=seed)
    report = trainer.report()
    return {
        "name": name,
        "seed": seed,
        "loss": trainer.epochs[-1]["loss"],
        workload.measure: workload.measured(trainer),
        "bytes_sent_per_step": report["bytes_sent_per_step"],
        "parameters": trainer.strategy.reducer.layout.elements,
    }


def summed_up(
    name: str, rows: list[dict[str, Any]], measure: str, beside: str
) -> dict[str, Any]:
    """Means and spreads of a candidate, and its differences from another one."""
    own = [row for row in rows if row["name"] == name]
    exact = {row["seed"]: row for row in rows if row["name"] == beside}
    result: dict[str, Any] = {"name": name, "bytes_sent_per_step": own[0]["bytes_sent_per_step"]}
    for what in ("loss", measure):
        values = [row[what] for row in own]
        differences = [row[what] - exact[row["seed"]][what] for row in own]
        result |= {
            what: mean(values),
            f"{what}_spread": stdev(values) if len(values) > 1 else 0.0,
            f"{what}_difference": mean(differences),
        }
    return result


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--workload", choices=WORKLOADS, default="digits")
    add("--seeds", type=int, default=5)
    add("--epochs", type=int, help="default: 8 of the digits, 2 of the text")
    add("--hidden", type=int, nargs="+", default=[960, 960], help="widths of layers; digits")
    add_size(parser)
    add("--strategy", default="allreduce")
    add("--json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
