"""Barrier: every rank has a byte, every rank gets all p bytes, and so knows that all have begun.

p: ranks, q = ceil(log2 p). Messages have p bytes at most: their number is the cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..schedule import OUTPUT, Round, renamed
from . import allgather, bcast, gather

ALGORITHMS: dict[str, dict[str, Any]] = {"dissemination": {}, "tree": {}}


def dissemination(rank: int, size: int) -> Iterator[Round]:
    """Tell the rank at distance 1, 2, 4, … who has arrived: q rounds.

    Source: Hensgen, Finkel, Manber, IJPP 17 (1988).
    """
    yield from allgather.bruck(rank, size)


def tree(rank: int, size: int) -> Iterator[Round]:
    """Binomial gather to rank 0, binomial broadcast from it: 2q rounds, 2 (p-1) messages in all.

    Source: Mellor-Crummey, Scott, ACM TOCS 9 (1991).
    """
    yield from renamed(gather.binomial(rank, size, 0), {"subtree": OUTPUT})
    whole = bcast.binomial(rank, size, 0)
    yield from renamed(whole, block=lambda first, count: ((0, size),))
