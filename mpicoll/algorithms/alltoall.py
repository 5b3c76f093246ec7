"""Alltoall: rank r has a block for each rank, and gets one from each: p x p blocks are transposed.

m: bytes of a rank's vector, p: ranks. The number of a block is its place: `Input(r)` is for rank r,
`Output(r)` from rank r.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..schedule import Copy, Input, Output, Recv, Round, Scratch, Send
from .patterns import others

ALGORITHMS: dict[str, dict[str, Any]] = {
    "pairwise": {},
    "direct": {},
    "bruck": {"equal_blocks": True},
}


def pairwise(rank: int, size: int) -> Iterator[Round]:
    """Send each block straight to its rank, at distance 1, 2, 3, …: p-1 rounds, (p-1)/p m.

    Blocks may have any sizes. Source: Thakur, Rabenseifner, Gropp, IJHPCA 19 (2005).
    """
    yield Copy(Input(rank), Output(rank))
    for target, source in zip(*others(rank, size)):
        yield Send(target, Input(target)), Recv(source, Output(source))


def direct(rank: int, size: int) -> Iterator[Round]:
    """The same in one round of p-1 messages each way.

    For ranks that share memory: they read the blocks in place.
    """
    above, below = others(rank, size)
    yield (
        *[Send(peer, Input(peer)) for peer in above],
        *[Recv(peer, Output(peer)) for peer in below],
        Copy(Input(rank), Output(rank)),
    )


def bruck(rank: int, size: int) -> Iterator[Round]:
    """Move blocks on by 1, 2, 4, … ranks, those together whose way has that power of two.

    ceil(log2 p) rounds, about m/2 per round, packed before it. Blocks have one size. Source: Bruck
    et al., IEEE TPDS 8 (1997).
    """
    place_of = [Input(rank + way) for way in range(size)]  # by the distance that is left
    distance = 1
    while distance < size:
        moving = [way for way in range(size) if way & distance]
        arrived = f"came {distance}"
        packed = Scratch("packed", 0, len(moving))
        yield [Copy(place_of[way], Scratch("packed", at)) for at, way in enumerate(moving)]
        yield Send(rank + distance, packed), Recv(rank - distance, Scratch(arrived, 0, len(moving)))
        for at, way in enumerate(moving):
            place_of[way] = Scratch(arrived, at)
        distance *= 2
    yield [Copy(place_of[way], Output(rank - way)) for way in range(size)]
