"""The registry: every algorithm by its collective and word, with what is declared about it.

Generators live at ``mpicoll.algorithms.<collective>.<word>``. What is declared here (`ordered`, `blocks`) is proved by
the verifier.
"""

from typing import Callable, NamedTuple

from .. import collectives
from ..errors import ArgumentError
from . import allgather, allreduce, bcast, gather, reduce, reduce_scatter, scatter

#: MPI's own call; a candidate for every collective, and no schedule
NATIVE = "native"


class Algorithm(NamedTuple):
    """A registered algorithm. `ordered`: operands stay in rank order, so that op need not be commutative.

    `blocks`: number of blocks its vector has, as a function of size; None: one per rank; "segments": free.
    """

    collective: str
    name: str
    generator: Callable
    ordered: bool = False
    blocks: object = None

    def vector_blocks(self, size, segments=1):
        """How many blocks the vector has at `size` ranks, where pipelines get `segments`."""
        if self.blocks == "segments":
            return segments
        return self.blocks(size) if self.blocks else size


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
