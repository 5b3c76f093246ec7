"""Allreduce: every rank has a vector, every rank gets their sum.

m: bytes of the vector, p: ranks, q = ceil(log2 p). Every algorithm sends at least 2 (p-1)/p m per
rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any

from ..collectives import ALLREDUCE
from ..schedule import (
    INPUT,
    OUTPUT,
    Copy,
    Input,
    Operation,
    Output,
    Part,
    Recv,
    Reduce,
    Round,
    Scratch,
    Send,
    Write,
    Written,
    folded,
    power_of_two,
    renamed,
    segmented,
)
from . import allgather, bcast, reduce, reduce_scatter
from .patterns import (
    Lanes,
    Nodes,
    both_ways,
    even,
    fitting,
    fold_tree,
    gathered,
    groups,
    in_rank_order,
    lane_blocks,
    one_block,
    others,
    reduced,
    swing_pairs,
    swing_peers,
)

ALGORITHMS: dict[str, dict[str, Any]] = {
    "parameter_server": {"ordered": True, "blocks": one_block, "compressible": True},
    "reduce_bcast": {"ordered": True, "canonical": True, "blocks": one_block},
    "tree": {"ordered": True, "blocks": "segments"},
    "pipeline": {"ordered": True, "blocks": "segments"},
    "recursive_doubling": {"ordered": True, "canonical": True, "blocks": one_block},
    "halving_doubling": {"ordered": True, "canonical": True, "blocks": power_of_two},
    "ring": {"neighbours": True},
    "circulant": {},
    "pairwise": {"ordered": True, "canonical": True, "compressible": True},
    "allgather_reduce": {
        "ordered": True,
        "canonical": True,
        "blocks": one_block,
        "compressible": True,
    },
    "direct": {"ordered": True, "canonical": True, "cuttable": False},
    "hierarchical": {"blocks": lane_blocks, "compressible": True},
    "tripling": {"ordered": True, "blocks": one_block, "study": True},
    "quadrupling": {"ordered": True, "blocks": one_block, "study": True},
    "swing": {"blocks": even, "study": True},
    "bine": {"blocks": one_block, "study": True},
    "trivance": {"study": True},
    "generalised": {"study": True},
}


def parameter_server(rank: int, size: int) -> Iterator[Round]:
    """Rank 0 receives from each rank in turn and sends to each: 2(p-1) rounds.

    (p-1) m each way at rank 0, the cost of a central machine. Source: Li et al., OSDI 2014 (with
    one server).
    """
    if rank:
        yield Send(0, Input(0))
        yield Recv(0, Output(0))
        return
    total = Input(0)
    for peer in range(1, size):
        yield Recv(peer, Scratch("received", 0)), Reduce(total, Scratch("received", 0), Output(0))
        total = Output(0)
    for peer in range(1, size):
        yield Send(peer, Output(0))


def reduce_bcast(rank: int, size: int) -> Iterator[Round]:
    """Binomial reduce to rank 0, binomial broadcast from it: 2q rounds of m.

    Source: MPICH 1's allreduce.
    """
    yield from renamed(reduce.binomial(rank, size, 0), {"sum": OUTPUT})
    yield from bcast.binomial(rank, size, 0)


@segmented
def tree(rank: int, size: int) -> Iterator[Round]:
    """Up and down a balanced binary tree in rank order, pipelined in segments.

    3 m at inner ranks, m at leaves. n segments: n + 4 depth rounds or so, two receives in each.
    Source: Sanders, Speck, Traeff, ParCo 35 (2009).
    """
    low, high = 0, size
    depth = 0
    parent = None
    while (middle := (low + high) // 2) != rank:
        parent = middle
        depth += 1
        low, high = (low, middle) if rank < middle else (middle + 1, high)
    height = size.bit_length() - 1  # of the whole tree: rounds count from its deepest leaves
    children = [(a + b) // 2 for a, b in ((low, rank), (rank + 1, high)) if a < b]
    yield from ((),) * (height - depth - 1)
    if children:
        yield _gather_children(rank, children)
    elif depth < height:
        yield ()
    total = Output(0) if children else Input(0)
    if parent is not None:
        yield Send(parent, total)
        yield from ((),) * (2 * depth - 2)
        yield Recv(parent, Output(0))
    if children:
        yield tuple(Send(child, Output(0)) for child in children)


def _gather_children(rank: int, children: list[int]) -> Round:
    operations: list[Operation] = []
    total = Input(0)
    for child in children:
        received = Scratch(f"from {child}", 0)
        operands = in_rank_order(rank, child, total, received)
        operations += Recv(child, received), Reduce(*operands, Output(0))
        total = Output(0)
    return operations


@segmented
def pipeline(rank: int, size: int) -> Iterator[Round]:
    """Sum along the chain 0 … p-1, result back along it, in segments: 2 (n + p - 2) rounds of m/n.

    2 m per middle rank at any p; latency grows with p. Source: Chan et al., CCPE 19 (2007), with
    both chains overlapped.
    """
    yield from ((),) * (rank - 1)
    if rank:
        received = Scratch("received", 0)
        yield Recv(rank - 1, received), Reduce(received, Input(0), Output(0))
    if rank < size - 1:
        yield Send(rank + 1, Output(0) if rank else Input(0))
        yield from ((),) * (2 * (size - rank) - 4)
        yield Recv(rank + 1, Output(0))
    if rank:
        yield Send(rank - 1, Output(0))


@folded(ALLREDUCE)
def recursive_doubling(rank: int, size: int) -> Iterator[Round]:
    """Exchange whole vectors with the partner at distance 1, 2, 4, …: log2 p rounds of m.

    Folded at sizes that are no power of two. Source: Thakur, Rabenseifner, Gropp, IJHPCA 19 (2005).
    """
    total = Input(0)
    received = Scratch("received", 0)
    distance = 1
    while distance < size:
        peer = rank ^ distance
        operands = in_rank_order(rank, peer, total, received)
        yield Send(peer, total), Recv(peer, received), Reduce(*operands, Output(0))
        total = Output(0)
        distance *= 2


@folded(ALLREDUCE)
def halving_doubling(rank: int, size: int) -> Iterator[Round]:
    """Exchange halves with the nearest partner, quarters with the next, …, then gather back.

    2 log2 p rounds, 2 (p-1)/p m at powers of two; folded at other sizes, up to twice as much there.
    Source: Rabenseifner, ICCS 2004.
    """
    first, count = 0, size
    place = Input
    exchanges = []
    for peer in (rank ^ (1 << bit) for bit in range(size.bit_length() - 1)):
        half = count // 2
        keep, give = (first, first + half) if rank < peer else (first + half, first)
        received = Scratch("received", keep, half)
        operands = in_rank_order(rank, peer, place(keep, half), received)
        yield (
            Send(peer, place(give, half)),
            Recv(peer, received),
            Reduce(*operands, Output(keep, half)),
        )
        exchanges.append((peer, keep, give, half))
        first, count, place = keep, half, Output
    for peer, keep, give, half in reversed(exchanges):
        yield Send(peer, Output(keep, half)), Recv(peer, Output(give, half))


def ring(rank: int, size: int) -> Iterator[Round]:
    """Ring reduce-scatter, ring allgather: 2(p-1) rounds, 2 (p-1)/p m.

    Source: Patarasuk and Yuan, JPDC 69 (2009).
    """
    yield from reduce_scatter.ring(rank, size, sums=OUTPUT)
    yield from allgather.ring(rank, size, own=OUTPUT)


def circulant(rank: int, size: int) -> Iterator[Round]:
    """Circulant reduce-scatter and allgather: 2q rounds, 2 (p-1)/p m, at any size.

    Source: Traeff, arXiv 2410.14234.
    """
    yield from reduce_scatter.circulant(rank, size, sums=OUTPUT)
    yield from allgather.circulant(rank, size, own=OUTPUT)


def pairwise(rank: int, size: int, compressed: bool = False) -> Iterator[Round]:
    """Contributions straight to their owner, sums straight back: 2(p-1) messages, 2 (p-1)/p m.

    Canonical bits. compressed: in two rounds, of which pieces go to all ranks in turn. The links
    carry all messages at once, and the first sums are sent back while contributions still come.
    """
    yield from reduce_scatter.pairwise(rank, size, compressed)
    exchanges = [
        (Send(rank - t, Output(rank)), Recv(rank + t, Output(rank + t))) for t in range(1, size)
    ]
    if compressed:
        yield tuple(chain.from_iterable(exchanges))
    else:
        yield from exchanges


def allgather_reduce(rank: int, size: int) -> Iterator[Round]:
    """Gather all vectors everywhere, add them locally in the canonical order: q rounds, (p-1) m.

    For tiny vectors. Source: Open MPI's allgather_reduce, with an order that is the same on all
    ranks.
    """

    def vector(of: int) -> Part:
        return Input(0) if of % size == rank else Scratch(f"from {of % size}", 0)

    for step in allgather.circulant(rank, size):
        if type(step) is tuple:
            yield tuple(
                op._replace(part=vector(op.part.first + i))
                for op in step
                for i in range(op.part.count)
            )
    yield fold_tree(map(vector, range(size)), Output(0))


def direct(rank: int, size: int) -> Iterator[Round]:
    """Each rank adds its block of all vectors and writes the sum into them: 2 rounds, 2 (p-1)/p m.

    p-1 messages in each round. For ranks that share memory: sums are read and written in place.
    Canonical bits. Source: the one-stage and two-stage allreduce of GPUs in one machine, as in
    TensorRT-LLM.
    """
    yield from reduce_scatter.direct(rank, size)
    above, below = others(rank, size)
    yield (
        *[Write(peer, Output(rank)) for peer in above],
        *[Written(peer, Output(peer)) for peer in below],
    )


def hierarchical(
    rank: int, size: int, nodes: Nodes = None, compressed: bool = False
) -> Iterator[Round]:
    """Reduce-scatter inside the node, allreduce in each lane across nodes, allgather inside.

    Circulant inside; across nodes a ring up to 8 of them, circulant above: 2 ceil(log2 n) + 2 (N-1)
    or 2 ceil(log2 N) rounds on N nodes of n ranks. 2 (N-1)/N m leave a node, the minimum. Source:
    Traeff and Hunold, full-lane collectives, CLUSTER 2020; for nodes of any sizes, see `lanes`.
    compressed: pairwise across nodes.
    """
    lanes = Lanes(rank, size, nodes)
    yield from lanes.inside(reduce_scatter.circulant, sums=OUTPUT)
    places = {INPUT: OUTPUT} if lanes.ranks > 1 else {}
    across = partial(pairwise, compressed=True) if compressed else lanes.suited(ring, circulant)
    yield from lanes.across(across, places=places)
    yield from lanes.inside(allgather.circulant, own=OUTPUT)


@folded(ALLREDUCE, fitting(3))
def tripling(rank: int, size: int) -> Iterator[Round]:
    """Exchange whole vectors in groups of three, nearest first; folded if a prime > 3 divides p.

    Recursive multiplying with radix 3: log3 p rounds at powers of three, two messages of m in each,
    pairs for the factors 2 of p. For study. Source: Ruefenacht, Bull, Booth, ParCo 69 (2017);
    MPICH.
    """
    yield from _multiplying(rank, size, 3)


@folded(ALLREDUCE, fitting(4))
def quadrupling(rank: int, size: int) -> Iterator[Round]:
    """Exchange whole vectors in groups of four, nearest first; folded if a prime > 3 divides p.

    Recursive multiplying with radix 4: half the rounds of doubling, three messages of m in each.
    For study. Source: as `tripling`.
    """
    yield from _multiplying(rank, size, 4)


def _multiplying(rank: int, size: int, radix: int) -> Iterator[Round]:
    total = Input(0)
    for _, group in groups(rank, size, radix):
        vectors = [total if peer == rank else Scratch(f"from {peer}", 0) for peer in group]
        yield (
            *[Send(peer, total) for peer in group if peer != rank],
            *[Recv(peer, vector) for peer, vector in zip(group, vectors) if peer != rank],
            *fold_tree(vectors, Output(0)),
        )
        total = Output(0)


@folded(ALLREDUCE, even)
def swing(rank: int, size: int) -> Iterator[Round]:
    """Swing reduce-scatter and allgather: pairs at distances 1, 1, 3, 5, …, and back.

    2 ceil(log2 p) rounds, 2 (p-1)/p m, at even sizes; folded at odd ones. Blocks are numbered so
    that each message is one range at powers of two. Bine's allreduce of large vectors is the same.
    For study. Source: De Sensi et al., Swing, arXiv 2401.09356 (which serves odd sizes otherwise).
    """
    spread = swing_pairs(size)
    numbers = spread.numbers()
    rounds = list(spread.exchanges(rank, numbers.__getitem__))
    yield from reduced(rounds, OUTPUT)
    yield from gathered(rounds, numbers[rank], OUTPUT)


@folded(ALLREDUCE)
def bine(rank: int, size: int) -> Iterator[Round]:
    """Exchange whole vectors with the partner at distance …, 5, 3, 1, 1: log2 p rounds of m.

    The far ones first: from 8 ranks on, ranks would add in different orders with the near ones
    first, and have different bits. Folded at sizes that are no power of two. For study. Source: De
    Sensi et al., arXiv 2508.17311 (its butterfly, for small vectors).
    """
    total = Input(0)
    received = Scratch("received", 0)
    numbers = swing_pairs(size).numbers()
    for peer in swing_peers(rank, size):
        operands = in_rank_order(numbers[rank], numbers[peer], total, received)
        yield Send(peer, total), Recv(peer, received), Reduce(*operands, Output(0))
        total = Output(0)


def trivance(rank: int, size: int) -> Iterator[Round]:
    """Sums go 1, 3, 9, … ranks up and as many down at once, then back: 2 ceil(log3 p) such rounds.

    2 (p-1)/p m, any size. For rings with two ports, for study. Source: Juerss, Addanki, Schmid,
    Trivance, arXiv 2602.17254, the bandwidth-optimal form; its latency-optimal one, of whole
    vectors in ceil(log3 p) rounds, gives ranks different bits, which `verify` refuses.
    """
    rounds = list(both_ways(size).exchanges(rank))
    yield from reduced(rounds, OUTPUT)
    yield from gathered(rounds, rank, OUTPUT)


def generalised(rank: int, size: int, doublings: int | None = None) -> Iterator[Round]:
    """Stop the reduce-scatter early, finish sums in several places: 2q - d rounds, any size.

    In the d rounds in the middle (`doublings`: 0 to q-1, default q // 2) ranks exchange all of the
    2^d blocks that they have, half of them with either of two partners: 2 (p - 2^d)/p m + d 2^d/p
    m. For study. Source: Kolmakov and Zhang, arXiv 2004.09362, where rounds are as tunable at any
    size. The exchanges in the middle are ours, so that all ranks have the same bits: the paper has
    one partner in each round, and goes down to q rounds.
    """
    bits = (size - 1).bit_length()
    doublings = bits // 2 if doublings is None else doublings
    skips = [*(1 << bit for bit in range(bits)), size]
    steps = list(zip(skips, skips[1:]))[doublings:]
    place: Callable[..., Part] = Input
    for near, far in reversed(steps):
        count = far - near
        received = Scratch("received", rank, count)
        # the first round moves less than half, and the rest gets no contribution
        rest = near - count if far == size else 0
        yield (
            Send(rank + near, place(rank + near, count)),
            Recv(rank - near, received),
            Reduce(received, place(rank, count), Output(rank, count)),
            Copy(Input(rank + count, rest), Output(rank + count, rest)),
        )
        place = Output
    window = 1 << doublings
    for distance in (1 << bit for bit in reversed(range(doublings))):
        operations: list[Operation] = []
        for first in range(rank, rank + window, 2 * distance):
            # the sum of a block is finished by the ranks that have it, each with its mirror image
            for peer, block in ((rank - distance, first), (rank + distance, first + distance)):
                mine, theirs = Output(block, distance), Scratch("received", block, distance)
                operands = (mine, theirs) if peer < rank else (theirs, mine)
                operations += Send(peer, mine), Recv(peer, theirs), Reduce(*operands, mine)
        yield operations
    for near, far in steps:
        count = far - near
        yield Send(rank - near, Output(rank, count)), Recv(rank + near, Output(rank + near, count))
