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
from .patterns import (
    LanesOfRanks,
    Nodes,
    both_ways,
    circulant_steps,
    even,
    fitting,
    gathered,
    groups,
    near_last,
    others,
    swing_pairs,
)

ALGORITHMS: dict[str, dict[str, Any]] = {
    "ring": {"neighbours": True, "compressible": True},
    "doubling": {"compressible": True},
    "circulant": {"compressible": True},
    "bruck": {"compressible": True},
    "direct": {"cuttable": False},
    "hierarchical": {"compressible": True},
    "tripling": {"compressible": True, "study": True},
    "quadrupling": {"compressible": True, "study": True},
    "swing": {"compressible": True, "study": True},
    "pat": {"compressible": True, "study": True},
    "trivance": {"compressible": True, "study": True},
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


@folded(ALLGATHER, fitting(3))
def tripling(rank: int, size: int) -> Iterator[Round]:
    """Exchange all I have in groups of three, nearest first; folded if a prime > 3 divides p.

    Recursive multiplying with radix 3: log3 p rounds at powers of three, two messages in each,
    pairs for the factors 2 of p. For study. Source: Ruefenacht, Bull, Booth, ParCo 69 (2017);
    MPICH.
    """
    yield from _multiplying(rank, size, 3)


@folded(ALLGATHER, fitting(4))
def quadrupling(rank: int, size: int) -> Iterator[Round]:
    """Exchange all I have in groups of four, nearest first; folded where a prime above 3 divides p.

    Recursive multiplying with radix 4: half the rounds of doubling, three messages in each. For
    study. Source: as `tripling`.
    """
    yield from _multiplying(rank, size, 4)


def _multiplying(rank: int, size: int, radix: int) -> Iterator[Round]:
    yield Copy(Input(rank), Output(rank))
    for distance, group in groups(rank, size, radix):
        peers = [peer for peer in group if peer != rank]
        own = Output(rank - rank % distance, distance)
        yield (
            *[Send(peer, own) for peer in peers],
            *[Recv(peer, Output(peer - peer % distance, distance)) for peer in peers],
        )


@folded(ALLGATHER, even)
def swing(rank: int, size: int) -> Iterator[Round]:
    """Pairs at distances …, 5, 3, 1, 1, to alternating sides, give each other what they lack.

    ceil(log2 p) rounds, (p-1)/p m, at even sizes; folded at odd ones. Blocks that do not follow one
    another are messages of their own. Bine's butterfly has the same pairs. For study. Source: De
    Sensi et al., Swing, arXiv 2401.09356 (which serves odd sizes otherwise).
    """
    yield from gathered(swing_pairs(size).exchanges(rank), rank)


def pat(rank: int, size: int) -> Iterator[Round]:
    """Send all I have down by …, 4, 2, 1 ranks: the largest messages go to the neighbour.

    ceil(log2 p) rounds, (p-1)/p m, any size. Each block is a message of its own; the paper packs
    them, and cuts large vectors into parts of bounded scratch. For study. Source: Jeaugey, PAT,
    arXiv 2506.20252.
    """
    yield from gathered(near_last(size).exchanges(rank), rank)


def trivance(rank: int, size: int) -> Iterator[Round]:
    """Send all I have …, 9, 3, 1 ranks up and as many down at once: ceil(log3 p) x 2 messages.

    (p-1)/p m; no block arrives twice. For rings with two ports, for study. Source: Juerss, Addanki,
    Schmid, Trivance, arXiv 2602.17254 (the second half of its bandwidth-optimal allreduce); at
    sizes that are no power of three this way to share the last blocks is ours.
    """
    yield from gathered(both_ways(size).exchanges(rank), rank)
