"""Gather: rank r has block r, the root gets all blocks. m: bytes of the whole vector, p: ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ..schedule import Copy, Input, Output, Part, Recv, Round, Scratch, Send
from .patterns import Tree, bine_tree, binomial_tree

ALGORITHMS: dict[str, dict[str, Any]] = {"linear": {}, "binomial": {}, "bine": {"study": True}}


def linear(rank: int, size: int, root: int) -> Iterator[Round]:
    """The root receives from each rank in turn: p-1 rounds, (p-1)/p m at the root.

    No rank needs the others' sizes.
    """
    if rank != root:
        yield Send(root, Input(rank))
        return
    yield Copy(Input(rank), Output(rank))
    for step in range(1, size):
        yield Recv(root + step, Output(root + step))


def binomial(rank: int, size: int, root: int, tree: Tree = binomial_tree) -> Iterator[Round]:
    """Collect the blocks of my subtree, hand them to my parent: ceil(log2 p) rounds.

    (p-1)/p m at the root. Inner ranks keep their subtree in scratch. Source: Chan et al., CCPE 19
    (2007).
    """
    parent, own, children = tree(rank, size, root)
    place: Callable[..., Part] = Input
    if rank == root:
        place = Output
    elif children:
        place = partial(Scratch, "subtree")
    yield Copy(Input(rank), place(rank))
    for child, first, count in reversed(children):
        yield Recv(child, place(first, count))
    if rank != root:
        yield Send(parent, place(own.first, own.count))


def bine(rank: int, size: int, root: int) -> Iterator[Round]:
    """The same up a Bine tree, whose messages go two thirds as far: ceil(log2 p) rounds.

    (p-1)/p m at the root. For study. Source: De Sensi et al., arXiv 2508.17311, see `bine_tree`.
    """
    yield from binomial(rank, size, root, bine_tree)
