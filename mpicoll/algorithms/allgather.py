"""Allgather: rank r has block r, every rank gets all blocks.

m: bytes of the whole vector, p: ranks. All move (p-1)/p m; they differ in the number of rounds.
`own` is the place of the rank's block: the input, or the output of another algorithm.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..collectives import ALLGATHER
from ..schedule import (
    INPUT,
    OUTPUT,
    Copy,
    Input,
    Output,
    Part,
    Recv,
    Round,
    Send,
    Write,
    Written,
    folded,
)
from .patterns import LanesOfRanks, Nodes, circulant_steps, others

ALGORITHMS: dict[str, dict[str, Any]] = {
    "ring": {"neighbours": True, "compressible": True},
    "doubling": {"compressible": True},
    "circulant": {"compressible": True},
    "bruck": {"compressible": True},
    "direct": {"cuttable": False},
    "hierarchical": {"compressible": True},
}


def ring(rank: int, size: int, own: str = INPUT) -> Iterator[Round]:
    """Pass on what came last: p-1 rounds, neighbours only. Source: Chan et al., CCPE 19 (2007)."""
    left, right = (rank - 1) % size, (rank + 1) % size
    yield Copy(Part(own, rank), Output(rank))
    outgoing = Output(rank)
    for t in range(size - 1):
        incoming = Output((rank - t - 1) % size)
        yield Send(right, outgoing), Recv(left, incoming)
        outgoing = incoming


@folded(ALLGATHER)
def doubling(rank: int, size: int) -> Iterator[Round]:
    """Exchange all I have with the partner at distance 1, 2, 4, …; folded at other sizes.

    log2 p rounds at powers of two. Source: Thakur, Rabenseifner, Gropp, IJHPCA 19 (2005).
    """
    yield Copy(Input(rank), Output(rank))
    distance = 1
    while distance < size:
        peer = rank ^ distance
        own = Output(rank - rank % distance, distance)
        yield Send(peer, own), Recv(peer, Output(peer - peer % distance, distance))
        distance *= 2


def circulant(rank: int, size: int, own: str = INPUT) -> Iterator[Round]:
    """The circulant reduce-scatter backwards: ceil(log2 p) rounds at any size.

    Source: Traeff, arXiv 2410.14234.
    """
    yield Copy(Part(own, rank), Output(rank))
    for near, far in circulant_steps(size):
        count = far - near
        yield Send(rank - near, Output(rank, count)), Recv(rank + near, Output(rank + near, count))


def bruck(rank: int, size: int) -> Iterator[Round]:
    """Distances 1, 2, 4, …, the last round short: ceil(log2 p) rounds.

    Source: Bruck et al., IEEE TPDS 8 (1997).
    """
    yield Copy(Input(rank), Output(rank))
    distance = 1
    while distance < size:
        count = min(distance, size - distance)
        arriving = Output(rank + distance, count)
        yield Send(rank - distance, Output(rank, count)), Recv(rank + distance, arriving)
        distance *= 2


def direct(rank: int, size: int) -> Iterator[Round]:
    """Each rank writes its block into all others' vectors: one round of p-1 messages.

    For ranks that share memory.
    """
    above, below = others(rank, size)
    yield (
        *[Write(peer, Input(rank)) for peer in above],
        *[Written(peer, Output(peer)) for peer in below],
        Copy(Input(rank), Output(rank)),
    )


def hierarchical(rank: int, size: int, nodes: Nodes = None) -> Iterator[Round]:
    """Each lane gathers its blocks across nodes, then the ranks of a node exchange their lanes.

    Half the rounds of the hierarchical allreduce; (N-1)/N m enter a node. Source: as there.
    """
    lanes = LanesOfRanks(rank, size, nodes)
    yield from lanes.across(lanes.suited(ring, circulant))
    yield from lanes.inside(circulant, own=OUTPUT)
