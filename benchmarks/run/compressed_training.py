"""Loss and accuracy of trainings with compressed gradients, beside those without.

    mpiexec -n 4 python -m benchmarks.run.compressed_training --json F

The digits of scikit-learn and a network of about a million parameters; of each seed, which draws
the first weights, the split of the data and the order of the samples, every candidate trains
alike. It is about what is learned, not about time: all ranks may be on one node, where
`algorithm="pairwise"` compresses, too. Told is the mean over seeds and their spread (standard
deviation) of the loss of the last epoch, of the accuracy on the test samples, and of the
difference of both from the training of the same seed without compression.
"""

import argparse
import json
from statistics import mean, stdev
from typing import Any

from mpi4py import MPI

from mpicoll import Communicator, install_abort_hook
from mpicoll.measure import measured_on
from mpicoll.support.node import share_cores
from mpicoll.train import Adam, Trainer, digits, mlp

#: name: options of the trainer
CANDIDATES: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"compression": "bfloat16"},
    "int8": {"compression": "int8"},
    "int8, error feedback": {"compression": "int8", "error_feedback": True},
    "int4": {"compression": "int4"},
    "int4, error feedback": {"compression": "int4", "error_feedback": True},
}


def main() -> None:
    """Train, print, write."""
    install_abort_hook()
    options = _options()
    comm = Communicator(MPI.COMM_WORLD)
    share_cores(comm)
    rows: list[dict[str, Any]] = []
    for seed in range(options.seeds):
        for name in CANDIDATES:
            rows.append(_trained(comm, name, seed, options))
            if comm.Get_rank() == 0:
                print(rows[-1], flush=True)
    results = [_summed_up(name, rows) for name in CANDIDATES]
    facts = measured_on(comm)
    if comm.Get_rank() == 0:
        for result in results:
            print(result)
        if options.json:
            document = {
                "environment": facts,
                "strategy": options.strategy,
                "widths": [64, *options.hidden, 10],
                "epochs": options.epochs,
                "results": results,
                "runs": rows,
            }
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump(document, file, indent=1)


def _trained(
    comm: Communicator, name: str, seed: int, options: argparse.Namespace
) -> dict[str, Any]:
    trainer = Trainer(
        mlp([64, *options.hidden, 10], seed),
        Adam(1e-3),
        comm,
        options.strategy,
        algorithm="pairwise",
        **CANDIDATES[name],
    )
    trainer.fit(digits(seed), epochs=options.epochs, batch_size=64, seed=seed)
    report = trainer.report()
    return {
        "name": name,
        "seed": seed,
        "loss": trainer.epochs[-1]["loss"],
        "test_accuracy": trainer.test_accuracy,
        "bytes_sent_per_step": report["bytes_sent_per_step"],
        "parameters": trainer.strategy.reducer.layout.elements,
    }


def _summed_up(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Means and spreads of a candidate."""
    own = [row for row in rows if row["name"] == name]
    exact = {row["seed"]: row for row in rows if row["name"] == "float32"}
    result: dict[str, Any] = {"name": name, "bytes_sent_per_step": own[0]["bytes_sent_per_step"]}
    for what in ("loss", "test_accuracy"):
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
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--hidden", type=int, nargs="+", default=[960, 960])
    parser.add_argument("--strategy", default="allreduce")
    parser.add_argument("--json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
