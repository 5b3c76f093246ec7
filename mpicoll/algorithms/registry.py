"""The registry: every algorithm by its collective and name, with what is declared about it.

Generators live at ``mpicoll.algorithms.<collective>.<name>``. What is declared here (`ordered`, `blocks`) is proved by
the verifier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from inspect import signature
from itertools import chain
from types import ModuleType
from typing import Any, Literal, NamedTuple

from .. import collectives
from ..errors import ArgumentError, did_you_mean
from ..schedule import Generator, Operation, joined, renamed
from . import allgather, allreduce, alltoall, bcast, gather, reduce, reduce_scatter, scatter
from .names import AlgorithmName
from .patterns import node_members

#: what serves calls without a schedule: MPI's own call, a candidate for every collective, and NCCL, where it is asked for
NATIVE, NCCL = "native", "nccl"
LIBRARIES = {NATIVE: "MPI's own call", NCCL: "NVIDIA's NCCL"}
_OF_NCCL = ("allreduce", "reduce_scatter", "allgather", "bcast", "reduce")


class Algorithm(NamedTuple):
    """A registered algorithm.

    Attributes
    ----------
    collective, name : str
        What it is called by.
    generator : callable
        generator(rank, size[, root][, blocks][, nodes]) gives the rounds of a rank.
    ordered : bool
        Operands stay in rank order, so that op need not be commutative.
    canonical : bool
        Every element is added in the canonical order (`patterns.fold_tree`): the same bits as all others of this class.
    blocks : callable, "segments" or None
        How many blocks its vector has, as a function of size; "segments": free; None: one per rank.
    neighbours : bool
        It talks to the ranks beside it only, so these had better be on the same node.
    cuttable : bool
        Its messages may be cut into pieces that overtake the rounds' ends (`verify.flows_in_pieces`); never where it writes.
    read_late : bool
        Its messages may be read where they lie, when the receiver comes to it (`verify.flows_read_late`).
    equal_blocks : bool
        Of an alltoall: all blocks must have one size, as they pass through the hands of other ranks.
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

    @property
    def node_aware(self) -> bool:
        """Whether the generator asks which node each rank is on."""
        return "nodes" in signature(self.generator).parameters

    def vector_blocks(self, size: int, segments: int = 1, nodes: Sequence[int] | None = None) -> int:
        """How many blocks the vector has at `size` ranks, where pipelines get `segments`."""
        if self.blocks is None:
            return size
        if self.blocks == "segments":
            return segments
        return self.blocks(size, nodes) if self.node_aware else self.blocks(size)

    def placed(self, nodes: tuple[int, ...] | None) -> Generator:
        """The generator for ranks on these nodes (a tuple: the node of each rank; None: unknown)."""
        return _placed(self, nodes) if nodes else self.generator


@lru_cache(maxsize=1024)
def _placed(algorithm: Algorithm, nodes: tuple[int, ...]) -> Generator:
    if algorithm.node_aware:
        return partial(algorithm.generator, nodes=nodes)
    if not algorithm.neighbours:
        return algorithm.generator
    order = list(chain.from_iterable(node_members(len(nodes), nodes)))  # node by node, by their lowest ranks
    return algorithm.generator if order == list(range(len(nodes))) else _in_order(algorithm, order)


def _in_order(algorithm: Algorithm, order: list[int]) -> Generator:
    """Let the ranks take the places that `order` gives them, so that each node is entered and left once."""
    collective, place_of = collectives.find(algorithm.collective), {rank: place for place, rank in enumerate(order)}

    def blocks_of(first: int, count: int) -> list[tuple[int, int]]:
        return joined((order[place % len(order)], 1) for place in range(first, first + count))

    def reordered(rank: int, size: int, *root: int, **blocks: int) -> Iterator[tuple[Operation, ...]]:
        steps = algorithm.generator(place_of[rank], size, *(place_of[r] for r in root), **blocks)
        return renamed(steps, peer=lambda place: order[place % size],
                       block=blocks_of if collective.blocks_of_ranks else None)  # fmt: skip

    reordered.__signature__ = signature(algorithm.generator)  # type: ignore[attr-defined]
    return reordered


_REGISTRY: dict[str, dict[str, Algorithm]] = {name: {} for name in collectives.COLLECTIVES}


def add(algorithm: Algorithm) -> None:
    """Put an algorithm into the registry; ArgumentError where its name is in use."""
    known = _REGISTRY[collectives.find(algorithm.collective).name]
    if algorithm.name in (*known, *LIBRARIES):
        raise ArgumentError(f"{algorithm.collective} already has an algorithm {algorithm.name!r}")
    known[algorithm.name] = algorithm


def list_algorithms(collective: collectives.CollectiveName) -> list[AlgorithmName]:
    """The names that `algorithm=` takes for this collective, `native` among them; `nccl`, for device memory alone, is not.

    Parameters
    ----------
    collective : str
        `allreduce`, `reduce_scatter`, `allgather`, `alltoall`, `bcast`, `reduce`, `scatter` or `gather`.

    Raises
    ------
    ArgumentError
        There is no such collective; the message lists them.
    """
    return [AlgorithmName(name) for name in (*_REGISTRY[collectives.find(collective).name], NATIVE)]


def require(collective: collectives.CollectiveName, name: str) -> None:
    """Raise ArgumentError unless `algorithm=` takes this name for the collective."""
    if name not in library_names(collective):
        find(collective, name)


def library_names(collective: collectives.CollectiveName) -> list[str]:
    """Those of `LIBRARIES` that have the collective."""
    return [NATIVE, NCCL] if collective in _OF_NCCL else [NATIVE]


def registered(collective: collectives.CollectiveName) -> list[Algorithm]:
    """The algorithms of a collective that have a schedule."""
    return list(_REGISTRY[collectives.find(collective).name].values())


def find(collective: collectives.CollectiveName, name: str) -> Algorithm:
    """The registered algorithm of that name.

    Raises
    ------
    ArgumentError
        There is no such collective, or algorithm (`LIBRARIES` have no schedules); the message lists those there are.
    """
    known = _REGISTRY[collectives.find(collective).name]
    if name == NCCL:
        served = ", ".join(_OF_NCCL)
        raise ArgumentError(f"nccl is {LIBRARIES[NCCL]}: it has no schedules, and of MPI's collectives it has {served}")
    if name not in known:
        there = f"choose from: {', '.join(list_algorithms(collective))}{did_you_mean(name, [*known, *LIBRARIES])}"
        raise ArgumentError(f"{collective} has no algorithm {name!r}; {there}")
    return known[name]


def declared(module: ModuleType, collective: Any) -> Iterator[Algorithm]:
    """The algorithms a module of this package declares in its `ALGORITHMS`."""
    for name, traits in module.ALGORITHMS.items():
        yield Algorithm(collective, name, getattr(module, name), **traits)


for _module in (allreduce, reduce_scatter, allgather, alltoall, bcast, reduce, scatter, gather):
    for _algorithm in declared(_module, _module.__name__.rpartition(".")[2]):
        add(_algorithm)
