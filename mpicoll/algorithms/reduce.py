"""Reduce: every rank has a vector, the root gets their sum.

m: bytes of a vector, p: ranks, q = ceil(log2 p). A rank that is not the root has no output; its
partial sums are in scratch "sum".
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from ..schedule import (
    INPUT,
    OUTPUT,
    Input,
    Operation,
    Output,
    Recv,
    Reduce,
    Round,
    Scratch,
    Send,
    power_of_two,
    renamed,
    segmented,
)
from . import gather, reduce_scatter
from .patterns import (
    Lanes,
    Nodes,
    bine_tree,
    broadcast_blocks,
    in_rank_order,
    lane_blocks,
    one_block,
)

ALGORITHMS: dict[str, dict[str, Any]] = {
    "linear": {"ordered": True, "blocks": one_block, "compressible": True},
    "binomial": {"ordered": True, "canonical": True, "blocks": one_block},
    "reduce_scatter_gather": {},
    "pairwise": {"ordered": True, "canonical": True, "compressible": True},
    "pipeline": {"blocks": "segments", "neighbours": True},
    "circulant": {"blocks": "segments"},
    "hierarchical": {"blocks": lane_blocks, "compressible": True},
    "bine": {"blocks": one_block, "study": True},
}


def linear(rank: int, size: int, root: int) -> Iterator[Round]:
    """The root receives from each rank in rank order: p-1 rounds, (p-1) m at the root."""
    if rank != root:
        yield Send(root, Input(0))
        return
    total = None
    for peer in range(size):
        part = Input(0) if peer == root else Scratch(f"from {peer}", 0)
        # in place, the output is the input: unchanged before it is added
        into = Output(0) if peer >= root else Scratch("sum", 0)
        step: list[Operation] = [] if peer == root else [Recv(peer, part)]
        if total:
            step.append(Reduce(total, part, into))
        yield step
        total = into if total else part


def binomial(rank: int, size: int, root: int) -> Iterator[Round]:
    """The canonical tree towards any root: ceil(log2 p) rounds of m.

    The bits of recursive doubling. At sizes that are no power of two the leading ranks fold in
    pairs first; in every merge the side with the root survives, so that rank order is kept. Source:
    binomial reduction of MPICH, with the fold of its allreduce.
    """
    core = power_of_two(size)
    pairs = size - core

    def survivor(n: int) -> int:
        return (root if root // 2 == n else 2 * n + 1) if n < pairs else n + pairs

    def in_core(r: int) -> int:
        return r // 2 if r < 2 * pairs else r - pairs

    number, goal = in_core(rank), in_core(root)
    #: (peer, whether this rank hands its sum over)
    merges: list[tuple[int, int]] = []
    if rank < 2 * pairs:
        merges.append((rank ^ 1, rank != survivor(number)))
    for bit in range(core.bit_length() - 1):
        merges.append((survivor(number ^ 1 << bit), (number ^ goal) >> bit & 1))
    mine = Input(0)
    total = Output(0) if rank == root else Scratch("sum", 0)
    received = Scratch("received", 0)
    for peer, hand_over in merges:
        if hand_over:
            yield Send(peer, mine)
            return
        yield Recv(peer, received), Reduce(*in_rank_order(rank, peer, mine, received), total)
        mine = total


def reduce_scatter_gather(rank: int, size: int, root: int) -> Iterator[Round]:
    """Circulant reduce-scatter, binomial gather: 2q rounds, (p-1)/p m reduced per rank.

    Source: Rabenseifner, 2004.
    """
    yield from renamed(reduce_scatter.circulant(rank, size), {OUTPUT: "mine"})
    yield from renamed(gather.binomial(rank, size, root), {INPUT: "mine"})


def pairwise(rank: int, size: int, root: int) -> Iterator[Round]:
    """Pairwise reduce-scatter, linear gather: 2 (p-1)/p m enter the root. Canonical bits."""
    yield from renamed(reduce_scatter.pairwise(rank, size), {OUTPUT: "mine"})
    yield from renamed(gather.linear(rank, size, root), {INPUT: "mine"})


@segmented
def pipeline(rank: int, size: int, root: int) -> Iterator[Round]:
    """Along the chain root + 1, …, root, in n segments: n + p - 2 rounds of m/n.

    Source: Chan et al., CCPE 19 (2007).
    """
    place = (rank - root - 1) % size
    mine = Input(0)
    yield from ((),) * (place - 1)
    if place:
        mine = Output(0) if rank == root else Scratch("sum", 0)
        received = Scratch("received", 0)
        yield Recv(rank - 1, received), Reduce(received, Input(0), mine)
    if rank != root:
        yield Send(rank + 1, mine)


def circulant(rank: int, size: int, root: int, blocks: int) -> Iterator[Round]:
    """The circulant broadcast backwards, sums instead of copies: n - 1 + q rounds of m/n.

    Optimal at any size. Source: Traeff, arXiv 2407.18004.
    """
    relative = (rank - root) % size
    sums = Output if rank == root else partial(Scratch, "sum")
    mine = dict.fromkeys(range(blocks), Input)  # the place of this rank's sum of each block
    for skip, receive, send in reversed(list(broadcast_blocks(relative, size, blocks))):
        step: list[Operation] = []
        if send >= 0 and relative:
            step.append(Send(rank - skip, mine[send](send)))
        if receive >= 0 and (relative + skip) % size:
            received = Scratch("received", receive)
            partial_sum = mine[receive](receive)
            step.append(Recv(rank + skip, received))
            step.append(Reduce(received, partial_sum, sums(receive)))
            mine[receive] = sums
        yield step


def hierarchical(
    rank: int, size: int, root: int, nodes: Nodes = None, compressed: bool = False
) -> Iterator[Round]:
    """Reduce-scatter inside nodes, reduce-scatter and gather across, gather in the root's node.

    About 2 m enter the root's node, m / n of it to each of its n ranks. Source: as allreduce.
    """
    lanes = Lanes(rank, size, nodes)
    home, local = lanes.place_of(root)
    yield from lanes.inside(reduce_scatter.circulant, places={OUTPUT: "local"})
    total = OUTPUT if len(lanes.members[home]) == 1 else "total" if lanes.nodes > 1 else "local"
    if lanes.nodes > 1:
        places = {INPUT: "local" if lanes.ranks > 1 else INPUT, OUTPUT: total}
        across = pairwise if compressed else reduce_scatter_gather
        yield from lanes.across(across, home, places=places)
    if lanes.node == home:
        yield from lanes.inside(gather.binomial, local, places={INPUT: total})


def bine(rank: int, size: int, root: int) -> Iterator[Round]:
    """Up a Bine tree, whose messages go two thirds as far as a binomial tree's: q rounds of m.

    For study. Source: De Sensi et al., arXiv 2508.17311, see `bine_tree`.
    """
    parent, _, children = bine_tree(rank, size, root)
    total = Input(0)
    received = Scratch("received", 0)
    for child in reversed(children):
        into = Output(0) if rank == root else Scratch("sum", 0)
        yield Recv(child.rank, received), Reduce(received, total, into)
        total = into
    if rank != root:
        yield Send(parent, total)
