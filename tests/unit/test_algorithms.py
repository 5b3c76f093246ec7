"""Every algorithm of ours: proved at many sizes, with exactly the rounds and bytes it is known for."""

from itertools import pairwise
from math import ceil, log2

import pytest

from mpicoll import algorithms
from mpicoll.algorithms.patterns.canonical import fold_tree
from mpicoll.algorithms.patterns.circulant import circulant_steps
from mpicoll.collectives import COLLECTIVES
from mpicoll.schedule import Output, Scratch, power_of_two
from mpicoll.verify import check, check_cases
from tests.support.registered import EVERY, named

SEGMENTS = 6


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", EVERY, ids=named)
def test_is_proved_at_sizes_1_to_20(algorithm):
    _, ordered, canonical, quantisations = check_cases(algorithm, range(1, 21))
    assert (quantisations is not None) == algorithm.compressible
    if COLLECTIVES[algorithm.collective].reduces:  # neither claimed wrongly nor needlessly left out
        assert (ordered, canonical) == (algorithm.ordered, algorithm.canonical)


@pytest.mark.parametrize("size", [33, 39, 40])
def test_the_canonical_order_is_kept_at_larger_sizes(size):
    for algorithm in EVERY:
        if algorithm.canonical:
            assert check_cases(algorithm, [size]).canonical


def largest_subtree(p):
    """Blocks below the busiest child of the root of a binomial tree."""
    return max(min(1 << bit, p - (1 << bit)) for bit in range(p.bit_length()) if 1 << bit < p)


# For p ranks, q = ceil(log2 p), k = log2 of the power of two below, f: 1 where extras fold in, else 0, and n segments:
# the rounds, and the most a rank sends as a number of blocks. Sources: algorithms' docstrings; None where no closed
# form is known.
KNOWN = {
    "allreduce-parameter_server": lambda p, q, k, f, n: (2 * (p - 1), p - 1),
    "allreduce-reduce_bcast": lambda p, q, k, f, n: (2 * q, q),
    "allreduce-tree": lambda p, q, k, f, n: (None, None),
    # depends on the nodes, see below
    **{f"{name}-hierarchical": lambda p, q, k, f, n: (None, None)
       for name in ("allreduce", "reduce_scatter", "allgather", "alltoall", "bcast", "reduce")},
    "allreduce-pipeline": lambda p, q, k, f, n: (n + 1 if p == 2 else 2 * (n + p - 2), n if p == 2 else 2 * n),
    "allreduce-recursive_doubling": lambda p, q, k, f, n: (k + 2 * f, k + f),
    "allreduce-halving_doubling": lambda p, q, k, f, n: (2 * (k + f), 2 * (2**k - 1) + f * 2**k),
    "allreduce-ring": lambda p, q, k, f, n: (2 * (p - 1), 2 * (p - 1)),
    "allreduce-circulant": lambda p, q, k, f, n: (2 * q, 2 * (p - 1)),
    "allreduce-pairwise": lambda p, q, k, f, n: (2 * (p - 1), 2 * (p - 1)),
    "allreduce-allgather_reduce": lambda p, q, k, f, n: (q, p - 1),
    "allreduce-direct": lambda p, q, k, f, n: (2 * (p - 1), 2 * (p - 1)),
    "reduce_scatter-direct": lambda p, q, k, f, n: (p - 1, p - 1),
    "reduce_scatter-ring": lambda p, q, k, f, n: (p - 1, p - 1),
    "reduce_scatter-halving": lambda p, q, k, f, n: (k + 2 * f, None if f else p - 1),
    "reduce_scatter-circulant": lambda p, q, k, f, n: (q, p - 1),
    "reduce_scatter-pairwise": lambda p, q, k, f, n: (p - 1, p - 1),
    "allgather-ring": lambda p, q, k, f, n: (p - 1, p - 1),
    "allgather-doubling": lambda p, q, k, f, n: (k + 2 * f, None if f else p - 1),
    "allgather-circulant": lambda p, q, k, f, n: (q, p - 1),
    "allgather-bruck": lambda p, q, k, f, n: (q, p - 1),
    "allgather-direct": lambda p, q, k, f, n: (p - 1, p - 1),
    "bcast-direct": lambda p, q, k, f, n: (p - 1, p * (p - 1)),
    "alltoall-pairwise": lambda p, q, k, f, n: (p - 1, p - 1),
    "alltoall-direct": lambda p, q, k, f, n: (p - 1, p - 1),
    "alltoall-bruck": lambda p, q, k, f, n: (q, sum(distance.bit_count() for distance in range(p))),
    "bcast-linear": lambda p, q, k, f, n: (p - 1, p - 1),
    "bcast-binomial": lambda p, q, k, f, n: (q, q),
    "bcast-scatter_allgather": lambda p, q, k, f, n: (2 * q, 2 * (p - 1)),
    "bcast-pipeline": lambda p, q, k, f, n: (n + p - 2, n),
    "bcast-circulant": lambda p, q, k, f, n: (n - 1 + q, n - 1 + q),
    "reduce-linear": lambda p, q, k, f, n: (p - 1, 1),
    "reduce-binomial": lambda p, q, k, f, n: (q, 1),
    "reduce-reduce_scatter_gather": lambda p, q, k, f, n: (2 * q, p - 1 + largest_subtree(p)),
    "reduce-pairwise": lambda p, q, k, f, n: (2 * (p - 1), p),
    "reduce-pipeline": lambda p, q, k, f, n: (n + p - 2, n),
    "reduce-circulant": lambda p, q, k, f, n: (n - 1 + q, n),
    "scatter-linear": lambda p, q, k, f, n: (p - 1, p - 1),
    "scatter-binomial": lambda p, q, k, f, n: (q, p - 1),
    "gather-linear": lambda p, q, k, f, n: (p - 1, 1),
    "gather-binomial": lambda p, q, k, f, n: (q, largest_subtree(p)),
}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", EVERY, ids=named)
def test_costs_what_theory_says(algorithm):
    for p in range(2, 21):
        k = power_of_two(p).bit_length() - 1
        rounds, sent = KNOWN[named(algorithm)](p, ceil(log2(p)), k, int(p != 2**k), SEGMENTS)
        cost = check(algorithm.collective, algorithm.generator, p, blocks=algorithm.vector_blocks(p, SEGMENTS))
        assert rounds in (None, cost.rounds), f"{p} ranks"
        assert sent in (None, cost.bytes_sent), f"{p} ranks"


@pytest.mark.parametrize("algorithm", EVERY, ids=named)
def test_costs_nothing_at_one_rank(algorithm):
    assert check(algorithm.collective, algorithm.generator, 1)[:5] == (0, 0, 0, 0, 0)


@pytest.mark.parametrize("collective, bound", [("allreduce", 2), ("reduce_scatter", 1), ("allgather", 1)])
def test_circulant_reaches_both_lower_bounds_at_every_size(collective, bound):
    generator = algorithms.find(collective, "circulant").generator
    for p in (2, 3, 7, 13, 31, 64):
        cost = check(collective, generator, p)
        assert {rank.bytes_sent for rank in cost.ranks} == {bound * (p - 1)} and cost.rounds == bound * ceil(log2(p))


def test_thirteen_ranks_fold_into_eight():
    cost = check("allreduce", algorithms.find("allreduce", "halving_doubling").generator, 13)
    assert cost.rounds == 8 and cost.bytes_sent == 22
    assert [rank.bytes_sent for rank in cost.ranks] == [8, 22] * 5 + [14] * 3  # five pairs, three alone


def test_tree_sends_at_most_three_vectors():
    for p in range(2, 21):
        assert check("allreduce", algorithms.find("allreduce", "tree").generator, p, blocks=5).bytes_sent <= 15


def canonical(parts):
    """The order of fold_tree as nested pairs, from the reductions it asks for."""
    values = {part: part.first for part in parts}
    for lower, higher, into in fold_tree(parts, Output(0)):
        values[into] = values[lower], values[higher]
    return values.get(Output(0))


def order_of_sum(collective, word, size, root):
    """How block 0 at the root (or everywhere) is summed, as nested pairs of ranks."""
    algorithm, found = algorithms.find(collective, word), {}

    def observer(rank, step, expressions):
        if rank.number == root:
            pairs = {number: pair for pair, number in expressions.sums.items()}

            def tree(number):
                return tuple(map(tree, pairs[number])) if number in pairs else number

            found["tree"] = rank.memory["output"][0] is not None and tree(rank.memory["output"][0])

    check(collective, algorithm.generator, size, root, observer=observer)
    return found["tree"]


@pytest.mark.parametrize("collective, word", [
    ("allreduce", "recursive_doubling"), ("allreduce", "halving_doubling"), ("allreduce", "pairwise"),
    ("allreduce", "allgather_reduce"), ("allreduce", "direct"), ("reduce_scatter", "pairwise"),
    ("reduce_scatter", "direct"), ("reduce", "binomial"),
])
def test_canonical_algorithms_sum_in_one_and_the_same_order(collective, word):
    for size in range(2, 20):
        wanted = canonical([Scratch("of", rank) for rank in range(size)])
        assert order_of_sum(collective, word, size, root=0) == wanted, f"{size} ranks"
    if collective == "reduce":
        assert order_of_sum(collective, word, 13, root=6) == canonical([Scratch("of", rank) for rank in range(13)])


@pytest.mark.parametrize("size", range(2, 70))
def test_circulant_skips_halve(size):
    steps = circulant_steps(size)
    assert steps[0][0] == 1 and steps[-1][1] == size and len(steps) == ceil(log2(size))
    assert all(far == following for (_, far), (following, _) in pairwise(steps))
    assert all(near == (far + 1) // 2 for near, far in steps)


def test_hierarchical_on_equal_nodes_sends_the_least_there_is():
    """Four nodes of two: one round inside, a ring across, one round inside; 2 (p-1)/p of eight blocks."""
    cost = check("allreduce", algorithms.find("allreduce", "hierarchical").generator, 8, nodes=(0, 0, 1, 1, 2, 2, 3, 3))
    assert (cost.rounds, cost.bytes_sent) == (1 + 2 * 3 + 1, 14)
