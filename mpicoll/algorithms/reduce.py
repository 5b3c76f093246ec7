"""Reduce: every rank has a vector, the root gets their sum. m: bytes of a vector, p: ranks, q = ceil(log2 p).

A rank that is not the root has no output; its partial sums live in scratch "sum".
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
from .patterns import Lanes, Nodes, broadcast_blocks, in_rank_order, lane_blocks, one_block

ALGORITHMS: dict[str, dict[str, Any]] = {
    "linear": {"ordered": True, "blocks": one_block},
    "binomial": {"ordered": True, "canonical": True, "blocks": one_block},
    "reduce_scatter_gather": {},
    "pipeline": {"blocks": "segments", "neighbours": True},
    "circulant": {"blocks": "segments"},
    "hierarchical": {"blocks": lane_blocks},
}


def linear(rank: int, size: int, root: int) -> Iterator[Round]:
    """The root receives from each rank in rank order: p-1 rounds, (p-1) m received and reduced at the root."""
    if rank != root:
        yield Send(root, Input(0))
        return
    total = None
    for peer in range(size):
        part = Input(0) if peer == root else Scratch(f"from {peer}", 0)
        # in place, the output is the input: leave it alone until my own contribution is in
        into = Output(0) if peer >= root else Scratch("sum", 0)
        yield *([Recv(peer, part)] if peer != root else []), *([Reduce(total, part, into)] if total else [])
        total = into if total else part


def binomial(rank: int, size: int, root: int) -> Iterator[Round]:
    """The canonical tree towards any root: ceil(log2 p) rounds of m, the bits of recursive doubling.

    At sizes that are no power of two the leading ranks fold in pairs first; in every merge the side that contains the
    root survives, so that rank order is kept. Source: binomial reduction of MPICH, with the fold of its allreduce.
    """
    core = power_of_two(size)
    pairs = size - core

    def survivor(n: int) -> int:
        return (root if root // 2 == n else 2 * n + 1) if n < pairs else n + pairs

    number, goal = (r // 2 if r < 2 * pairs else r - pairs for r in (rank, root))
    merges: list[tuple[int, int]] = [(rank ^ 1, rank != survivor(number))] if rank < 2 * pairs else []
    merges += [(survivor(number ^ 1 << bit), (number ^ goal) >> bit & 1) for bit in range(core.bit_length() - 1)]
    mine, total, received = Input(0), Output(0) if rank == root else Scratch("sum", 0), Scratch("received", 0)
    for peer, hand_over in merges:
        if hand_over:
            yield Send(peer, mine)
            return
        yield Recv(peer, received), Reduce(*in_rank_order(rank, peer, mine, received), total)
        mine = total


def reduce_scatter_gather(rank: int, size: int, root: int) -> Iterator[Round]:
    """Circulant reduce-scatter, binomial gather: 2q rounds, (p-1)/p m reduced per rank. Source: Rabenseifner, 2004."""
    yield from renamed(reduce_scatter.circulant(rank, size), {OUTPUT: "mine"})
    yield from renamed(gather.binomial(rank, size, root), {INPUT: "mine"})


@segmented
def pipeline(rank: int, size: int, root: int) -> Iterator[Round]:
    """Along the chain root + 1, …, root, in n segments: n + p - 2 rounds of m/n. Source: Chan et al., CCPE 19 (2007)."""
    place = (rank - root - 1) % size
    mine = Input(0)
    yield from ((),) * (place - 1)
    if place:
        mine = Output(0) if rank == root else Scratch("sum", 0)
        yield Recv(rank - 1, Scratch("received", 0)), Reduce(Scratch("received", 0), Input(0), mine)
    if rank != root:
        yield Send(rank + 1, mine)


def circulant(rank: int, size: int, root: int, blocks: int) -> Iterator[Round]:
    """The circulant broadcast backwards, sums instead of copies: n - 1 + q rounds of m/n, optimal at any size.

    Source: Traeff, arXiv 2407.18004.
    """
    relative, sums = (rank - root) % size, Output if rank == root else partial(Scratch, "sum")
    mine = dict.fromkeys(range(blocks), Input)  # where my part of each block's sum lies
    for skip, receive, send in reversed(list(broadcast_blocks(relative, size, blocks))):
        step: list[Operation] = [Send(rank - skip, mine[send](send))] if send >= 0 and relative else []
        if receive >= 0 and (relative + skip) % size:
            received = Scratch("received", receive)
            step += Recv(rank + skip, received), Reduce(received, mine[receive](receive), sums(receive))
            mine[receive] = sums
        yield step


def hierarchical(rank: int, size: int, root: int, nodes: Nodes = None) -> Iterator[Round]:
    """Reduce-scatter inside every node, reduce-scatter and gather in each lane across nodes, gather in the root's node.

    About 2 m enter the root's node, m / n of it to each of its n ranks. Source: as allreduce.
    """
    lanes = Lanes(rank, size, nodes)
    home, local = lanes.place_of(root)
    yield from lanes.inside(reduce_scatter.circulant, places={OUTPUT: "local"})
    total = OUTPUT if len(lanes.members[home]) == 1 else "total" if lanes.nodes > 1 else "local"
    if lanes.nodes > 1:
        places = {INPUT: "local" if lanes.ranks > 1 else INPUT, OUTPUT: total}
        yield from lanes.across(reduce_scatter_gather, home, places=places)
    if lanes.node == home:
        yield from lanes.inside(gather.binomial, local, places={INPUT: total})
