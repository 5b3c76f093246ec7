"""Scan: every rank has a vector, and gets the sum of those of the ranks up to it.

m: bytes of the vector, p: ranks, q = ceil(log2 p). All keep the order of the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..schedule import Copy, Input, Operation, Output, Recv, Reduce, Round, Scratch, Send, segmented
from .patterns import Nodes, Runs, one_block

ALGORITHMS: dict[str, dict[str, Any]] = {
    "linear": {"ordered": True, "canonical": True, "blocks": one_block},
    "recursive_doubling": {"ordered": True, "blocks": one_block},
    "binomial": {"ordered": True, "blocks": one_block},
    "pipeline": {"ordered": True, "canonical": True, "blocks": "segments"},
    "hierarchical": {"ordered": True, "blocks": one_block},
}


def linear(rank: int, size: int) -> Iterator[Round]:
    """Along the chain of ranks: p-1 rounds of m. Source: Sanders, Traeff, EuroPVM/MPI 2006."""
    if not rank:
        yield Send(1, Input(0)), Copy(Input(0), Output(0))
        return
    received = Scratch("received", 0)
    yield Recv(rank - 1, received), Reduce(received, Input(0), Output(0))
    if rank < size - 1:
        yield Send(rank + 1, Output(0))


def recursive_doubling(rank: int, size: int) -> Iterator[Round]:
    """Add what the rank at distance 1, 2, 4, … before has: q rounds of m.

    Source: Hillis, Steele, CACM 29 (1986).
    """
    total = Input(0)
    distance = 1
    while distance < size:
        step: list[Operation] = []
        if rank + distance < size:
            step.append(Send(rank + distance, total))
        if rank >= distance:
            received = Scratch("received", 0)
            step += Recv(rank - distance, received), Reduce(received, total, Output(0))
            total = Output(0)
        yield step
        distance *= 2
    if not rank:
        yield Copy(Input(0), Output(0))


def binomial(rank: int, size: int) -> Iterator[Round]:
    """Up a binomial tree with sums, and down with the sums before: at most 2 q - 1 rounds of m.

    Each rank but the last of a tree sends few messages: 2 (p-1) - q in all, where
    recursive doubling sends p q - p + 1. Source: Blelloch, CMU-CS-90-190 (1990), at any p.
    """
    received = Scratch("received", 0)
    total = Input(0)
    distance = 1
    while rank & distance:  # this rank ends a group of twice the distance
        yield Recv(rank - distance, received), Reduce(received, total, Output(0))
        total = Output(0)
        distance *= 2
    if rank + distance < size:
        yield Send(rank + distance, total)
    if rank >= distance:  # there are ranks before its group
        yield Recv(rank - distance, received), Reduce(received, total, Output(0))
        total = Output(0)
    elif total == Input(0):
        yield Copy(total, Output(0))
    while distance > 1:
        distance //= 2
        if rank + distance < size:
            yield Send(rank + distance, total)


@segmented
def pipeline(rank: int, size: int) -> Iterator[Round]:
    """The chain of `linear` in n segments: n + p - 2 rounds of m/n, so about m at any p.

    Source: Sanders, Traeff, EuroPVM/MPI 2006.
    """
    yield from ((),) * (rank - 1)
    yield from linear(rank, size)


def hierarchical(rank: int, size: int, nodes: Nodes = None) -> Iterator[Round]:
    """Scan in each node, sums before each node by their last ranks, added by all of a node.

    Among N nodes of n ranks 2 ceil(log2 n) + ceil(log2 N) rounds, of which the last number is
    between nodes. A node is a run of ranks one after the other: ranks that are dealt to nodes in
    turn are runs of one. Source: Sanders, Traeff, EuroPVM/MPI 2006.
    """
    runs = Runs(rank, size, nodes)
    inside = Scratch("inside", 0) if runs.ranks > 1 else Input(0)
    yield from runs.inside(recursive_doubling, output=inside.place)
    yield from runs.sum_before(inside)
    if runs.number:
        yield Reduce(Scratch("before", 0), inside, Output(0))
    else:
        yield Copy(inside, Output(0))
