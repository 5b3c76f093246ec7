"""The registry: every algorithm by its collective and word, with what is declared about it.

Generators live at ``mpicoll.algorithms.<collective>.<word>``. What is declared here (`ordered`, `blocks`) is proved by
the verifier.
"""

from functools import lru_cache, partial
from inspect import signature
from typing import Callable, NamedTuple

from .. import collectives
from ..errors import ArgumentError
from ..schedule import joined, renamed
from . import allgather, allreduce, bcast, gather, reduce, reduce_scatter, scatter

#: MPI's own call; a candidate for every collective, and no schedule
NATIVE = "native"


class Algorithm(NamedTuple):
    """A registered algorithm. `ordered`: operands stay in rank order, so that op need not be commutative.

    `blocks`: number of blocks its vector has, as a function of size; None: one per rank; "segments": free.
    `neighbours`: it talks to the ranks beside it only, so these had better be on the same node. `cuttable`: its messages may
    be cut into pieces that overtake the rounds' ends (`verify.flows_in_pieces`).
    """

    collective: str
    name: str
    generator: Callable
    ordered: bool = False
    blocks: object = None
    neighbours: bool = False
    cuttable: bool = True

    @property
    def node_aware(self):
        """Whether the generator asks which node each rank is on."""
        return "nodes" in signature(self.generator).parameters

    def vector_blocks(self, size, segments=1, nodes=None):
        """How many blocks the vector has at `size` ranks, where pipelines get `segments`."""
        if self.blocks == "segments":
            return segments
        if self.blocks is None:
            return size
        return self.blocks(size, nodes) if self.node_aware else self.blocks(size)

    def placed(self, nodes):
        """The generator for ranks on these nodes (a tuple: the node of each rank; None: unknown)."""
        return _placed(self, nodes) if nodes else self.generator


@lru_cache(maxsize=1024)
def _placed(algorithm, nodes):
    if algorithm.node_aware:
        return partial(algorithm.generator, nodes=nodes)
    order = sorted(range(len(nodes)), key=lambda rank: nodes.index(nodes[rank]))  # node by node, by their lowest ranks
    if not algorithm.neighbours or order == list(range(len(nodes))):
        return algorithm.generator
    return _in_order(algorithm, order)


def _in_order(algorithm, order):
    """Let the ranks take the places that `order` gives them, so that each node is entered and left once."""
    collective, place_of = collectives.find(algorithm.collective), {rank: place for place, rank in enumerate(order)}

    def blocks_of(first, count):
        return joined((order[place % len(order)], 1) for place in range(first, first + count))

    def reordered(rank, size, *root, **blocks):
        steps = algorithm.generator(place_of[rank], size, *(place_of[r] for r in root), **blocks)
        return renamed(steps, peer=lambda place: order[place % size],
                       block=blocks_of if collective.blocks_of_ranks else None)  # fmt: skip

    reordered.__signature__ = signature(algorithm.generator)
    return reordered


_REGISTRY = {name: {} for name in collectives.COLLECTIVES}


def add(algorithm):
    """Put an algorithm into the registry; a word in use is an error."""
    collectives.find(algorithm.collective)
    words = _REGISTRY[algorithm.collective]
    if algorithm.name in (*words, NATIVE):
        raise ArgumentError(f"{algorithm.collective} already has an algorithm {algorithm.name!r}")
    words[algorithm.name] = algorithm


def list_algorithms(collective):
    """The words that `algorithm=` takes for this collective, `native` among them.

    Raises ArgumentError for an unknown collective.
    """
    return [*_REGISTRY[collectives.find(collective).name], NATIVE]


def registered(collective):
    """The algorithms of a collective that have a schedule."""
    return list(_REGISTRY[collectives.find(collective).name].values())


def find(collective, name):
    """The registered algorithm, or ArgumentError that lists those there are."""
    words = _REGISTRY[collectives.find(collective).name]
    if name not in words:
        raise ArgumentError(f"{collective} has no algorithm {name!r}; choose from: {', '.join(list_algorithms(collective))}")
    return words[name]


def declared(module, collective):
    """The algorithms a module of this package declares in its `WORDS`."""
    for name, traits in module.WORDS.items():
        yield Algorithm(collective, name, getattr(module, name), **traits)


for _module in (allreduce, reduce_scatter, allgather, bcast, reduce, scatter, gather):
    for _algorithm in declared(_module, _module.__name__.rpartition(".")[2]):
        add(_algorithm)
