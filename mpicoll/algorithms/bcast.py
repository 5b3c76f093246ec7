"""Broadcast: every rank gets the root's vector. m: its bytes, p: ranks, q = ceil(log2 p).

The buffer of a broadcast is the output on every rank; the root's is filled at the start.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..schedule import INPUT, OUTPUT, Output, Recv, Round, Send, Write, Written, renamed, segmented
from . import allgather, scatter
from .patterns import (
    Lanes,
    Nodes,
    Tree,
    bine_tree,
    binomial_tree,
    broadcast_blocks,
    lane_blocks,
    one_block,
    others,
)

ALGORITHMS: dict[str, dict[str, Any]] = {
    "linear": {"blocks": one_block, "compressible": True},
    "binomial": {"blocks": one_block, "compressible": True},
    "scatter_allgather": {"compressible": True},
    "pipeline": {"blocks": "segments", "neighbours": True, "compressible": True},
    "circulant": {"blocks": "segments", "compressible": True},
    "direct": {"cuttable": False},
    "hierarchical": {"blocks": lane_blocks, "compressible": True},
    "bine": {"blocks": one_block, "compressible": True, "study": True},
}


def linear(rank: int, size: int, root: int) -> Iterator[Round]:
    """The root sends to each rank: p-1 rounds, (p-1) m at the root."""
    if rank != root:
        yield Recv(root, Output(0))
        return
    for step in range(1, size):
        yield Send(root + step, Output(0))


def binomial(rank: int, size: int, root: int, tree: Tree = binomial_tree) -> Iterator[Round]:
    """Ranks that have the vector send it on: q rounds of m. Source: Chan et al., CCPE 19 (2007)."""
    parent, _, children = tree(rank, size, root)
    if rank != root:
        yield Recv(parent, Output(0))
    for child in children:
        yield Send(child.rank, Output(0))


def scatter_allgather(rank: int, size: int, root: int) -> Iterator[Round]:
    """Binomial scatter, circulant allgather: 2q rounds, about 2 m.

    Source: van de Geijn; Thakur et al., IJHPCA 19 (2005).
    """
    yield from renamed(scatter.binomial(rank, size, root), {INPUT: OUTPUT, "subtree": OUTPUT})
    yield from allgather.circulant(rank, size, own=OUTPUT)


@segmented
def pipeline(rank: int, size: int, root: int) -> Iterator[Round]:
    """Along the chain root, root + 1, …, in n segments: n + p - 2 rounds of m/n.

    Source: Chan et al., CCPE 19 (2007).
    """
    relative = (rank - root) % size
    yield from ((),) * (relative - 1)
    if relative:
        yield Recv(rank - 1, Output(0))
    if relative < size - 1:
        yield Send(rank + 1, Output(0))


def circulant(rank: int, size: int, root: int, blocks: int) -> Iterator[Round]:
    """In n segments over the circulant graph: n - 1 + q rounds of m/n, optimal at any size.

    Source: Traeff, arXiv 2407.18004; MPICH's circulant-graph broadcast.
    """
    relative = (rank - root) % size
    for skip, send, receive in broadcast_blocks(relative, size, blocks):
        sends = [Send(rank + skip, Output(send))] if send >= 0 and (relative + skip) % size else []
        yield *([Recv(rank - skip, Output(receive))] if receive >= 0 and relative else []), *sends


def direct(rank: int, size: int, root: int) -> Iterator[Round]:
    """Each rank reads the root's vector but for one block, which the root writes to all meanwhile.

    One round, (p-1) m at the root. For ranks that share memory, where all of them copy at once.
    """
    read, written = Output(root + 1, size - 1), Output(root)
    if rank == root:
        peers, _ = others(root, size)
        yield *[Send(peer, read) for peer in peers], *[Write(peer, written) for peer in peers]
    else:
        yield Recv(root, read), Written(root, written)


def hierarchical(rank: int, size: int, root: int, nodes: Nodes = None) -> Iterator[Round]:
    """Scatter inside the root's node, scatter and allgather across nodes, allgather inside nodes.

    About 2 m leave the root's node, m / n of it by each of its n ranks. Source: as allreduce.
    """
    lanes = Lanes(rank, size, nodes)
    home, local = lanes.place_of(root)
    if lanes.node == home:
        yield from lanes.inside(scatter.binomial, local, places={INPUT: OUTPUT, "subtree": OUTPUT})
    yield from lanes.across(scatter_allgather, home)
    yield from lanes.inside(allgather.circulant, own=OUTPUT)


def bine(rank: int, size: int, root: int) -> Iterator[Round]:
    """Down a Bine tree, whose messages go two thirds as far as a binomial tree's: q rounds of m.

    At powers of two the tree of the paper or its mirror image; at other sizes halves differ by one
    rank. For study. Source: De Sensi et al., arXiv 2508.17311 (distance halving).
    """
    yield from binomial(rank, size, root, bine_tree)
