"""A step of a small model beside a loop written by hand.

    python -m benchmarks.run.small_steps --json FILE

Runs on one rank.

The same network, data, batches and SGD with momentum in plain NumPy and by `Trainer`, in turn:
milliseconds of a step by the clock and of the processor, each the least of `--repeat` turns, since
all that disturbs a turn makes it longer. Both take the loss of each step and the test accuracy of
each epoch; that they have the same losses is checked.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from itertools import pairwise, product
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy
from mpi4py import MPI

from mpicoll.measure import measured_on
from mpicoll.measure.provenance import command
from mpicoll.support.arrays import Array
from mpicoll.train import SGD, Dataset, Sampler, Trainer, digits, mlp

RATE = 0.05
MOMENTUM = 0.9


class ByHand:
    """The loop that a user would write: no trainer, no reports, no checks."""

    def __init__(self, widths: Sequence[int], data: Dataset, batch: int) -> None:
        values = mlp(widths).parameters
        self.weights = []
        for inputs, outputs in pairwise(widths):
            for shape in ((inputs, outputs), (outputs,)):
                size = int(numpy.prod(shape))
                self.weights.append(values[:size].reshape(shape).copy())
                values = values[size:]
        self.speeds = [numpy.zeros_like(one) for one in self.weights]
        self.features = numpy.asarray(data.features, "float32")
        self.labels = data.labels
        self.test = numpy.asarray(data.test_features, "float32"), data.test_labels
        self.sampler = Sampler(len(self.labels), batch)
        self.losses = []

    def forward(self, x: Array) -> list[Array]:
        """The input of each layer, and the logits."""
        values = [x]
        for number in range(0, len(self.weights), 2):
            if number:
                values[-1] = numpy.maximum(values[-1], 0)
            values.append(values[-1] @ self.weights[number] + self.weights[number + 1])
        return values

    def step(self, x: Array, y: Array) -> float:
        """One update; the loss before it."""
        values = self.forward(x)
        rows = numpy.arange(len(y))
        logits = values[-1] - values[-1].max(axis=1, keepdims=True)
        gradient = numpy.exp(logits)
        sums = gradient.sum(axis=1, keepdims=True)
        loss = float((numpy.log(sums[:, 0]) - logits[rows, y]).mean())
        gradient /= sums
        gradient[rows, y] -= 1
        gradient /= len(y)
        for number in range(len(self.weights) - 2, -1, -2):
            x = values[number // 2]
            changes = x.T @ gradient, gradient.sum(axis=0)
            if number:
                gradient = (gradient @ self.weights[number].T) * (x > 0)
            for place, change in zip((number, number + 1), changes):
                self.speeds[place] *= MOMENTUM
                self.speeds[place] += change
                self.weights[place] -= RATE * self.speeds[place]
        return loss

    def fit(self, epochs: int) -> None:
        """So many epochs, with the batches that a trainer has."""
        for batches in self.sampler.epochs(epochs * len(self.sampler)):
            for rows in batches:
                self.losses.append(self.step(self.features[rows], self.labels[rows]))
            x, y = self.test
            self.accuracy = float((self.forward(x)[-1].argmax(axis=1) == y).mean())


def timed(act: Callable[[], object], steps: int) -> tuple[float, float]:
    """Milliseconds of a step: wall clock, processor."""
    begin = perf_counter()
    used = process_time()
    act()
    return (perf_counter() - begin) * 1e3 / steps, (process_time() - used) * 1e3 / steps


def measured(
    widths: list[int], strategy: Any, options: argparse.Namespace, data: Dataset
) -> dict[str, Any]:
    """A row: both, and how many times as long the trainer takes."""
    steps = options.epochs * len(Sampler(len(data), options.batch_size))
    epochs = options.epochs
    times: dict[str, list[tuple[float, float]]] = {"hand": [], "trainer": []}
    # anew: late in a training values become so small that arithmetic is slow
    for _ in range(options.repeat):
        hand = ByHand(widths, data, options.batch_size)
        trainer = Trainer(mlp(widths), SGD(RATE, MOMENTUM), MPI.COMM_SELF, strategy)
        hand.fit(1)
        trainer.fit(data, epochs=1, batch_size=options.batch_size)
        numpy.testing.assert_allclose(trainer.losses, hand.losses, rtol=1e-3)
        times["hand"].append(timed(lambda: hand.fit(epochs), steps))
        times["trainer"].append(
            timed(lambda: trainer.fit(data, epochs=epochs, batch_size=options.batch_size), steps)
        )
    row: dict[str, Any] = {
        "widths": widths,
        "strategy": strategy,
        "batch_size": options.batch_size,
        "steps": steps,
    }
    for name, turns in times.items():
        row[f"{name}_ms"], row[f"{name}_processor_ms"] = map(min, zip(*turns))
    row["ratio"] = row["trainer_ms"] / row["hand_ms"]
    row["processor_ratio"] = row["trainer_processor_ms"] / row["hand_processor_ms"]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add(
        "--hidden",
        nargs="+",
        default=["32", "128,64", "256,128"],
        metavar="N,N",
        help="default 32 128,64 256,128",
    )
    add("--strategies", nargs="+", default=["allreduce", "zero1", "zero2", "parameter_server"])
    add("--batch-size", type=int, default=64)
    add("--epochs", type=int, default=20, help="of a turn (default 20)")
    add("--repeat", type=int, default=7, help="turns of each (default 7)")
    add("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    data = digits()
    rows = []
    for hidden, strategy in product(options.hidden, options.strategies):
        widths = [data.widths[0], *map(int, hidden.split(",")), data.widths[1]]
        rows.append(measured(widths, strategy, options, data))
        print(json.dumps(rows[-1]), flush=True)
    if options.json:
        facts = {**measured_on(MPI.COMM_SELF), "command": command()}
        options.json.write_text(
            json.dumps({"schema": 1, "environment": facts, "results": rows}, indent=1),
            encoding="utf-8",
        )


if __name__ == "__main__":
    main()
