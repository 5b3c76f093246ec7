"""Alltoall: rank r has a block for each rank, and gets one from each: p x p blocks are transposed.

m: bytes of a rank's vector, p: ranks. The number of a block is its place: `Input(r)` is for rank r,
`Output(r)` from rank r.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..schedule import Copy, Input, Output, Recv, Round, Scratch, Send
from .patterns import Lanes, Nodes, others

ALGORITHMS: dict[str, dict[str, Any]] = {
    "pairwise": {},
    "direct": {},
    "bruck": {"equal_blocks": True},
    "hierarchical": {"equal_blocks": True},
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


def hierarchical(rank: int, size: int, nodes: Nodes = None) -> Iterator[Round]:
    """Inside the node each rank collects what goes to its lane, then a message per rank and node.

    A rank gets the blocks of a whole node in one message, from the rank of its lane there: N-1
    messages through the network instead of p - p/N at N equal nodes, and as many bytes. Blocks have
    one size. Source: node-aware aggregation, Bienz, Olson, Gropp, ExaMPI (2019), of an allreduce.
    """
    lanes = Lanes(rank, size, nodes)
    mine = lanes.members[lanes.node]
    lane = lanes.local
    #: by lane of this node, the ranks of other nodes that it serves
    served: list[list[int]] = [[] for _ in mine]
    for distance in range(1, lanes.nodes):
        for local, target in enumerate(lanes.members[(lanes.node + distance) % lanes.nodes]):
            served[local % len(mine)].append(target)
    #: by local rank, where its blocks for the ranks that this one serves are
    collected = [[Input(target) for target in served[lane]] for _ in mine]
    yield Copy(Input(rank), Output(rank))
    for step in range(1, len(mine)):
        above, below = (lane + step) % len(mine), (lane - step) % len(mine)
        leaving = [*served[above], mine[above]]
        yield [Copy(Input(target), Scratch("packed", at)) for at, target in enumerate(leaving)]
        arrived = f"from {below}"
        count = len(served[lane])
        yield (
            Send(mine[above], Scratch("packed", 0, len(leaving))),
            Recv(mine[below], Scratch(arrived, 0, count + 1)),
            Copy(Scratch(arrived, count), Output(mine[below])),
        )
        collected[below] = [Scratch(arrived, at) for at in range(count)]
    position = {target: at for at, target in enumerate(served[lane])}
    for distance in range(1, lanes.nodes):
        there = lanes.members[(lanes.node + distance) % lanes.nodes]
        targets = [target for target in there if target in position]
        yield [
            Copy(collected[local][position[target]], Scratch(f"to {target}", local))
            for target in targets
            for local in range(len(mine))
        ]
        behind = lanes.members[(lanes.node - distance) % lanes.nodes]
        source = behind[lane % len(behind)]
        arrived = f"of node {distance}"
        yield (
            *[Send(target, Scratch(f"to {target}", 0, len(mine))) for target in targets],
            Recv(source, Scratch(arrived, 0, len(behind))),
            *[Copy(Scratch(arrived, at), Output(origin)) for at, origin in enumerate(behind)],
        )
