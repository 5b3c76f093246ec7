"""The registry: every algorithm by its collective and name, with its declared properties.

Generators live at ``mpicoll.algorithms.<collective>.<name>``. The verifier proves the properties
(`ordered`, `blocks`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from inspect import signature
from itertools import chain
from types import ModuleType
from typing import Any, Literal, NamedTuple, TypeAlias, Union

from .. import collectives
from ..errors import ArgumentError, did_you_mean
from ..schedule import Generator, Operation, compressed, joined, renamed, rounds
from ..graphs import NEIGHBORHOODS, Neighborhood, NeighborhoodName
from . import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    bcast,
    exscan,
    gather,
    neighborhood,
    reduce,
    reduce_scatter,
    scan,
    scatter,
)
from .names import AlgorithmName
from .patterns import NodeMap, node_members

#: of a value, in a compressed call: as it is contributed, and as a part of the sum
MOST_QUANTISATIONS = 2
#: of a pipeline that a program registers: each number of segments is proved at its first use
MOST_OWN_SEGMENTS = 128
#: MPI's own call, a candidate for every collective
NATIVE = "native"
#: only where a call or the environment names it
NCCL = "nccl"
#: names without a schedule
LIBRARIES = {NATIVE: "MPI's own call", NCCL: "NVIDIA's NCCL"}
_OF_NCCL = ("allreduce", "reduce_scatter", "allgather", "bcast", "reduce")


#: a collective of all ranks, or one of neighbours
AnyCollective: TypeAlias = Union[collectives.CollectiveName, NeighborhoodName]
Crossing: TypeAlias = Callable[[int, int], Callable[[int], bool]]


class Algorithm(NamedTuple):
    """A registered algorithm.

    Attributes
    ----------
    collective, name : str
        The key in the registry.
    generator : callable
        generator(rank, size[, root][, blocks][, nodes]) yields the rounds of a rank.
    ordered : bool
        Operands stay in rank order, so that op need not be commutative.
    canonical : bool
        Every element is added in the canonical order (`patterns.fold_tree`): all algorithms of this
        class have the same bits.
    blocks : callable, "segments" or None
        The number of blocks of the vector, as a function of size; "segments": free; None: one per
        rank.
    neighbours : bool
        Ranks exchange messages with rank - 1 and rank + 1 only, which are best on the same node.
    cuttable : bool
        Messages may be cut into pieces that overtake the ends of rounds (`verify.flows_in_pieces`);
        never with a `Write`.
    read_late : bool
        The receiver may read messages in the sender's memory later (`verify.flows_read_late`).
    compressible : bool
        No value is quantised more than `MOST_QUANTISATIONS` times with codes in the messages.
    equal_blocks : bool
        Of an alltoall: all blocks must have one size, as they pass through other ranks.
    study : bool
        For study and for unusual networks: served where named, never chosen or tuned.
    source : str
        Of an algorithm that a program registers: a hash of its generator's source. Calls prove the
        schedules that its registration has not.
    """

    collective: collectives.CollectiveName
    name: str
    generator: Generator
    ordered: bool = False
    blocks: Callable[..., int] | Literal["segments"] | None = None
    neighbours: bool = False
    cuttable: bool = True
    read_late: bool = True
    equal_blocks: bool = False
    canonical: bool = False
    compressible: bool = False
    study: bool = False
    source: str = ""

    @property
    def node_aware(self) -> bool:
        """Whether the generator takes the node of each rank."""
        return "nodes" in signature(self.generator).parameters

    def vector_blocks(
        self, size: int, segments: int = 1, nodes: Sequence[int] | None = None
    ) -> int:
        """The number of blocks of the vector at `size` ranks. segments: of pipelines."""
        if self.blocks is None:
            return size
        if self.blocks == "segments":
            return min(segments, MOST_OWN_SEGMENTS) if self.source else segments
        return self.blocks(size, nodes) if self.node_aware else self.blocks(size)

    def placed(self, nodes: tuple[int, ...] | None, compressed: bool = False) -> Generator:
        """The generator for ranks on these nodes (the node of each rank; None: unknown)."""
        if compressed:
            return _in_codes(self, nodes)
        return _placed(self, nodes) if nodes else self.generator


def in_codes(generator: Generator, crossing: Crossing = lambda rank, size: _anyone) -> Generator:
    """The generator with codes in its messages.

    crossing: crossing(rank, size) is a function of a peer: whether messages to it and from it have
    codes.
    """

    def coded(rank: int, size: int, *root: int, blocks: int) -> Iterator[tuple[Operation, ...]]:
        steps = rounds(generator, rank, size, root[0] if root else None, blocks)
        return compressed(steps, blocks, crossing(rank, size))

    return coded


def _anyone(peer: int) -> bool:
    return True


@lru_cache(maxsize=1024)
def _in_codes(algorithm: Algorithm, nodes: tuple[int, ...] | None) -> Generator:
    """Of an algorithm that knows nodes, with codes in the messages between them alone."""
    generator = _placed(algorithm, nodes) if nodes else algorithm.generator
    if "compressed" in signature(algorithm.generator).parameters:
        generator = partial(generator, compressed=True)
    if not algorithm.node_aware:
        return in_codes(generator)

    def crossing(rank: int, size: int) -> Callable[[int], bool]:
        node_of = NodeMap.of(size, nodes).node_of
        return lambda peer: node_of[peer] != node_of[rank]

    return in_codes(generator, crossing)


@lru_cache(maxsize=1024)
def _placed(algorithm: Algorithm, nodes: tuple[int, ...]) -> Generator:
    if algorithm.node_aware:
        return partial(algorithm.generator, nodes=nodes)
    if not algorithm.neighbours:
        return algorithm.generator
    order = list(chain.from_iterable(node_members(len(nodes), nodes)))  # node by node
    return algorithm.generator if order == list(range(len(nodes))) else _in_order(algorithm, order)


def _in_order(algorithm: Algorithm, order: list[int]) -> Generator:
    """The generator with its ranks in this order, so that it enters and leaves each node once."""
    collective = collectives.find(algorithm.collective)
    place_of = {rank: place for place, rank in enumerate(order)}

    def blocks_of(first: int, count: int) -> list[tuple[int, int]]:
        return joined((order[place % len(order)], 1) for place in range(first, first + count))

    block = blocks_of if collective.blocks_of_ranks else None

    def reordered(
        rank: int, size: int, *root: int, **blocks: int
    ) -> Iterator[tuple[Operation, ...]]:
        steps = algorithm.generator(place_of[rank], size, *(place_of[r] for r in root), **blocks)
        return renamed(steps, peer=lambda place: order[place % size], block=block)

    reordered.__signature__ = signature(algorithm.generator)  # type: ignore[attr-defined]
    return reordered


_REGISTRY: dict[str, dict[str, Algorithm]] = {
    name: {} for name in (*collectives.COLLECTIVES, *NEIGHBORHOODS)
}


def meaning_of(name: str) -> collectives.Collective | Neighborhood:
    """The collective of that name, also one of neighbours; ArgumentError where there is none."""
    if name in NEIGHBORHOODS:
        return NEIGHBORHOODS[name]
    return collectives.find(name)


def add(algorithm: Algorithm) -> None:
    """Put an algorithm into the registry; ArgumentError where its name is in use."""
    entries = _REGISTRY[meaning_of(algorithm.collective).name]
    if algorithm.name in (*entries, *LIBRARIES):
        raise ArgumentError(f"{algorithm.collective} already has an algorithm {algorithm.name!r}")
    entries[algorithm.name] = algorithm


def list_algorithms(collective: AnyCollective) -> list[AlgorithmName]:
    """The names that `algorithm=` takes for this collective, with `native`.

    `nccl`, which serves device memory only, is not among them.

    Parameters
    ----------
    collective : str
        `allreduce`, `reduce_scatter`, `allgather`, `alltoall`, `bcast`, `reduce`, `scatter`,
        `gather`, `scan`, `exscan` or `barrier`; or `neighbor_allgather`, `neighbor_alltoall`.

    Raises
    ------
    ArgumentError
        There is no such collective; the message lists them.
    """
    entries = _REGISTRY[meaning_of(collective).name]
    return [AlgorithmName(name) for name in (*entries, NATIVE)]


def require(collective: AnyCollective, name: str) -> None:
    """Raise ArgumentError unless `algorithm=` takes this name for the collective."""
    if name not in library_names(collective):
        find(collective, name)


def library_names(collective: AnyCollective) -> list[str]:
    """The `LIBRARIES` that have the collective."""
    return [NATIVE, NCCL] if collective in _OF_NCCL else [NATIVE]


def registered(collective: AnyCollective) -> list[Algorithm]:
    """The algorithms of a collective with a schedule."""
    return list(_REGISTRY[meaning_of(collective).name].values())


def proposed(collective: AnyCollective) -> list[Algorithm]:
    """The algorithms to choose from and to tune: `registered` without those for study."""
    return [algorithm for algorithm in registered(collective) if not algorithm.study]


def find(collective: AnyCollective, name: str) -> Algorithm:
    """The registered algorithm of that name.

    Raises
    ------
    ArgumentError
        There is no such collective, or algorithm (`LIBRARIES` have no schedules); the message lists
        the algorithms.
    """
    entries = _REGISTRY[meaning_of(collective).name]
    if name == NCCL:
        has = f"of MPI's collectives it has {', '.join(_OF_NCCL)}"
        raise ArgumentError(f"nccl is {LIBRARIES[NCCL]}: it has no schedules, and {has}")
    if name not in entries:
        names = ", ".join(list_algorithms(collective))
        hint = did_you_mean(name, [*entries, *LIBRARIES])
        raise ArgumentError(
            f"{collective} has no algorithm {name!r}; choose from: {names}{hint}"
        )
    return entries[name]


def source_of(collective: AnyCollective, name: str) -> str:
    """The `source` of an algorithm; "" for mpicoll's own, and where there is none of that name."""
    algorithm = _REGISTRY[collective].get(name)
    return algorithm.source if algorithm else ""


def declared(module: ModuleType, collective: Any) -> Iterator[Algorithm]:
    """The algorithms in `ALGORITHMS` of a module."""
    for name, traits in module.ALGORITHMS.items():
        yield Algorithm(collective, name, getattr(module, name), **traits)


for _name in NEIGHBORHOODS:
    for _algorithm in declared(neighborhood, _name):
        add(_algorithm)
for _module in (
    allreduce, reduce_scatter, allgather, alltoall, bcast, reduce, scatter, gather, scan, exscan,
    barrier,
):  # fmt: skip
    for _algorithm in declared(_module, _module.__name__.rpartition(".")[2]):
        add(_algorithm)
