"""Scatter: the root has all blocks, rank r gets block r. m: bytes of the whole vector, p: ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..schedule import Copy, Input, Output, Recv, Round, Scratch, Send
from .patterns import children, parent

ALGORITHMS: dict[str, dict[str, Any]] = {"linear": {}, "binomial": {}}


def linear(rank: int, size: int, root: int) -> Iterator[Round]:
    """The root sends each rank its block: p-1 rounds, (p-1)/p m at the root.

    No rank needs the others' sizes.
    """
    if rank != root:
        yield Recv(root, Output(rank))
        return
    yield Copy(Input(rank), Output(rank))
    for step in range(1, size):
        yield Send(root + step, Input(root + step))


def binomial(rank: int, size: int, root: int) -> Iterator[Round]:
    """Hand each child the blocks of its subtree: ceil(log2 p) rounds, the same bytes at the root.

    Inner ranks keep their subtree in scratch. Source: Chan et al., CCPE 19 (2007).
    """
    mine = Input if rank == root else lambda first, count=1: Scratch("subtree", first, count)
    subtrees = list(children(rank, size, root))
    if rank != root:
        up, count = parent(rank, size, root)
        mine = mine if count > 1 else Output
        yield Recv(up, mine(rank, count))
    for child, count in subtrees:
        yield Send(child, mine(child, count))
    yield Copy(mine(rank), Output(rank))
