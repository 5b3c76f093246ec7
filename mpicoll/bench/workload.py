"""A collective on data with a known exact result, which benchmarks run and check."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from mpi4py import MPI

from .. import collectives
from ..buffers import HALF, PREDEFINED
from ..errors import ArgumentError, did_you_mean
from ..execute import Context, native_method
from ..schedule import Part, offsets
from ..select import Query, choose
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
#: how a vector is dealt out to ranks: alike; most of it to one; at random
SPLITS = ("even", "one", "random")
#: data repeats after this many elements; a prime, so that no block that went astray looks like the
#: right one
_PERIOD = 1021


def operation(name: str) -> tuple[MPI.Op, Any]:
    """(MPI op, ufunc) of a predefined operation. Raises ArgumentError."""
    if name not in PREDEFINED:
        raise ArgumentError(
            f"unknown operation {name!r}; there are:"
            f" {', '.join(PREDEFINED)}{did_you_mean(name, PREDEFINED)}"
        )
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
    mean, the same each time.

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
    """One collective on `count` elements: buffers, arguments and expected result of this rank.

    Data are small integers, so that the result is exact in every type and order. Attributes: count
    and nbytes of the whole vector; method: mpi4py's, and its arguments. split: of `SPLITS`, for
    blocks of ranks; other than even it is the method that takes counts.
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
        if not 0 <= root < self.size:
            raise ArgumentError(
                f"root {root} is out of range, there are ranks 0 to {self.size - 1}"
            )
        self.split = split
        self.method = method_of(self.collective.name, split)
        blocks = self.size if self.collective.blocks_of_ranks else 1
        self.count = max(1, count // blocks) * blocks
        self.nbytes = self.count * self.dtype.itemsize
        self.counts = split_counts(split, self.count, blocks)
        before, after = (
            self._span(condition(self.rank, self.size, blocks, root))
            for condition in (self.collective.precondition, self.collective.postcondition)
        )
        self.expected = (
            self._exchanged()
            if self.collective.personal
            else self._values(after, self._result_table())
        )
        seed = self.rank if self.collective.reduces or self.collective.personal else 0
        self.content = self._values(before, self._table(seed))
        self.shared = (
            before is not None
            and after is not None
            and (in_place or self.collective is collectives.BCAST)
        )
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

    def _exchanged(self) -> Any:
        """This rank's block of each rank."""
        share = self.count // self.size
        block = slice(self.rank * share, (self.rank + 1) * share)
        blocks = self.module.concatenate(
            [self._values(block, self._table(rank)) for rank in range(self.size)]
        )
        return blocks

    def _values(self, span: slice | None, table: Array) -> Any:
        if span is None:
            return None
        # an array of its own, as most callers have
        values = np.empty(span.stop - span.start, self.dtype)
        values[:] = np.resize(np.roll(table, -(span.start % _PERIOD)), values.size)
        return self.module.asarray(values)

    # buffers

    def _place(self, before: slice | None, after: slice | None) -> None:
        """Make the arrays of input and result; in place both are views of `memory`."""
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
        if self.collective is collectives.BCAST:
            return [self.memory, self.root]
        buffers = [self.input if self.content is not None else None, self.result]
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
        """How many elements of this rank's result differ from what they should be."""
        if self.result is None:
            return 0
        if self.dtype.char in "gG":  # of whose bytes some mean nothing
            return int((self.result != self.expected).sum())
        differs = _bytes(self.result) != _bytes(self.expected)
        return int(differs.reshape(-1, self.dtype.itemsize).any(axis=1).sum())

    def call(self, algorithm: str, segment_bytes: int | None = None) -> Callable[[], object]:
        """A function that makes the call. native: mpi4py's plain method if MPI takes the data."""
        if algorithm == "native" and self.module is np and self.dtype.name not in HALF:
            plain = native_method(self.comm, self.method)
            return lambda: plain(*self.arguments)
        served = getattr(self.comm, self.method)
        asked = None if algorithm == "auto" else algorithm
        if self.module is np:
            return lambda: served(*self.arguments, algorithm=asked, segment_bytes=segment_bytes)

        def on_device() -> None:
            served(*self.arguments, algorithm=asked, segment_bytes=segment_bytes)
            synchronize(self.module)

        return on_device

    def served_by(self, algorithm: str, segment_bytes: int | None = None) -> tuple[str, int | None]:
        """The algorithm that serves the call, and the pieces that its messages are cut into."""
        name = self.collective.name
        asked = None if algorithm == "auto" else algorithm
        # `explain` does not cover these; only a root knows the bytes of all
        if self.split != "even":
            nbytes = None if self.collective.rooted else self.nbytes
            return choose(
                Query(name, Context.of(self.comm).topology, nbytes), asked, segment_bytes
            )[:2]
        buffers = self.arguments[: 1 if self.collective is collectives.BCAST else 2]
        said = self.comm.explain(
            name,
            *buffers,
            op=operation(self.op)[0],
            root=self.root,
            algorithm=asked,
            segment_bytes=segment_bytes,
        )
        return said.algorithm, said.segment_bytes

    def rates(self, seconds: float) -> tuple[float, float]:
        """(algbw, busbw) in GB/s, as nccl-tests defines them.

        Of uneven blocks busbw is that of the busiest rank.
        """
        algbw = self.nbytes / seconds / 1e9
        return algbw, algbw * least_share(self.collective.name, self.size, self.split)


def least_share(collective: str, size: int, split: str) -> float:
    """How much of the vector the busiest rank must send or receive, as a share of it."""
    if split == "even":
        return lower_bound(collective, size).sent
    counts = split_counts(split, 1 << 20, size)
    # by the root 0, or by who has least
    kept = counts[0] if collectives.find(collective).rooted else min(counts)
    return 1 - kept / sum(counts)


def _bytes(array: Any) -> Any:
    return array.view("uint8")
