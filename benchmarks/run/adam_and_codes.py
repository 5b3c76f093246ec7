"""Why error feedback does not help Adam where codes are coarse: on one rank, without MPI's messages.

    python -m benchmarks.run.adam_and_codes --json F

A small transformer learns Python's help pages, its gradients sent in int4 between simulated ranks.
Adam divides by the root of a mean of squares. An optimizer of the table takes these squares of the
gradients that were received, as in any training, or of the exact ones, which no rank has in a
real one; SGD takes none. Told is how far loss and held-out loss are above those of the same optimizer
with exact gradients, and the relative error of the gradients of one step.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from statistics import mean
from typing import Any

import numpy
import torch

from mpicoll.buffers import CodingLoss, compression_of
from mpicoll.schedule import bounds
from mpicoll.support.arrays import Array

from ..peers.pieces import Pieces, TorchFunction
from ..peers.sizes import add_size
from ..peers.transformer import Transformer

RANKS = 4
#: of a step, all ranks together
SAMPLES = 32
EPOCHS = 2
#: name: whether gradients are sent in codes, whether with error feedback
SENT = {"exact": (False, False), "int4": (True, False), "int4, error feedback": (True, True)}
#: name: the learning rate, and of which gradients squares are taken
OPTIMIZERS = {
    "Adam": (1e-3, "received"),
    "Adam, squares of exact gradients": (1e-3, "exact"),
    "SGD, momentum 0.9": (0.1, None),
}
#: of Adam: how much of the means stays in a step
FIRST, SECOND = 0.9, 0.999


class Ranks:
    """Sums gradients over ranks as an allreduce in codes does."""

    def __init__(self, size: int, is_coded: bool, is_fed_back: bool) -> None:
        self.compression = compression_of("int4")
        self.size = -(-size // RANKS) * RANKS
        self.is_coded = is_coded
        self.is_fed_back = is_fed_back
        self.lost = numpy.zeros((RANKS, self.size), "float32")
        self._losses = [CodingLoss(self.compression, rank, self.size) for rank in range(RANKS)]
        groups = self.compression.groups(self.size)
        self._codes = numpy.zeros(groups * self.compression.nbytes, "uint8")

    def sum(self, gradients: list[Array]) -> Array:
        """The sum that all ranks get."""
        if not self.is_coded:
            return numpy.sum(gradients, axis=0)
        size = len(gradients[0])
        sent = numpy.zeros((RANKS, self.size), "float32")
        sent[:, :size] = gradients
        if self.is_fed_back:
            for loss, vector, lost in zip(self._losses, sent, self.lost):
                loss.feed(vector, lost, lost, RANKS)
        edges = bounds(self.size, RANKS)
        for owner, (first, last) in enumerate(zip(edges, edges[1:])):
            for rank in range(RANKS):
                if rank != owner:
                    self.compression.quantise(sent[rank, first:last], self._codes)
            sums = sent[:, first:last].sum(axis=0)
            if self.is_fed_back:
                self._losses[owner].feed_sums(sums, self.lost[owner, first:last])
            self.compression.quantise(sums, self._codes)
            sent[0, first:last] = sums
        return sent[0, :size]


class Training:
    """One training of all simulated ranks."""

    def __init__(self, text: Pieces, seed: int, options: argparse.Namespace) -> None:
        torch.manual_seed(seed)
        model = Transformer(text.letters, options.length, options.width, options.layers)
        self.data = text.dataset
        self.function = TorchFunction(model)
        self.params = self.function.params
        self._random = numpy.random.default_rng(seed)
        self._steps = 0
        # those of one dimension are sent as they are
        self._coded = [name for name, value in self.params.items() if value.ndim > 1]

    def run(self, optimizer: str, sent: str) -> dict[str, Any]:
        """Train; returns the losses."""
        rate, squares_of = OPTIMIZERS[optimizer]
        ranks = Ranks(sum(self.params[name].size for name in self._coded), *SENT[sent])
        means = {name: numpy.zeros_like(value) for name, value in self.params.items()}
        squares = {name: numpy.zeros_like(value) for name, value in self.params.items()}
        errors: list[float] = []
        for _ in range(EPOCHS):
            losses = []
            for rows in self._batches():
                found = [self.function(self.params, self.data.take(part)) for part in rows]
                losses.append(mean(loss for loss, _ in found))
                exact = {name: sum(part[name] for _, part in found) / RANKS for name in means}
                received = exact | self._received(ranks, [part for _, part in found])
                errors.append(self._error(received, exact))
                for name, value in self.params.items():
                    if squares_of is None:
                        means[name] = FIRST * means[name] + received[name]
                        value -= rate * means[name]
                        continue
                    squared = (exact if squares_of == "exact" else received)[name] ** 2
                    means[name] = FIRST * means[name] + (1 - FIRST) * received[name]
                    squares[name] = SECOND * squares[name] + (1 - SECOND) * squared
                    corrected = numpy.sqrt(squares[name] / (1 - SECOND**self._steps))
                    value -= rate * means[name] / (1 - FIRST**self._steps) / (corrected + 1e-8)
        held_out = self.function.loss(self.params, self.data.take_test(slice(0, self.data.tests)))
        return {"loss": mean(losses), "held_out_loss": held_out, "error": mean(errors)}

    def _batches(self) -> Iterator[list[Array]]:
        """The samples of each rank, step by step."""
        order = self._random.permutation(len(self.data))
        for start in range(0, len(order) - SAMPLES + 1, SAMPLES):
            self._steps += 1
            yield numpy.split(order[start : start + SAMPLES], RANKS)

    def _received(self, ranks: Ranks, parts: list[dict[str, Array]]) -> dict[str, Array]:
        whole = ranks.sum([self._joined(part) / RANKS for part in parts])
        ends = numpy.cumsum([self.params[name].size for name in self._coded])
        values = numpy.split(whole, ends[:-1])
        return {
            name: value.reshape(self.params[name].shape)
            for name, value in zip(self._coded, values)
        }

    def _joined(self, arrays: dict[str, Array]) -> Array:
        return numpy.concatenate([arrays[name].reshape(-1) for name in self._coded])

    def _error(self, received: dict[str, Array], exact: dict[str, Array]) -> float:
        wanted = self._joined(exact)
        difference = self._joined(received) - wanted
        return float(numpy.linalg.norm(difference) / numpy.linalg.norm(wanted))


def main() -> None:
    """Train, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--json")
    add_size(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    text = Pieces(options.length)
    rows: list[dict[str, Any]] = []
    for seed in options.seeds:
        for optimizer in OPTIMIZERS:
            for sent in SENT:
                result = Training(text, seed, options).run(optimizer, sent)
                rows.append({"seed": seed, "optimizer": optimizer, "sent": sent} | result)
                best = next(row for row in rows if (row["seed"], row["optimizer"]) == (seed, optimizer))
                above = [result[name] - best[name] for name in ("loss", "held_out_loss")]
                print(f"{seed} {optimizer:34} {sent:22} loss {result['loss']:.4f} {above[0]:+.4f},"
                      f" held out {above[1]:+.4f}, error {result['error']:.3f}", flush=True)  # fmt: skip
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"schema": 1, "results": rows}, file, indent=1)


if __name__ == "__main__":
    main()
