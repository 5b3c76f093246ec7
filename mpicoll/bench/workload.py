"""A collective with data whose result is known exactly: what benchmarks call, and count wrong elements of."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from mpi4py import MPI

from .. import collectives
from ..buffers import HALF, PREDEFINED
from ..errors import ArgumentError
from ..execute import native_method
from ..schedule import Part
from ..simulate import lower_bound
from ..support.arrays import synchronize

Array = np.ndarray[Any, np.dtype[Any]]

METHODS = {"reduce_scatter": "Reduce_scatter_block"}
#: data repeats after this many elements; a prime, so that no block that went astray looks like the right one
_PERIOD = 1021


def operation(name: str) -> tuple[MPI.Op, Any]:
    """(MPI op, ufunc) of a predefined operation. Raises ArgumentError."""
    if name not in PREDEFINED:
        raise ArgumentError(f"unknown operation {name!r}; there are: {', '.join(PREDEFINED)}")
    op, ufunc = PREDEFINED[name]
    return op, getattr(np, ufunc)


class Workload:
    """One collective on `count` elements (the whole vector): buffers, arguments and the expected result of this rank.

    Data are small integers, so that the result is exact in every type and order. Attributes: count and nbytes of the
    whole vector; arguments of mpi4py's method.
    """

    def __init__(
        self,
        comm: Any,
        collective: str,
        count: int,
        dtype: "np.dtype[Any]",
        op: str = "sum",
        root: int = 0,
        in_place: bool = False,
        module: ModuleType | Any = np,
    ) -> None:
        self.comm, self.collective, self.dtype, self.module = comm, collectives.find(collective), dtype, module
        self.rank, self.size, self.root, self.op = comm.Get_rank(), comm.Get_size(), root, op
        if not 0 <= root < self.size:
            raise ArgumentError(f"root {root} is out of range, there are ranks 0 to {self.size - 1}")
        blocks = self.size if self.collective.blocks_of_ranks else 1
        self.count = max(1, count // blocks) * blocks
        self.nbytes = self.count * self.dtype.itemsize
        before, after = (self._span(condition(self.rank, self.size, blocks, root), blocks)
                         for condition in (self.collective.precondition, self.collective.postcondition))  # fmt: skip
        self.expected = self._values(after, self._result_table())
        self.content = self._values(before, self._table(self.rank if self.collective.reduces else 0))
        self.shared = before is not None and after is not None and (in_place or self.collective is collectives.BCAST)
        self._place(before, after)
        self.arguments = self._arguments()

    def _span(self, part: Part | None, blocks: int) -> slice | None:
        if part is None:
            return None
        share = self.count // blocks
        return slice(part.first * share, (part.first + part.count) * share)

    # data

    def _table(self, seed: int) -> Array:
        """One period of a vector, as integers."""
        random = np.random.default_rng(seed)
        if not self.collective.reduces:
            return random.integers(0, 127, _PERIOD)
        if self.op == "prod":
            return np.where(random.integers(0, 8, _PERIOD) == 0, 2, 1)
        # truth values are 0 and 1: on one rank MPI leaves others as they are
        return random.integers(0, 2 if self.op in ("land", "lor", "lxor") else 3, _PERIOD)

    def _result_table(self) -> Array:
        if not self.collective.reduces:
            return self._table(0)
        ufunc = operation(self.op)[1]
        table: Array = ufunc.reduce([self._table(rank) for rank in range(self.size)])
        return table

    def _values(self, span: slice | None, table: Array) -> Any:
        if span is None:
            return None
        values = np.empty(span.stop - span.start, self.dtype)  # an array of its own, as most callers have
        values[:] = np.resize(np.roll(table, -(span.start % _PERIOD)), values.size)
        return self.module.asarray(values)

    # buffers

    def _place(self, before: slice | None, after: slice | None) -> None:
        """Make the arrays of input and result; in place both are views of `memory`."""
        self.input, self.result = self.content, None
        if self.shared:
            self.memory = self.module.empty(self.count, self.dtype)
            moved = self.collective is collectives.REDUCE_SCATTER  # its result goes to the front
            self.input = self.memory[before]
            assert after is not None
            self.result = self.memory[: after.stop - after.start] if moved else self.memory[after]
        elif self.expected is not None:
            self.result = self.module.empty_like(self.expected)
            if self.collective is collectives.BCAST:
                self.memory = self.result

    def _arguments(self) -> list[Any]:
        if self.collective is collectives.BCAST:
            return [self.memory, self.root]
        buffers = [self.input if self.content is not None else None, self.result]
        if self.shared:
            scatter = self.collective is collectives.SCATTER
            buffers = [self.memory, MPI.IN_PLACE] if scatter else [MPI.IN_PLACE, self.memory]
        buffers += [operation(self.op)[0]] if self.collective.reduces else []
        return buffers + ([self.root] if self.collective.rooted else [])

    # measuring

    def prepare(self, poison: bool) -> None:
        """Make the buffers ready for a call; poison: no element of the result is what it should become."""
        if poison and self.result is not None:
            self.module.invert(_bytes(self.expected), out=_bytes(self.result))
        if self.shared and self.content is not None:
            self.input[...] = self.content
        synchronize(self.module)

    def wrong(self) -> int:
        """How many elements of this rank's result differ from what they should be."""
        if self.result is None:
            return 0
        if self.dtype.char in "gG":  # of whose bytes some mean nothing
            return int((self.result != self.expected).sum())
        differs = _bytes(self.result) != _bytes(self.expected)
        return int(differs.reshape(-1, self.dtype.itemsize).any(axis=1).sum())

    def call(self, algorithm: str, segment_bytes: int | None = None) -> Callable[[], object]:
        """A function that makes the call. native: mpi4py's plain method wherever MPI takes the data."""
        method = METHODS.get(self.collective.name, self.collective.name.capitalize())
        if algorithm == "native" and self.module is np and self.dtype.name not in HALF:
            plain = native_method(self.comm, method)
            return lambda: plain(*self.arguments)
        served = getattr(self.comm, method)
        asked = None if algorithm == "auto" else algorithm
        if self.module is np:
            return lambda: served(*self.arguments, algorithm=asked, segment_bytes=segment_bytes)

        def on_device() -> None:
            served(*self.arguments, algorithm=asked, segment_bytes=segment_bytes)
            synchronize(self.module)

        return on_device

    def explain(self, algorithm: str, segment_bytes: int | None = None) -> Any:
        """What `Communicator.explain` says of the call."""
        buffers = self.arguments[: 1 if self.collective is collectives.BCAST else 2]
        return self.comm.explain(self.collective.name, *buffers, op=operation(self.op)[0], root=self.root,
                                 algorithm=None if algorithm == "auto" else algorithm, segment_bytes=segment_bytes)  # fmt: skip

    def rates(self, seconds: float) -> tuple[float, float]:
        """(algbw, busbw) in GB/s, as nccl-tests defines them."""
        algbw = self.nbytes / seconds / 1e9
        return algbw, algbw * lower_bound(self.collective.name, self.size).sent


def _bytes(array: Any) -> Any:
    return array.view("uint8")
