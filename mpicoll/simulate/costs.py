"""Costs of schedules by formula: the critical path of p ranks with one full-duplex port each.

T = rounds * alpha + sent * m / bandwidth + reduced * m * gamma, where m is the bytes of the vector,
in equal blocks, on a flat network. The simulator computes the same times by running all ranks.
Sources: the docstrings of the algorithms; Chan et al., CCPE 19 (2007); Thakur, Rabenseifner, Gropp,
IJHPCA 19 (2005). In the formulas: q = ceil(log2 p), k = floor(log2 p), f = (p-1)/p.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from .. import collectives
from .network import Level, Network


class PathCost(NamedTuple):
    """Costs along the critical path, per byte of the vector."""

    #: messages one after the other
    rounds: int
    #: bytes sent
    sent: float
    #: bytes reduced
    reduced: float

    def seconds(self, nbytes: float, alpha: float, bandwidth: float, gamma: float = 0.0) -> float:
        """The time for a vector of `nbytes` bytes.

        alpha: seconds per message. bandwidth: bytes per second. gamma: seconds per byte reduced.
        """
        return self.rounds * alpha + self.sent * nbytes / bandwidth + self.reduced * nbytes * gamma


def closed_form(collective: str, algorithm: str, size: int, segments: int = 1) -> PathCost | None:
    """The `PathCost` of an algorithm at `size` ranks, or None without a formula.

    segments: of pipelined algorithms. It is exact, except for allreduce `pipeline` at three or more
    ranks and segments where gamma > 0: there it is an upper limit, as reductions partly overlap
    with transfers, which saves up to a tenth.
    """
    formula = _FORMULAS.get((collective, algorithm))
    if formula is None:
        return None
    return formula(size, segments) if size > 1 else PathCost(0, 0, 0)


def lower_bound(collective: str, size: int) -> PathCost:
    """Lower bounds of every algorithm, for the busiest rank: rounds, bytes sent and reduced.

    An algorithm may reach a bound at the expense of another, and overlap their times. `sent` is
    also the factor from nccl-tests' algorithm bandwidth to its bus bandwidth.
    """
    sent = share = _share(size)
    if collective == "allreduce":
        sent = 2 * share
    elif collective in ("bcast", "reduce", "scan", "exscan"):
        sent = min(1, size - 1)
    reduced = share if collectives.find(collective).reduces else 0
    if collective == "scan":  # no rank can share the sum of the last one
        reduced = min(1, size - 1)
    elif collective == "exscan":
        reduced = min(1, max(0, size - 2))
    return PathCost(_ceil_log2(size), sent, reduced)


def least_seconds(collective: str, size: int, nbytes: float, network: Network) -> float:
    """A lower bound of the time of every algorithm on a network, as if all links were the fastest.

    Where groups share a port, the traffic of a group passes through it. (This does not count for
    scatter and gather: with groups of different sizes it depends on the root's group.)
    """
    links: list[Network | Level] = [network, *network.levels]
    bound = lower_bound(collective, size)
    fastest = max(link.bandwidth for link in links)
    floors = [
        bound.rounds * min(link.alpha for link in links),
        bound.sent * nbytes / fastest,
        bound.reduced * nbytes * network.gamma,
    ]
    for depth, level in enumerate(network.levels):
        if level.shared_port and collective not in ("scatter", "gather"):
            groups = Counter(map(level.group_of, range(size)))
            outside = max(link.bandwidth for link in (links[0], *links[depth + 2 :]))
            leaves = lower_bound(collective, len(groups)).sent
            if collective == "alltoall":  # each rank of a group sends a block to each rank outside
                leaves = max(ranks * (size - ranks) for ranks in groups.values()) / size
            floors.append(leaves * nbytes / outside)
    return max(floors)


def _ceil_log2(size: int) -> int:
    return (size - 1).bit_length()


def _floor_log2(size: int) -> int:
    return size.bit_length() - 1


def _share(size: int) -> float:
    return (size - 1) / size


def _fold(size: int) -> int:
    """The number of ranks beyond a power of two."""
    return size - (1 << _floor_log2(size))


#: of the number of ranks and of segments
Formula: TypeAlias = Callable[[int, int], PathCost]


def _linear(p: int, _: int) -> PathCost:
    """One rank exchanges whole vectors with all others in turn."""
    return PathCost(p - 1, p - 1, 0)


def _binomial(p: int, _: int) -> PathCost:
    """Whole vectors along a binomial tree."""
    return PathCost(_ceil_log2(p), _ceil_log2(p), 0)


def _in_turns(p: int, _: int) -> PathCost:
    """p-1 blocks in as many rounds: ring, pairwise, and the root of a linear scatter or gather."""
    return PathCost(p - 1, _share(p), 0)


def _logarithmic(p: int, _: int) -> PathCost:
    """The same blocks in q rounds: circulant, Bruck, the root of a binomial scatter or gather."""
    return PathCost(_ceil_log2(p), _share(p), 0)


def _all_at_once(p: int, _: int) -> PathCost:
    """A block from each rank to each other one, in one round.

    The first free ports pair ranks i and j in turn i xor j, so there are 2^q - 1 turns, some empty
    unless p is a power of two.
    """
    turns = (1 << _ceil_log2(p)) - 1
    return PathCost(turns, turns / p, 0)


def _all_but_a_block(p: int, _: int) -> PathCost:
    """The root sends each rank in turn a block, and all others."""
    return PathCost(2 * (p - 1), p - 1, 0)


def _store_and_forward(p: int, _: int) -> PathCost:
    """Bruck's alltoall: in round k the blocks move whose distance has bit k."""
    moved = sum(distance >> k & 1 for distance in range(p) for k in range(_ceil_log2(p)))
    return PathCost(_ceil_log2(p), moved / p, 0)


def _chain(p: int, n: int) -> PathCost:
    """Along a chain, in n segments: n + p - 2 rounds."""
    return PathCost(n + p - 2, (n + p - 2) / n, 0)


def _both_chains(p: int, n: int) -> PathCost:
    """Up and down a chain at the same time; middle ranks receive from two sides in every round."""
    if p == 2:
        return PathCost(n + 1, (n + 1) / n, 1)
    rounds = 2 * (n + p - 2) - (n == 2)  # two segments pass each other without waiting
    return PathCost(rounds, rounds / n, (n + p - 2) / n)


def _exclusive_chain(p: int, n: int) -> PathCost:
    """Along a chain; the last rank adds nothing."""
    return _chain(p, n)._replace(reduced=(n + p - 3) / n if p > 2 else 0)


def _circulant(p: int, n: int) -> PathCost:
    rounds = n - 1 + _ceil_log2(p)
    return PathCost(rounds, rounds / n, 0)


def _recursive_doubling(p: int, _: int) -> PathCost:
    """Extra ranks send the vector first and get the result at the end, as in the next two."""
    k = _floor_log2(p)
    folds = _fold(p) > 0
    return PathCost(k + 2 * folds, k + 2 * folds, k + folds)


def _halving_doubling(p: int, _: int) -> PathCost:
    core = 1 << _floor_log2(p)
    k = _floor_log2(p)
    folds = _fold(p) > 0
    return PathCost(2 * (k + folds), 2 * (_share(core) + folds), _share(core) + folds)


def _halves(p: int) -> tuple[int, int]:
    """(k, blocks exchanged in k rounds of halving or doubling).

    Ranks with a folded neighbour stand for two blocks and come first, so that the lowest group of
    each round is the largest: the critical path.
    """
    k = _floor_log2(p)
    return k, sum((1 << bit) + min(_fold(p), 1 << bit) for bit in range(k))


def _halving(p: int, _: int) -> PathCost:
    """An extra rank sends the whole vector, and gets its block."""
    k, blocks = _halves(p)
    folds = _fold(p) > 0
    return PathCost(k + 2 * folds, blocks / p + folds * (1 + 1 / p), blocks / p + folds)


def _doubling(p: int, _: int) -> PathCost:
    """An extra rank sends its block, and gets the whole vector."""
    return _halving(p, _)._replace(reduced=0)


def _reduces(formula: Formula) -> Formula:
    """The same messages, each of which is added to what its receiver has."""

    def cost(p: int, n: int) -> PathCost:
        moved = formula(p, n)
        return moved._replace(reduced=moved.sent)

    return cost


def _two(first: Formula, second: Formula) -> Formula:
    """Both, one after the other."""

    def cost(p: int, n: int) -> PathCost:
        rounds, sent, reduced = map(sum, zip(first(p, n), second(p, n)))
        return PathCost(int(rounds), sent, reduced)

    return cost


_FORMULAS: dict[tuple[str, str], Formula] = {
    ("allreduce", "parameter_server"): _two(_reduces(_linear), _linear),
    ("allreduce", "reduce_bcast"): _two(_reduces(_binomial), _binomial),
    ("allreduce", "pipeline"): _both_chains,
    ("allreduce", "recursive_doubling"): _recursive_doubling,
    ("allreduce", "halving_doubling"): _halving_doubling,
    ("allreduce", "ring"): _two(_reduces(_in_turns), _in_turns),
    ("allreduce", "circulant"): _two(_reduces(_logarithmic), _logarithmic),
    ("allreduce", "pairwise"): _two(_reduces(_in_turns), _in_turns),
    ("allreduce", "allgather_reduce"): _reduces(_linear),  # each vector is a separate message
    ("allreduce", "bine"): _recursive_doubling,
    ("reduce_scatter", "ring"): _reduces(_in_turns),
    ("reduce_scatter", "halving"): _halving,
    ("reduce_scatter", "circulant"): _reduces(_logarithmic),
    ("reduce_scatter", "pairwise"): _reduces(_in_turns),
    # some turns have no message
    ("reduce_scatter", "direct"): lambda p, n: _all_at_once(p, n)._replace(reduced=_share(p)),
    ("allgather", "ring"): _in_turns,
    ("allgather", "doubling"): _doubling,
    ("allgather", "circulant"): _logarithmic,
    ("allgather", "bruck"): _logarithmic,
    ("allgather", "direct"): _all_at_once,
    ("alltoall", "pairwise"): _in_turns,
    ("alltoall", "direct"): _all_at_once,
    ("alltoall", "bruck"): _store_and_forward,
    ("bcast", "linear"): _linear,
    ("bcast", "binomial"): _binomial,
    ("bcast", "bine"): _binomial,
    ("bcast", "scatter_allgather"): _two(_logarithmic, _logarithmic),
    ("bcast", "pipeline"): _chain,
    ("bcast", "circulant"): _circulant,
    ("bcast", "direct"): _all_but_a_block,
    ("reduce", "linear"): _reduces(_linear),
    ("reduce", "binomial"): _reduces(_binomial),
    ("reduce", "bine"): _reduces(_binomial),
    ("reduce", "reduce_scatter_gather"): _two(_reduces(_logarithmic), _logarithmic),
    ("reduce", "pairwise"): _two(_reduces(_in_turns), _in_turns),
    ("reduce", "pipeline"): _reduces(_chain),
    ("reduce", "circulant"): _reduces(_circulant),
    ("scatter", "linear"): _in_turns,
    ("scatter", "binomial"): _logarithmic,
    ("scatter", "bine"): _logarithmic,
    ("gather", "linear"): _in_turns,
    ("gather", "binomial"): _logarithmic,
    ("gather", "bine"): _logarithmic,
    ("scan", "linear"): _reduces(_linear),
    ("scan", "recursive_doubling"): _reduces(_binomial),
    ("scan", "pipeline"): _reduces(_chain),
    ("exscan", "linear"): lambda p, n: _exclusive_chain(p, 1),
    ("exscan", "pipeline"): _exclusive_chain,
}
