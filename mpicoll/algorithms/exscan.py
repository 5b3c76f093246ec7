"""Exscan: every rank has a vector, and gets the sum of those of the ranks before it.

Rank 0 gets nothing. m: bytes of the vector, p: ranks, q = ceil(log2 p). All keep the order of the
ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..schedule import (
    INPUT,
    Copy,
    Generator,
    Input,
    Output,
    Recv,
    Reduce,
    Round,
    Scratch,
    Send,
    renamed,
    segmented,
)
from . import scan
from .patterns import Nodes, Runs, one_block, sum_before

ALGORITHMS: dict[str, dict[str, Any]] = {
    "linear": {"ordered": True, "canonical": True, "blocks": one_block},
    "recursive_doubling": {"ordered": True, "blocks": one_block},
    "two_phase": {"ordered": True, "blocks": one_block},
    "binomial": {"ordered": True, "blocks": one_block},
    "pipeline": {"ordered": True, "canonical": True, "blocks": "segments"},
    "hierarchical": {"ordered": True, "blocks": one_block},
}


def linear(rank: int, size: int) -> Iterator[Round]:
    """Along the chain of ranks: p-1 rounds of m. Source: Sanders, Traeff, EuroPVM/MPI 2006."""
    total = Input(0)
    if rank:
        received = Scratch("received", 0)
        total = Scratch("total", 0)
        passed_on = (Reduce(received, Input(0), total),) if rank < size - 1 else ()
        yield Recv(rank - 1, received), *passed_on, Copy(received, Output(0))
    if rank < size - 1:
        yield Send(rank + 1, total)


def recursive_doubling(rank: int, size: int) -> Iterator[Round]:
    """Each vector to the next rank, then a scan of these: 1 + ceil(log2 (p-1)) rounds of m.

    Source: Hillis, Steele, CACM 29 (1986).
    """
    yield from _shifted(scan.recursive_doubling, rank, size)


def two_phase(rank: int, size: int) -> Iterator[Round]:
    """Pass on the sum with its own vector, then the sum before it: q rounds of m.

    No algorithm of one port has fewer. Source: Traeff, arXiv 2604.25667.
    """
    yield from sum_before(rank, size)


def binomial(rank: int, size: int) -> Iterator[Round]:
    """Each vector to the next rank, then up and down a binomial tree: 2 ceil(log2 (p-1)) rounds.

    About 3 p messages of m in all, where two_phase sends p q. Source: Blelloch, CMU-CS-90-190
    (1990), at any p.
    """
    yield from _shifted(scan.binomial, rank, size)


@segmented
def pipeline(rank: int, size: int) -> Iterator[Round]:
    """The chain of `linear` in n segments: n + p - 2 rounds of m/n, so about m at any p.

    Source: Sanders, Traeff, EuroPVM/MPI 2006.
    """
    yield from ((),) * (rank - 1)
    yield from linear(rank, size)


def hierarchical(rank: int, size: int, nodes: Nodes = None) -> Iterator[Round]:
    """Exscan in each node, sums before each node by their last ranks, added by all of a node.

    Rounds and nodes as in the hierarchical scan. Source: as there.
    """
    runs = Runs(rank, size, nodes)
    inside = Scratch("inside", 0)
    total = Input(0)
    yield from runs.inside(sum_before, output=inside.place)
    if runs.local and runs.is_last:
        total = Scratch("total", 0)
        yield Reduce(inside, Input(0), total)
    yield from runs.sum_before(total)
    if runs.number and runs.local:
        yield Reduce(Scratch("before", 0), inside, Output(0))
    elif rank:
        yield Copy(inside if runs.local else Scratch("before", 0), Output(0))


def _shifted(generator: Generator, rank: int, size: int) -> Iterator[Round]:
    """The scan of the vectors of the ranks before: on ranks 1 to p-1."""
    before = Scratch("shifted", 0)
    step: list[Any] = []
    if rank < size - 1:
        step.append(Send(rank + 1, Input(0)))
    if rank:
        step.append(Recv(rank - 1, before))
    yield step
    if size == 2 and rank:
        yield Copy(before, Output(0))
    elif rank:
        scanned = generator(rank - 1, size - 1)
        yield from renamed(scanned, {INPUT: before.place}, peer=lambda number: number + 1)
