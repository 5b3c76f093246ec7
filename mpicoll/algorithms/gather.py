"""Gather: rank r has block r, the root gets all blocks. m: bytes of the whole vector, p: ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ..schedule import Copy, Input, Output, Part, Recv, Round, Scratch, Send
from .patterns import children, parent

ALGORITHMS: dict[str, dict[str, Any]] = {"linear": {}, "binomial": {}}


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


def binomial(rank: int, size: int, root: int) -> Iterator[Round]:
    """Collect the blocks of my subtree, hand them to my parent: ceil(log2 p) rounds.

    (p-1)/p m at the root. Inner ranks keep their subtree in scratch. Source: Chan et al., CCPE 19
    (2007).
    """
    up, count = parent(rank, size, root)
    place: Callable[..., Part] = Input
    if rank == root:
        place = Output
    elif count > 1:
        place = partial(Scratch, "subtree")
    yield Copy(Input(rank), place(rank))
    for child, n in reversed(list(children(rank, size, root))):
        yield Recv(child, place(child, n))
    if rank != root:
        yield Send(up, place(rank, count))
