"""A collective on data with a known exact result, which benchmarks run and check."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from mpi4py import MPI

from .. import collectives
from ..algorithms import NATIVE
from ..buffers import HALF, PREDEFINED, Operand, ops
from ..errors import ArgumentError, did_you_mean
from ..execute import Context, native_method
from ..schedule import Part, offsets
from ..select import Choice, Query, choose
from ..simulate import lower_bound
from ..support.arrays import synchronize

Array = np.ndarray[Any, np.dtype[Any]]

#: mpi4py's methods for blocks of any size
UNEVEN = {
    "reduce_scatter": "Reduce_scatter",
    "allgather": "Allgatherv",
    "gather": "Gatherv",
    "scatter": "Scatterv",
}
#: how a vector is divided among ranks: evenly, mostly to one rank, or at random
SPLITS = ("even", "one", "random")


def operation(name: str) -> tuple[MPI.Op, Any]:
    """(MPI op, ufunc) of a predefined operation. Raises ArgumentError."""
    if name not in PREDEFINED:
        hint = did_you_mean(name, PREDEFINED)
        names = ", ".join(PREDEFINED)
        raise ArgumentError(f"unknown operation {name!r}; there are: {names}{hint}")
    op, ufunc = PREDEFINED[name]
    return op, getattr(np, ufunc)


def method_of(collective: str, split: str = "even") -> str:
    """The name of mpi4py's method. Raises ArgumentError where blocks cannot be uneven."""
    if split == "even":
        return {"reduce_scatter": "Reduce_scatter_block"}.get(collective, collective.capitalize())
    if collective not in UNEVEN:
        raise ArgumentError(
            f"{collective} has no blocks of ranks that could be uneven; these have:"
            f" {', '.join(UNEVEN)}"
        )
    return UNEVEN[collective]


def split_counts(split: str, count: int, size: int) -> list[int]:
    """The elements of each rank's block, of a vector of `count`. Raises ArgumentError.

    one: the rank in the middle has three quarters. random: shares between nothing and twice the
    mean, the same in each run.

    >>> split_counts("even", 12, 4), split_counts("one", 12, 4)
    ([3, 3, 3, 3], [1, 1, 9, 1])
    """
    if split not in SPLITS:
        raise ArgumentError(f"unknown split {split!r}; there are: {', '.join(SPLITS)}")
    weights = np.ones(size)
    if split == "one":
        weights[size // 2] = 3 * (size - 1) or 1
    elif split == "random":
        weights = np.random.default_rng(size).random(size)
    edges = np.rint(np.cumsum(weights) / weights.sum() * count).astype(int)
    return [int(share) for share in np.diff(edges, prepend=0)]


class Workload:
    """A collective on `count` elements: buffers, arguments and expected result of this rank.

    Data are small integers, so that the result is exact in every type and order. split: of
    `SPLITS`, for blocks of ranks; with another than even the method is that with counts.
    """

    #: data repeats after this many elements; a prime, so that a block in the wrong place is wrong
    period = 1021

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
        split: str = "even",
    ) -> None:
        self.comm = comm
        self.collective = collectives.find(collective)
        self.dtype = dtype
        self.module = module
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()
        self.root = root
        self.op = op
        if self.collective.reduces:
            ops.check_op(operation(op)[0], Operand(None, ops.mpi_type(dtype), dtype, 0))
        if not 0 <= root < self.size:
            raise ArgumentError(
                f"root {root} is out of range, there are ranks 0 to {self.size - 1}"
            )
        self.split = split
        #: the name of mpi4py's method
        self.method = method_of(self.collective.name, split)
        blocks = self.size if self.collective.blocks_of_ranks else 1
        #: elements of the whole vector
        self.count = max(1, count // blocks) * blocks
        self.counts = split_counts(split, self.count, blocks)
        spec = self.collective
        has_data = spec is not collectives.BARRIER
        self.nbytes = self.count * self.dtype.itemsize if has_data else 0
        parts = [
            condition(self.rank, self.size, blocks, root) if has_data else None
            for condition in (spec.precondition, spec.postcondition)
        ]
        before, after = map(self._span, parts)
        #: the elements of the vector that this rank has at the end
        self.after = after
        if spec.personal:
            self.expected = self._exchanged()
        else:
            self.expected = self._values(after, self._result_table())
        seed = self.rank if spec.reduces or spec.personal else 0
        self.content = self._values(before, self._table(seed))
        has_both = before is not None and after is not None
        #: whether input and result are views of the same memory
        self.shared = has_both and (in_place or spec is collectives.BCAST)
        #: the receive buffer of the rank to which an exscan writes nothing
        self.untouched = None
        if spec is collectives.EXSCAN and after is None:
            self.untouched = module.zeros(self.count, dtype)
        self._place(before, after)
        self.arguments = self._arguments()

    def _span(self, part: Part | None) -> slice | None:
        if part is None:
            return None
        edges = offsets(self.counts)
        return slice(edges[part.first], edges[part.first + part.count])

    # data

    def _table(self, seed: int) -> Array:
        """One period of a vector, as integers."""
        random = np.random.default_rng(seed)
        if not self.collective.reduces:
            return random.integers(0, 127, self.period)
        if self.op == "prod":
            return np.where(random.integers(0, 8, self.period) == 0, 2, 1)
        # truth values are 0 and 1: on one rank MPI leaves others as they are
        return random.integers(0, 2 if self.op in ("land", "lor", "lxor") else 3, self.period)

    def _result_table(self) -> Array:
        if not self.collective.reduces:
            return self._table(0)
        ufunc = operation(self.op)[1]
        terms = self.collective.contributors(self.rank, 0, self.size, 1)
        table: Array = ufunc.reduce([self._table(rank) for rank in terms or (0,)])
        return table

    def _exchanged(self) -> Any:
        """This rank's block of each rank."""
        share = self.count // self.size
        block = slice(self.rank * share, (self.rank + 1) * share)
        blocks = [self._values(block, self._table(rank)) for rank in range(self.size)]
        return self.module.concatenate(blocks)

    def _values(self, span: slice | None, table: Array) -> Any:
        if span is None:
            return None
        # not a view: most callers have arrays of their own
        values = np.empty(span.stop - span.start, self.dtype)
        values[:] = np.resize(np.roll(table, -(span.start % self.period)), values.size)
        return self.module.asarray(values)

    # buffers

    def _place(self, before: slice | None, after: slice | None) -> None:
        """Allocate input and result; in place both are views of `memory`."""
        self.input = self.content
        self.result = None
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
        if self.collective is collectives.BARRIER:
            return []
        if self.collective is collectives.BCAST:
            return [self.memory, self.root]
        buffers = [self.input if self.content is not None else None, self.result]
        if self.untouched is not None:
            buffers[1] = self.untouched
        if self.shared:
            scatter = self.collective is collectives.SCATTER
            buffers = [self.memory, MPI.IN_PLACE] if scatter else [MPI.IN_PLACE, self.memory]
        if self.split != "even":
            buffers = self._counted(buffers)
        buffers += [operation(self.op)[0]] if self.collective.reduces else []
        return buffers + ([self.root] if self.collective.rooted else [])

    def _counted(self, buffers: list[Any]) -> list[Any]:
        """The buffers with the counts of all blocks, beside the vector or as an argument."""
        if self.collective is collectives.REDUCE_SCATTER:
            return [*buffers, self.counts]
        whole = 0 if self.collective is collectives.SCATTER else 1
        if not self.collective.rooted or self.rank == self.root:
            buffers[whole] = [buffers[whole], self.counts]
        return buffers

    # measuring

    def prepare(self, poison: bool) -> None:
        """Fill the buffers before a call. poison: make every element of the result wrong."""
        if poison and self.result is not None:
            self.module.invert(_bytes(self.expected), out=_bytes(self.result))
        if self.shared and self.content is not None:
            self.input[...] = self.content
        synchronize(self.module)

    def wrong(self) -> int:
        """The number of wrong elements of this rank's result."""
        if self.untouched is not None:
            return int(self.untouched.astype(bool).sum())
        if self.result is None:
            return 0
        if self.dtype.char in "gG":  # these types have padding bytes
            return int((self.result != self.expected).sum())
        differs = _bytes(self.result) != _bytes(self.expected)
        return int(differs.reshape(-1, self.dtype.itemsize).any(axis=1).sum())

    def call(
        self, algorithm: str, segment_bytes: int | None = None, compression: str | None = None
    ) -> Callable[[], object] | None:
        """A function that makes the call. native: mpi4py's plain method if MPI takes the data.

        None: MPI's own call cannot serve it.
        """
        if algorithm == NATIVE and self.module is np and self.dtype.name not in HALF:
            plain = native_method(self.comm, self.method)
            return lambda: plain(*self.arguments)
        if algorithm == NATIVE:
            try:
                self.served_by(NATIVE)
            except ArgumentError:
                return None
        method = getattr(self.comm, self.method)
        word = None if algorithm == "auto" else algorithm
        named = {"algorithm": word, "segment_bytes": segment_bytes}
        if compression:
            named["compression"] = compression
        if self.module is np:
            return lambda: method(*self.arguments, **named)

        def on_device() -> None:
            method(*self.arguments, **named)
            synchronize(self.module)

        return on_device

    def served_by(
        self, algorithm: str, segment_bytes: int | None = None, compression: str | None = None
    ) -> Choice:
        """What serves the call: the algorithm, the segment size, and whether it is compressed."""
        name = self.collective.name
        word = None if algorithm == "auto" else algorithm
        # `explain` does not cover uneven blocks; of rooted calls only the root knows all bytes
        if self.split != "even":
            nbytes = None if self.collective.rooted else self.nbytes
            topology = Context.of(self.comm).topology
            query = Query(name, topology, nbytes, compression=compression or "")
            return choose(query, word, segment_bytes)
        buffers = self.arguments[: 1 if self.collective is collectives.BCAST else 2]
        said = self.comm.explain(
            name,
            *buffers,
            op=operation(self.op)[0],
            root=self.root,
            algorithm=word,
            segment_bytes=segment_bytes,
            compression=compression,
        )
        return Choice(said.algorithm, said.segment_bytes, said.reason, bool(said.compression))

    def rates(self, seconds: float) -> tuple[float, float]:
        """(algbw, busbw) in GB/s, as nccl-tests defines them.

        With uneven blocks busbw is that of the busiest rank.
        """
        algbw = self.nbytes / seconds / 1e9
        return algbw, algbw * least_share(self.collective.name, self.size, self.split)


def least_share(collective: str, size: int, split: str) -> float:
    """The share of the vector that the busiest rank must send or receive."""
    if split == "even":
        return lower_bound(collective, size).sent
    counts = split_counts(split, 1 << 20, size)
    # what the root 0 keeps, or the rank with the smallest block
    kept = counts[0] if collectives.find(collective).rooted else min(counts)
    return 1 - kept / sum(counts)


def _bytes(array: Any) -> Any:
    return array.view("uint8")
