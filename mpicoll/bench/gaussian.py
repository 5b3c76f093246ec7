"""A collective on Gaussian data: how far compressed results are from the exact ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from .. import algorithms
from ..buffers import compression_of
from ..calls import allowing, arguments, schedule_of
from ..execute import Context
from ..measure import collect
from ..select import Choice
from ..verify import quantisations
from .workload import Array, Workload

#: data repeats after this many elements, a prime, so that groups have other elements each time
_PERIOD = 65_537
#: elements that are compared at a time, in whole groups of all compressions
_PIECE = 1 << 16


class Errors(NamedTuple):
    """How far a compressed result is from the exact one, over all ranks."""

    #: the largest |result - exact|
    largest: float
    #: sqrt(sum (result - exact)^2 / sum exact^2)
    rms: float
    #: the largest part of the bound of an element that its error is
    of_bound: float
    #: elements beyond the bound
    wrong: int


class GaussianWorkload(Workload):
    """A `Workload` of normally distributed elements; its calls are compressed.

    The exact result is that in float64 of the elements as they are in the type of the workload.
    """

    period = _PERIOD

    def _table(self, seed: int) -> Array:
        """One period of a vector."""
        drawn = np.random.default_rng(seed).standard_normal(self.period)
        return drawn.astype(self.dtype).astype(np.float64)

    def _result_table(self) -> Array:
        return sum(self._contributions(), np.zeros(self.period))

    def _contributions(self) -> list[Array]:
        """One period of what each rank contributes; where nothing is added, of the only one."""
        return [self._table(rank) for rank in range(self.size if self.collective.reduces else 1)]

    def errors(
        self, algorithm: str, segment_bytes: int | None, compression: str | None
    ) -> Errors:
        """Of the last result, on all ranks. Collective. The arguments are those of the call."""
        assert compression is not None
        largest = of_bound = 0.0
        squares = np.zeros(3)
        for result, exact, bound in self._compared(algorithm, segment_bytes, compression):
            error = np.abs(result - exact)
            error[np.isnan(error)] = np.inf
            with np.errstate(invalid="ignore"):
                parts = np.where(error == 0, 0, error / bound)
            largest = max(largest, float(error.max()))
            of_bound = max(of_bound, float(parts.max()))
            squares += (error @ error), (exact @ exact), (parts > 1).sum()
        most = np.array([largest, of_bound])
        collect(self.comm, most, MPI.MAX)
        collect(self.comm, squares, MPI.SUM)
        error_squares, exact_squares, wrong = map(float, squares)
        rms = (error_squares / exact_squares) ** 0.5 if exact_squares else 0.0
        return Errors(float(most[0]), rms, float(most[1]), int(wrong))

    def quantisations(
        self, algorithm: str, segment_bytes: int | None, compression: str | None
    ) -> int:
        """How often a value is quantised in the call with these arguments; 0: it is exact."""
        return self._quantisations(self.served_by(algorithm, segment_bytes, compression))

    def _quantisations(self, choice: Choice) -> int:
        if not choice.compressed:
            return 0
        entry = algorithms.find(self.collective.name, choice.name)
        return quantisations(entry, self.size, Context.of(self.comm).topology.nodes)

    def _compared(
        self, algorithm: str, segment_bytes: int | None, compression: str
    ) -> Iterator[tuple[Array, Array, Array]]:
        """Pieces of this rank's result, each with what is exact and how far it may be from that."""
        if self.result is None or self.after is None:
            return
        codes = compression_of(compression)
        choice = self.served_by(algorithm, segment_bytes, compression)
        often = self._quantisations(choice)
        nodes = None
        edges = [0, self.count]
        if often:
            edges = self._edges(choice.name, choice.segment_bytes, compression)
            entry = algorithms.find(self.collective.name, choice.name)
            if entry.node_aware and self.collective.reduces:
                nodes = Context.of(self.comm).topology.nodes
        tables = self._contributions()
        exact_table = sum(tables, np.zeros(self.period))
        resolution = max(2.0**-23, self._resolution)
        for low, high in _cut(edges, self.after.start, self.after.stop):
            places = np.arange(low, high) % self.period
            contributions = [table[places] for table in tables]
            bound = codes.bound(contributions, often, nodes, resolution)
            result = self.result[low - self.after.start : high - self.after.start]
            if self.module is not np:
                result = self.module.asnumpy(result)
            yield result.astype(np.float64), exact_table[places], bound

    @property
    def _resolution(self) -> float:
        """The relative distance of two numbers of this type."""
        return 2.0**-7 if self.dtype.name == "bfloat16" else float(np.finfo(self.dtype).eps)

    def _edges(self, name: str, segment_bytes: int | None, compression: str) -> list[int]:
        """Where the blocks of the schedule begin: groups begin anew there."""
        parse = allowing(getattr(arguments, self.method.lower()), compression)
        call = parse(self.comm, *self.arguments)
        return schedule_of(call.in_codes(), name, segment_bytes).edges


def _cut(edges: Sequence[int], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Pieces of the blocks, or of one, that lie between two elements."""
    for low, high in zip(edges, edges[1:]):
        last = min(high, stop)
        for begin in range(max(low, start), last, _PIECE):
            yield begin, min(begin + _PIECE, last)
