"""Every algorithm of ours: proved at many sizes, with exactly the rounds and bytes it is known for."""

from functools import partial
from itertools import pairwise
from math import ceil, log2

import pytest

from mpicoll import algorithms
from mpicoll.algorithms.patterns.canonical import fold_tree
from mpicoll.algorithms.patterns.circulant import circulant_steps
from mpicoll.algorithms.patterns.multiplying import fitting, groups
from mpicoll.algorithms.patterns.trees import bine_tree, binomial_tree
from mpicoll.collectives import COLLECTIVES
from mpicoll.errors import ScheduleError
from mpicoll.schedule import Input, Output, Recv, Reduce, Scratch, Send, power_of_two, rounds
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


def multiplying(p, radix):
    """Rounds of recursive multiplying, and vectors sent; a round with k partners counts as k."""
    core = fitting(radix)(p)
    partners = sum(len(group) - 1 for _, group in groups(0, core, radix))
    return partners + 2 * (core < p), partners + (core < p)


def swings(p):
    """Rounds of Swing at p ranks."""
    return ceil(log2(p - p % 2)) + p % 2 * 2


def up_and_down(p):
    """Rounds up a binomial tree and down to the ranks between."""
    k = int(log2(p))
    return 2 * k - 1 + (2 * p >= 3 * 2**k) if p > 1 else 0


# For p ranks, q = ceil(log2 p), k = log2 of the power of two below, f: 1 where extras fold in, else 0, and n segments:
# the rounds, and the most a rank sends as a number of blocks. Sources: algorithms' docstrings; None where no closed
# form is known.
KNOWN = {
    "allreduce-parameter_server": lambda p, q, k, f, n: (2 * (p - 1), p - 1),
    "allreduce-reduce_bcast": lambda p, q, k, f, n: (2 * q, q),
    "allreduce-tree": lambda p, q, k, f, n: (None, None),
    # depends on the nodes, see below
    **{f"{name}-hierarchical": lambda p, q, k, f, n: (None, None)
       for name in ("allreduce", "reduce_scatter", "allgather", "alltoall", "bcast", "reduce", "scan", "exscan")},
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
    "allreduce-tripling": lambda p, q, k, f, n: multiplying(p, 3),
    "allreduce-quadrupling": lambda p, q, k, f, n: multiplying(p, 4),
    "allgather-tripling": lambda p, q, k, f, n: (multiplying(p, 3)[0], p - 1 if fitting(3)(p) == p else None),
    "allgather-quadrupling": lambda p, q, k, f, n: (multiplying(p, 4)[0], p - 1 if fitting(4)(p) == p else None),
    "allreduce-swing": lambda p, q, k, f, n: (2 * swings(p) - p % 2 * 2, 3 * p - 5 if p % 2 else 2 * p - 2),
    "reduce_scatter-swing": lambda p, q, k, f, n: (swings(p), None if p % 2 else p - 1),
    "allgather-swing": lambda p, q, k, f, n: (swings(p), None if p % 2 else p - 1),
    "allreduce-bine": lambda p, q, k, f, n: (k + 2 * f, k + f),
    "reduce_scatter-pat": lambda p, q, k, f, n: (q, p - 1),
    "allgather-pat": lambda p, q, k, f, n: (q, p - 1),
    "allreduce-trivance": lambda p, q, k, f, n: (None, 2 * (p - 1)),
    "reduce_scatter-trivance": lambda p, q, k, f, n: (None, p - 1),
    "allgather-trivance": lambda p, q, k, f, n: (None, p - 1),
    # with two partners in each round in the middle, which count as two
    "allreduce-generalised": lambda p, q, k, f, n: (2 * q, 2 * (p - 2 ** (q // 2)) + q // 2 * 2 ** (q // 2)),
    "bcast-bine": lambda p, q, k, f, n: (q, q),
    "reduce-bine": lambda p, q, k, f, n: (q, 1),
    "scatter-bine": lambda p, q, k, f, n: (q, p - 1),
    "gather-bine": lambda p, q, k, f, n: (q, p // 2),
    "scatter-linear": lambda p, q, k, f, n: (p - 1, p - 1),
    "scatter-binomial": lambda p, q, k, f, n: (q, p - 1),
    "gather-linear": lambda p, q, k, f, n: (p - 1, 1),
    "gather-binomial": lambda p, q, k, f, n: (q, largest_subtree(p)),
    "scan-linear": lambda p, q, k, f, n: (p - 1, 1),
    "scan-recursive_doubling": lambda p, q, k, f, n: (q, q),
    "scan-binomial": lambda p, q, k, f, n: (up_and_down(p), k),
    "scan-pipeline": lambda p, q, k, f, n: (n + p - 2, n),
    "exscan-linear": lambda p, q, k, f, n: (p - 1, 1),
    "exscan-recursive_doubling": lambda p, q, k, f, n: (1 + ceil(log2(p - 1)),) * 2,
    "exscan-two_phase": lambda p, q, k, f, n: (q, q),
    "exscan-binomial": lambda p, q, k, f, n: (1 + up_and_down(p - 1), 1 + int(log2(p - 1))),
    "exscan-pipeline": lambda p, q, k, f, n: (n + p - 2, n),
    "barrier-dissemination": lambda p, q, k, f, n: (q, p - 1),
    "barrier-tree": lambda p, q, k, f, n: (2 * q, p * q),
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


@pytest.mark.parametrize("size", [2, 3, 5, 6, 8, 13, 20, 33])
def test_the_rounds_of_the_generalised_allreduce_can_be_chosen(size):
    q = ceil(log2(size))
    for doublings in range(q):
        generator = partial(algorithms.allreduce.generalised, doublings=doublings)
        assert len(list(rounds(generator, 0, size))) == 2 * q - doublings
        cost = check("allreduce", generator, size)
        assert cost.bytes_sent == 2 * (size - 2**doublings) + doublings * 2**doublings


@pytest.mark.parametrize("name", ["allreduce", "reduce_scatter", "allgather"])
def test_trivance_takes_log3_rounds_with_two_partners_each(name):
    for size, steps in ((3, 1), (9, 2), (27, 3), (28, 4)):
        cost = check(name, algorithms.find(name, "trivance").generator, size)
        assert cost.rounds <= 2 * steps * (2 if name == "allreduce" else 1)


def test_whole_vectors_in_both_directions_are_refused():
    """The latency-optimal form of Trivance: the verifier says that ranks would have different bits."""
    def whole_vectors(rank, size):
        total, distance = Input(0), 1
        while distance < size:
            left, right = Scratch("left", 0), Scratch("right", 0)
            yield (Send(rank + distance, total), Send(rank - distance, total),
                   Recv(rank - distance, left), Recv(rank + distance, right),
                   Reduce(left, total, left), Reduce(left, right, Output(0)))  # fmt: skip
            total, distance = Output(0), 3 * distance

    with pytest.raises(ScheduleError, match="block 0 is summed in another order than on other ranks: other bits"):
        check("allreduce", whole_vectors, 9, blocks=1)


@pytest.mark.parametrize("size", [8, 16, 32, 64])
def test_swing_sends_ranges_at_powers_of_two(size):
    cost = check("allreduce", algorithms.find("allreduce", "swing").generator, size)
    assert {rank.messages for rank in cost.ranks} == {cost.rounds} == {2 * ceil(log2(size))}


@pytest.mark.parametrize("size", [2, 8, 13, 64, 100])
def test_messages_of_bine_trees_go_two_thirds_as_far(size):
    """Each tree is one of subtrees in order; the sum of distances is smaller than that of the binomial tree."""
    def length(tree):
        places = [tree(rank, size, 0) for rank in range(size)]
        for rank, place in enumerate(places):
            assert place.own.count == 1 + sum(child.count for child in place.children)
            for child in place.children:
                assert places[child.rank].parent == rank and places[child.rank].own == child
        return sum(min((rank - place.parent) % size, (place.parent - rank) % size) for rank, place in enumerate(places))

    assert length(bine_tree) <= length(binomial_tree) * (0.9 if size > 4 else 1)
    if size == 64:
        assert length(bine_tree) / length(binomial_tree) == pytest.approx(2 / 3, abs=0.04)


def test_those_for_study_can_be_named_and_are_not_proposed():
    from mpicoll.bench.tuning import candidates

    studied = [algorithm for algorithm in EVERY if algorithm.study]
    assert len(studied) == 18
    for algorithm in studied:
        collective, name = algorithm.collective, algorithm.name
        assert name in algorithms.list_algorithms(collective)
        assert algorithm not in algorithms.proposed(collective)
        assert name not in {each.algorithm for each in candidates(collective, 8, 1 << 20, [4096])}
