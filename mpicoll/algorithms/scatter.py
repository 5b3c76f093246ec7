"""Scatter: the root has all blocks, rank r gets block r. m: bytes of the whole vector, p: ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ..schedule import Copy, Input, Output, Part, Recv, Round, Scratch, Send
from .patterns import Tree, bine_tree, binomial_tree

ALGORITHMS: dict[str, dict[str, Any]] = {"linear": {}, "binomial": {}, "bine": {"study": True}}


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


def binomial(rank: int, size: int, root: int, tree: Tree = binomial_tree) -> Iterator[Round]:
    """Hand each child the blocks of its subtree: ceil(log2 p) rounds, the same bytes at the root.

    Inner ranks keep their subtree in scratch. Source: Chan et al., CCPE 19 (2007).
    """
    parent, own, children = tree(rank, size, root)
    place: Callable[..., Part] = Input
    if rank != root:
        place = partial(Scratch, "subtree") if children else Output
        yield Recv(parent, place(own.first, own.count))
    for child, first, count in children:
        yield Send(child, place(first, count))
    yield Copy(place(rank), Output(rank))


def bine(rank: int, size: int, root: int) -> Iterator[Round]:
    """The same down a Bine tree, whose messages go two thirds as far: ceil(log2 p) rounds.

    (p-1)/p m at the root. For study. Source: De Sensi et al., arXiv 2508.17311, see `bine_tree`.
    """
    yield from binomial(rank, size, root, bine_tree)
