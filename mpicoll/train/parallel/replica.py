"""A copy of what a rank alone has: its shard, and the gradients that make later states from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

import numpy

from ...support.arrays import Array
from ..optim import Optimizer


class Made(NamedTuple):
    """How an update was made.

    optimizer: as it was then, without its arrays; factor: of the gradients, None where skipped.

    scale: the state of the loss scale after it, or None.
    """

    optimizer: Optimizer
    factor: float | None
    scale: Any

    @classmethod
    def by(cls, optimizer: Optimizer, factor: float | None, scale: Any) -> Made:
        """The same of an optimizer that goes on."""
        kept = copy(optimizer)
        kept.state = {}
        return cls(kept, factor, scale)

    def again(self, names: Sequence[str], vectors: Array, gradients: Array) -> None:
        """Make it once more.

        vectors: the parameters, then the optimizer's arrays, by `names`; changed in place.
        """
        if self.factor is None:
            return
        optimizer = copy(self.optimizer)
        optimizer.state = dict(zip(names, vectors[1:]))
        optimizer.apply(vectors[0], gradients, scale=self.factor)


class Replica:
    """Of one rank: its shard of `total` elements, and what its codes have lost.

    step: the one after which the `vectors` are. Two steps more have room, the gradients of the
    shard and the residuals of the rank, in codes, so that one may come while the other is needed: a
    rank may be a step ahead.
    """

    def __init__(
        self, names: Sequence[str], total: int, dtype: Any, sent: Any, code_bytes: int = 0
    ) -> None:
        self.step = 0
        self._names = names
        self.vectors: Array = numpy.zeros((1 + len(names), total), dtype)
        self._sent = numpy.dtype(sent)
        self._gradient_bytes = total * self._sent.itemsize
        nbytes = self._gradient_bytes + code_bytes
        self._messages: list[Array] = [numpy.zeros(nbytes, "u1") for _ in range(2)]

    @property
    def nbytes(self) -> int:
        """Bytes of it all."""
        return self.vectors.nbytes + sum(message.nbytes for message in self._messages)

    def message(self, step: int) -> Array:
        """What is sent after a step: gradients and residuals."""
        return self._messages[step % 2]

    def gradients(self, step: int) -> Array:
        """Where those of a step lie."""
        gradients: Array = self.message(step)[: self._gradient_bytes].view(self._sent)
        return gradients

    def residuals(self, step: int) -> Array:
        """Where the codes of those after a step lie."""
        return self.message(step)[self._gradient_bytes :]

    def follow(self, step: int, made: Mapping[int, Made]) -> None:
        """Make the vectors those after a step; the ones before are then gone."""
        self._replay(self.vectors, step, made)
        self.step = step

    def after(self, step: int, made: Mapping[int, Made]) -> Array:
        """The vectors after a step, in memory of their own."""
        vectors = self.vectors.copy()
        self._replay(vectors, step, made)
        return vectors

    def _replay(self, vectors: Array, step: int, made: Mapping[int, Made]) -> None:
        for number in range(self.step + 1, step + 1):
            made[number].again(self._names, vectors, self.gradients(number))
