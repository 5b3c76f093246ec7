"""Reduce-scatter: every rank has a whole vector, rank r gets block r of their sum.

m: bytes of the vector, p: ranks. Messages arrive in scratch "received", partial sums are in scratch
"sum", or in the output of an allreduce.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ..collectives import REDUCE_SCATTER
from ..schedule import (
    INPUT,
    OUTPUT,
    Copy,
    Input,
    Output,
    Part,
    Recv,
    Reduce,
    Round,
    Scratch,
    Send,
    folded,
)
from .patterns import (
    LanesOfRanks,
    Nodes,
    both_ways,
    circulant_steps,
    even,
    fold_tree,
    in_rank_order,
    near_last,
    others,
    reduced,
    swing_pairs,
)

ALGORITHMS: dict[str, dict[str, Any]] = {
    "ring": {"neighbours": True},
    "halving": {},
    "circulant": {},
    "pairwise": {"ordered": True, "canonical": True, "compressible": True},
    "direct": {"ordered": True, "canonical": True, "compressible": True},
    "hierarchical": {"compressible": True},
    "swing": {"study": True},
    "pat": {"study": True},
    "trivance": {"study": True},
}


def ring(rank: int, size: int, sums: str = "sum") -> Iterator[Round]:
    """Each block travels once around the ring and gathers a contribution at every rank.

    p-1 rounds, (p-1)/p m sent and reduced. Source: Patarasuk and Yuan, JPDC 69 (2009).
    """
    left, right = (rank - 1) % size, (rank + 1) % size
    outgoing = Input(left)
    for t in range(size - 1):
        block = (rank - t - 2) % size
        received = Scratch("received", block)
        total = Output(rank) if t == size - 2 else Scratch(sums, block)
        yield Send(right, outgoing), Recv(left, received), Reduce(received, Input(block), total)
        outgoing = total


@folded(REDUCE_SCATTER)
def halving(rank: int, size: int) -> Iterator[Round]:
    """Halve the range that is still mine, give the other half to the partner who keeps it.

    log2 p rounds, (p-1)/p m at powers of two; folded at other sizes. Source: Thakur, Rabenseifner,
    Gropp, IJHPCA 19 (2005).
    """
    first, count = 0, size
    place: Callable[[int, int], Part] = Input
    while count > 1:
        half = count // 2
        keep = first + half if rank >= first + half else first
        give = 2 * first + half - keep
        peer = rank ^ half
        received = Scratch("received", keep, half)
        total = Scratch("sum", keep, half) if half > 1 else Output(keep)
        operands = in_rank_order(rank, peer, place(keep, half), received)
        yield Send(peer, place(give, half)), Recv(peer, received), Reduce(*operands, total)
        first, count, place = keep, half, partial(Scratch, "sum")


def circulant(rank: int, size: int, sums: str = "sum") -> Iterator[Round]:
    """Send the far part of what is still mine, s blocks ahead, and add what comes from s behind.

    ceil(log2 p) rounds, (p-1)/p m sent and reduced: both optimal. Any size, no fold. Source:
    Traeff, arXiv 2410.14234.
    """
    place: Callable[[int, int], Part] = Input
    for near, far in reversed(circulant_steps(size)):
        count = far - near
        received = Scratch("received", rank, count)
        total = Scratch(sums, rank, count) if near > 1 else Output(rank)
        # at odd sizes the second round sends the middle block, without a contribution of the first
        width = near - count if far == size else 0
        middle = Copy(Input(rank + count), Scratch(sums, rank + count, width))
        yield (
            Send(rank + near, place(rank + near, count)),
            Recv(rank - near, received),
            Reduce(received, place(rank, count), total),
            middle,
        )
        place = partial(Scratch, sums)


def pairwise(rank: int, size: int, compressed: bool = False) -> Iterator[Round]:
    """Every rank sends each owner its raw contribution; owners add them in rank order as a tree.

    p-1 rounds, (p-1)/p m, scratch m; the same bits as recursive doubling. Source: MPICH's pairwise
    exchange. compressed: one round, as `direct`.
    """
    if compressed:
        yield from direct(rank, size)
        return
    vectors = _contributions(rank, size)
    for target, source in zip(*others(rank, size)):
        yield Send(target, Input(target)), Recv(source, vectors[source])
    yield fold_tree(vectors, Output(rank))


def direct(rank: int, size: int) -> Iterator[Round]:
    """The same in one round of p-1 messages each way.

    For ranks that share memory: owners read the contributions in place. Cut into pieces, it sends
    a piece to each owner in turn, so that sums begin with the first ones.
    """
    above, below = others(rank, size)
    vectors = _contributions(rank, size)
    yield (
        *[Send(peer, Input(peer)) for peer in above],
        *[Recv(peer, vectors[peer]) for peer in below],
        *fold_tree(vectors, Output(rank)),
    )


def _contributions(rank: int, size: int) -> list[Part]:
    """The contributions of all ranks to this rank's block, in rank order."""
    return [Input(rank) if r == rank else Scratch(f"from {r}", rank) for r in range(size)]


def hierarchical(
    rank: int, size: int, nodes: Nodes = None, compressed: bool = False
) -> Iterator[Round]:
    """Inside the node each rank sums the blocks of its lane, then the lane sums them across nodes.

    Half the rounds of the hierarchical allreduce; (N-1)/N m leave a node. Source: as there.
    """
    lanes = LanesOfRanks(rank, size, nodes)
    yield from lanes.inside(circulant, places={OUTPUT: "local"} if lanes.nodes > 1 else {})
    places = {INPUT: "local"} if lanes.ranks > 1 else {}
    across = direct if compressed else lanes.suited(ring, circulant)
    yield from lanes.across(across, places=places)


@folded(REDUCE_SCATTER, even)
def swing(rank: int, size: int) -> Iterator[Round]:
    """The allgather backwards: pairs at distances 1, 1, 3, 5, …, to alternating sides.

    ceil(log2 p) rounds, (p-1)/p m, at even sizes; folded at odd ones. Bine's butterfly has the same
    pairs. For study. Source: De Sensi et al., Swing, arXiv 2401.09356.
    """
    yield from reduced(swing_pairs(size).exchanges(rank))


def pat(rank: int, size: int) -> Iterator[Round]:
    """The allgather backwards: sums go up by 1, 2, 4, … ranks, the largest messages first.

    ceil(log2 p) rounds, (p-1)/p m, any size. For study. Source: Jeaugey, PAT, arXiv 2506.20252.
    """
    yield from reduced(near_last(size).exchanges(rank))


def trivance(rank: int, size: int) -> Iterator[Round]:
    """The allgather backwards: sums go 1, 3, 9, … ranks up and down: ceil(log3 p) x 2 messages.

    (p-1)/p m. For study. Source: Juerss, Addanki, Schmid, Trivance, arXiv 2602.17254 (the first
    half of its bandwidth-optimal allreduce).
    """
    yield from reduced(both_ways(size).exchanges(rank))
