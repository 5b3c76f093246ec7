"""The simulator against formulas: free networks, shared ports, several levels; what it refuses."""

from collections import Counter

import pytest

from mpicoll import ArgumentError, ScheduleError, algorithms
from mpicoll.algorithms.patterns import Lanes
from mpicoll.collectives import COLLECTIVES
from mpicoll.schedule import Copy, Input, Output, Recv, Reduce, Scratch, Send, bounds
from mpicoll.simulate.clocks import TICK, Clocks, estimate_work, predict
from mpicoll.simulate.costs import PathCost, closed_form, least_seconds, lower_bound
from mpicoll.simulate.network import Level, Network
from mpicoll.simulate.phases import Phase, Transfer, by_rounds, in_pieces, measure_of
from mpicoll.support.units import parse_seconds
from tests.support.registered import EVERY, named

#: what has no formula: the critical path of the tree changes with the figures, the lanes' with the nodes, and those of
#: two rounds to all at once with who is done first; of those for study, several have many messages in a round
IRREGULAR = {"tree", "hierarchical", "allreduce-direct", "swing", "pat", "trivance", "generalised", "tripling", "quadrupling",
             # up and down a tree that ends anywhere, sums of which some ranks make fewer, and a vector of a byte per rank
             "scan-binomial", "exscan-recursive_doubling", "exscan-two_phase", "exscan-binomial", "barrier-dissemination"}
SIZES = [*range(2, 21), 32, 33, 64, 100]
NETWORK = Network(3e-6, 2e9, 0.7e-9)
#: latency alone, bytes alone, reductions nearly alone
EXTREMES = [Network(1e-3, 1e15), Network(0, 1e9), Network(1e-9, 1e12, 1e-8)]
exactly = pytest.approx


def allreduce(word):
    return algorithms.find("allreduce", word)


def is_regular(algorithm):
    return not {algorithm.name, named(algorithm)} & IRREGULAR


def both(algorithm, size, network, segments=1, root=0):
    """Seconds by the clocks, and by the formula, for equal blocks of 6000 bytes."""
    nbytes = 6000 * algorithm.vector_blocks(size, segments)
    clocks = predict(algorithm, size, nbytes, network, root=root, segments=segments).seconds
    cost = closed_form(algorithm.collective, algorithm.name, size, segments)
    return clocks, cost.seconds(nbytes, network.alpha, network.bandwidth, network.gamma)


# ---- formulas of a flat network


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", EVERY, ids=named)
def test_clocks_agree_with_the_formula(algorithm):
    if not is_regular(algorithm):
        assert closed_form(algorithm.collective, algorithm.name, 8) is None
        return
    network = NETWORK._replace(gamma=0) if named(algorithm) == "allreduce-pipeline" else NETWORK
    for size in SIZES:
        clocks, formula = both(algorithm, size, network, segments=5)
        assert clocks == exactly(formula, rel=1e-12), f"{size} ranks"


@pytest.mark.parametrize("algorithm", [*filter(is_regular, EVERY)], ids=named)
def test_clocks_agree_with_the_formula_whatever_dominates(algorithm):
    rooted = COLLECTIVES[algorithm.collective].rooted
    for size in (2, 3, 5, 8, 13):
        for network in EXTREMES:
            for root in {0, size // 2, size - 1} if rooted else {0}:
                segments = 2 if algorithm.blocks == "segments" else 1
                clocks, formula = both(algorithm, size, network, segments, root)
                assert clocks == exactly(formula, rel=1e-12), f"{size} ranks, root {root}, {network}"


@pytest.mark.parametrize("collective, word", [("allreduce", "pipeline"), ("bcast", "pipeline"), ("bcast", "circulant"),
                                              ("reduce", "pipeline")])
def test_pipelines_agree_with_any_number_of_segments(collective, word):
    algorithm = algorithms.find(collective, word)
    for size in (2, 3, 4, 7, 12):
        for segments in (1, 2, 3, 4, 9, 16):
            clocks, formula = both(algorithm, size, NETWORK._replace(gamma=0), segments)
            assert clocks == exactly(formula, rel=1e-12), f"{size} ranks, {segments} segments"


def test_reductions_in_both_chains_overlap_with_transfers():
    for size in (3, 4, 8):
        for segments in (3, 4, 9):
            clocks, formula = both(allreduce("pipeline"), size, NETWORK, segments)
            assert 0.9 * formula <= clocks <= formula * (1 + 1e-12)


@pytest.mark.thorough
def test_circulant_at_4096_ranks():
    found = predict(allreduce("circulant"), 4096, 4096 * 10, NETWORK)
    cost = closed_form("allreduce", "circulant", 4096)
    assert found.seconds == exactly(cost.seconds(40960, *NETWORK[:3]), rel=1e-12)
    assert (found.rounds, found.messages) == (24, 24 * 4096)


@pytest.mark.parametrize("size", [1, 2, 3, 1000, 65536, 65537, 99999, 100000])
def test_formulas_at_any_size(size):
    q, share = (size - 1).bit_length(), (size - 1) / size
    assert closed_form("allreduce", "ring", size) == exactly((2 * (size - 1), 2 * share, share))
    assert closed_form("allreduce", "circulant", size) == exactly((2 * q, 2 * share, share))
    assert closed_form("allreduce", "parameter_server", size) == (2 * (size - 1), 2 * (size - 1), size - 1)
    for algorithm in EVERY:
        cost, bound = closed_form(algorithm.collective, algorithm.name, size), lower_bound(algorithm.collective, size)
        if cost:
            assert all(mine >= least - 1e-9 for mine, least in zip(cost, bound)), named(algorithm)


def test_formulas_of_folded_sizes():
    assert closed_form("allreduce", "recursive_doubling", 13) == PathCost(5, 5, 4)
    assert closed_form("allreduce", "halving_doubling", 13) == PathCost(8, 2 * 7 / 8 + 2, 7 / 8 + 1)
    # 13 ranks fold five pairs into eight: halves of 8, 4 and 2 blocks, and one back to the extra rank
    assert closed_form("reduce_scatter", "halving", 13) == exactly((5, 1 + (8 + 4 + 2) / 13 + 1 / 13, 1 + 14 / 13))


def test_nothing_beats_the_bound():
    levels = (Level(3, 1e-6, 8e9, shared_port=True),)
    for network in (NETWORK, NETWORK._replace(levels=levels)):
        for algorithm in EVERY:
            for size in (4, 9, 13):
                found = predict(algorithm, size, 9000, network, segments=4, nodes=network.nodes(size))
                assert found.seconds >= least_seconds(algorithm.collective, size, 9000, network) * 0.999, named(algorithm)


# ---- several ranks per node


def nodes_of(each, size, cyclic, **link):
    """A network whose nodes have one port to the others; inside, links are the same unless `link` says otherwise."""
    group = [rank % (size // each) for rank in range(size)] if cyclic else each
    inside = {"alpha": NETWORK.alpha, "bandwidth": NETWORK.bandwidth, **link}
    return NETWORK._replace(gamma=0, levels=(Level(group, shared_port=True, **inside),))


@pytest.mark.parametrize("each, size", [(2, 8), (3, 12), (4, 16), (4, 12)])
def test_a_ring_placed_node_by_node_leaves_each_node_once(each, size):
    nbytes = 1000 * size
    flat = closed_form("allreduce", "ring", size).seconds(nbytes, *NETWORK[:2])
    by_node, in_turn = (nodes_of(each, size, cyclic) for cyclic in (False, True))
    assert predict(allreduce("ring"), size, nbytes, by_node).seconds == exactly(flat, rel=1e-12)
    # placed in turn, all messages of a node's ranks leave it, one after the other
    assert predict(allreduce("ring"), size, nbytes, in_turn).seconds == exactly(each * flat, rel=1e-12)
    told = predict(allreduce("ring"), size, nbytes, in_turn, nodes=in_turn.nodes(size)).seconds
    assert told == exactly(flat, rel=1e-12)


def test_a_parameter_server_with_several_ranks_per_node():
    size, nbytes, groups = 11, 5000, [0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2]
    network = NETWORK._replace(levels=(Level(groups, 1e-6, 8e9, shared_port=True),))
    near, far = 1e-6 + nbytes / 8e9, NETWORK.alpha + nbytes / NETWORK.bandwidth
    expected = 2 * (2 * near + 8 * far) + 10 * nbytes * NETWORK.gamma
    assert predict(allreduce("parameter_server"), size, nbytes, network).seconds == exactly(expected, rel=1e-12)


def test_levels_inside_each_other():
    socket, node = Level(2, 1e-6, 8e9), Level(4, 2e-6, 4e9, shared_port=True)
    network = Network(3e-6, 2e9, levels=(socket, node))
    times = [link.alpha + 4000 / link.bandwidth for link in (socket, node, network)]
    # the last exchange leaves the node: its four ranks share the port
    found = predict(allreduce("recursive_doubling"), 8, 4000, network).seconds
    assert found == exactly(times[0] + times[1] + 4 * times[2], rel=1e-12)


def test_hierarchical_takes_the_shared_port_less():
    network = nodes_of(8, 64, cyclic=False, alpha=1e-7, bandwidth=1e11)
    nbytes, nodes, words = 64 << 20, network.nodes(64), ("circulant", "hierarchical")
    seconds = {word: predict(allreduce(word), 64, nbytes, network, nodes=nodes).seconds for word in words}
    bound = least_seconds("allreduce", 64, nbytes, network)
    assert bound == exactly(2 * 7 / 8 * nbytes / NETWORK.bandwidth)
    assert seconds["hierarchical"] < 1.1 * bound < 2 * bound < seconds["circulant"]


# ---- single messages


def played(*programs, network=Network(1, 1)):
    clocks = Clocks(programs, network)
    return clocks.play() * TICK, clocks.messages


def test_a_port_passes_one_message_after_the_other():
    sender = [Phase([Transfer(Send, 1, 4), Transfer(Send, 2, 9)], range(2), 0)]
    one, two = ([Phase([Transfer(Recv, 0, nbytes)], range(1), 0)] for nbytes in (4, 9))
    assert played(sender, one, two) == (exactly(5 + 10), 2)
    exchange = [[Phase([Transfer(Recv, peer, 4), Transfer(Send, peer, 4)], range(2), 0)] for peer in (1, 0)]
    assert played(*exchange) == (exactly(5), 2)


def test_a_message_begins_when_its_receiver_is_there():
    late = [Phase([], (), round(7 / TICK)), Phase([Transfer(Recv, 0, 2)], range(1), 0)]
    assert played([Phase([Transfer(Send, 1, 2)], range(1), 0)], late) == (exactly(7 + 3), 1)


def test_an_eager_message_begins_before_its_receiver_is_there():
    late = [Phase([], (), round(7 / TICK)), Phase([Transfer(Recv, 0, 2)], range(1), 0)]
    sender = [Phase([Transfer(Send, 1, 2)], range(1), 0)]
    assert played(sender, late, network=Network(1, 1, eager=2)) == (exactly(7), 1)
    soon = [Phase([], (), round(1 / TICK)), *late[1:]]
    assert played(sender, soon, network=Network(1, 1, eager=2)) == (exactly(3), 1)
    assert played(sender, late, network=Network(1, 1, eager=1)) == (exactly(7 + 3), 1)
    with pytest.raises(ScheduleError, match="from rank 0 to rank 1 is never matched"):
        played(sender, [], network=Network(1, 1, eager=2))


def test_senders_to_one_rank_take_turns():
    """Of six messages from two ranks the first three of either are there after five, not three."""
    senders = [[Phase([Transfer(Send, 2, 1)] * 3, range(3), 0)] for _ in range(2)]
    receives = [Transfer(Recv, peer, 1) for peer in (0, 0, 0, 1, 1, 1)]
    receiver = [Phase(receives, range(3), round(10 / TICK))]
    assert played(*senders, receiver, network=Network(0, 1)) == (exactly(5 + 10), 6)


def test_pieces_overtake_the_ends_of_rounds():
    first = [Phase([Transfer(Send, 1, 1), Transfer(Send, 1, 1)], range(2), 0)]
    last = [Phase([Transfer(Recv, 1, 1), Transfer(Recv, 1, 1)], range(2), 0)]
    by_rounds = [Phase([Transfer(Recv, 0, 1)] * 2, range(2), 0), Phase([Transfer(Send, 2, 1)] * 2, range(2, 4), 0)]
    by_pieces = [Phase([Transfer(Recv, 0, 1)] * 2, (0,), 0), Phase([Transfer(Send, 2, 1)], (1,), 0),
                 Phase([Transfer(Send, 2, 1)], (2, 3), 0)]
    assert played(first, by_rounds, last)[0] == exactly(4 * 2)
    assert played(first, by_pieces, last)[0] == exactly(3 * 2)


@pytest.mark.parametrize("word", ["reduce_bcast", "parameter_server"])
def test_pieces_come_back_while_others_are_on_their_way(word):
    """To the root and back: each piece but the last returns while the next one comes."""
    pieces, piece = 12, Network(3e-6, 2e9)
    seconds = 3e-6 + 1000 / 2e9
    found = predict(allreduce(word), 2, 1000 * pieces, piece, segment_bytes=1000)
    assert found == (exactly((pieces + 1) * seconds, rel=1e-12), 2, 2 * pieces)
    assert predict(allreduce(word), 2, 1000 * pieces, piece).seconds == exactly(2 * (3e-6 + pieces * 1000 / 2e9))


def totals(phases):
    """Of a rank: bytes by direction and peer, work, rounds; each transfer is awaited once."""
    moved, work, rounds, started, awaited = Counter(), 0, 0, 0, []
    for phase in phases:
        for kind, peer, nbytes in phase.starts:
            moved[kind, peer] += nbytes
        started += len(phase.starts)
        awaited += phase.waits
        assert all(number < started for number in phase.waits)
        work += phase.work
        rounds += phase.rounds
    assert sorted(awaited) == list(range(started))
    return moved, work, rounds


@pytest.mark.parametrize("algorithm", EVERY, ids=named)
def test_in_pieces_a_rank_moves_and_computes_the_same(algorithm):
    prices = {Reduce: 1, Copy: 1000}
    collective = COLLECTIVES[algorithm.collective]
    for size in (2, 3, 8):
        blocks = algorithm.vector_blocks(size, 3)
        edges = bounds(10 * blocks, blocks)
        for rank in range(size):
            def rounds():
                return collective.program(algorithm.placed(None), rank, size, 0, blocks)

            whole = by_rounds(rank, rounds(), measure_of(edges, 4, None), prices)
            cut = in_pieces(rank, rounds(), edges, 4, 12, prices, None)
            assert totals(cut) == totals(whole)
        if algorithm.cuttable:
            found = predict(algorithm, size, 40 * blocks, NETWORK, segments=3, segment_bytes=12)
            assert found.seconds > 0


def test_blocks_of_no_bytes_are_no_messages():
    found = predict(allreduce("ring"), 8, 3, Network(1, 1))
    assert found.messages == 3 * 14  # three of eight blocks have a byte, and travel 14 hops each
    assert predict(allreduce("ring"), 8, 0, NETWORK) == (0, 0, 0)
    assert predict(allreduce("ring"), 1, 100, NETWORK) == (0, 0, 0)


def test_elements_stay_whole():
    assert predict(allreduce("ring"), 4, 20, Network(0, 1), itemsize=4).seconds == exactly(6 * 8)  # the larger block's six hops


def test_copies_cost_what_the_network_says():
    found = predict(algorithms.find("scatter", "linear"), 4, 4000, Network(0, 1e9, copying=1e-9)).seconds
    assert found == exactly(3e-6 + 1e-6)


# ---- what is refused


def user(generator, collective="allreduce"):
    return algorithms.Algorithm(collective, "mine", generator)


def test_sends_that_wait_for_each_other_are_a_deadlock():
    def circle(rank, size):
        yield Send(rank + 1, Input(0, size))
        yield Recv(rank - 1, Output(0, size))

    with pytest.raises(ScheduleError, match=r"deadlock: rank 0 waits in round 1 \(send to 1\); rank 1 waits"):
        predict(user(circle), 4, 100, NETWORK)


def test_a_message_nobody_waits_for_is_refused():
    lonely = [Phase([Transfer(Send, 1, 8)], (), 0)]
    with pytest.raises(ScheduleError, match="from rank 0 to rank 1 is never matched"):
        played(lonely, [])


def test_ranks_that_disagree_about_a_message_are_refused():
    def lopsided(rank, size):
        received = Scratch("received", 0, 1 + rank)
        yield Send(rank + 1, Input(0, 1)), Recv(rank - 1, received), Reduce(received, received, received)

    with pytest.raises(ScheduleError, match="ranks 0 and 1 disagree about a message: one means 50 bytes, the other 100"):
        predict(user(lopsided), 2, 100, NETWORK)


def test_a_generator_that_fails_is_named():
    def failing(rank, size):
        yield Send(rank + 1, Input(0)), Recv(rank - 1, Output(0))
        yield {}[size]

    with pytest.raises(ScheduleError, match=r"the generator of rank \d fails: KeyError\(3\)"):
        predict(user(failing), 3, 100, NETWORK)


@pytest.mark.parametrize("network, message", [
    (Network(-1, 1e9), "alpha"), (Network(float("nan"), 1e9), "alpha"), (Network(0, 0), "bandwidth above 0"),
    (Network(0, 1, -1), "0 or more seconds per byte"), (Network(0, 1, levels=(Level(0, 0, 1),)), "1 or more ranks per group"),
    (Network(0, 1, levels=(Level([0, 1], 0, 1),)), "the group of each of 4 ranks, got 2"),
    (Network(0, 1, levels=(Level(2, 0, 0),)), "level 0: expected alpha"),
])
def test_networks_that_make_no_sense(network, message):
    with pytest.raises(ArgumentError, match=message):
        predict(allreduce("ring"), 4, 100, network)


@pytest.mark.parametrize("arguments", [{"size": 0}, {"root": 4}, {"nbytes": -1}, {"segments": 0}, {"itemsize": 0}])
def test_arguments_that_make_no_sense(arguments):
    with pytest.raises(ArgumentError, match="expected ranks, segments"):
        predict(allreduce("ring"), **{"size": 4, "nbytes": 100, "network": NETWORK, **arguments})


def test_work_is_estimated_before_it_is_done():
    for word in ("ring", "circulant", "recursive_doubling", "pairwise"):
        found = predict(allreduce(word), 64, 6400, NETWORK)
        local = 64 * (word != "recursive_doubling")  # a round of copies, or of sums
        assert estimate_work(allreduce(word), 64) == 64 * found.rounds + 2 * found.messages + local
    assert estimate_work(allreduce("recursive_doubling"), 4096) == 12 * 3 * 4096
    assert estimate_work(allreduce("pipeline"), 4096) > 4096 * 4096  # rounds in which a rank has to wait for its turn


@pytest.mark.parametrize("word", ["halving_doubling", "recursive_doubling", "circulant", "reduce_bcast"])
@pytest.mark.parametrize("size", [96, 100, 120, 150, 200, 255, 257])
def test_ranks_that_do_little_do_not_stand_for_all(word, size):
    """With 100,000 ranks all that were asked, at every 20,000th, handed their vector over and did nothing else."""
    found = predict(allreduce(word), size, 8 * size, NETWORK)
    rounds = sum(len(list(allreduce(word).generator(rank, size))) for rank in range(size))
    work = rounds + 2 * found.messages
    assert work / 2 <= estimate_work(allreduce(word), size) <= 2 * work


def test_all_ranks_of_a_simulation_hold_the_nodes_in_common():
    nodes = tuple(rank // 4 for rank in range(64))
    lanes = [Lanes(rank, 64, nodes) for rank in range(64)]
    assert len({id(one.members) for one in lanes}) == 1
    assert [one.place_of(rank) for rank, one in enumerate(lanes)] == [(rank // 4, rank % 4) for rank in range(64)]
    assert Lanes(0, 64, list(nodes)).members == lanes[0].members


class Label:
    """The name of a node, which counts how often it is compared."""

    compared = 0

    def __init__(self, name):
        self.name = name

    def __hash__(self):
        return hash(self.name)

    def __eq__(self, other):
        Label.compared += 1
        return self.name == other.name


def test_node_order_is_found_in_one_pass():
    size = 2000
    nodes = tuple(Label(rank % 50) for rank in range(size))
    Label.compared = 0
    generator = allreduce("ring").placed(nodes)
    assert Label.compared <= size
    first = next(op for op in next(iter(generator(0, size))) if isinstance(op, Send))
    assert first.peer == 50  # the next rank of its node
    assert allreduce("recursive_doubling").placed(nodes) is allreduce("recursive_doubling").generator


def test_times_with_units():
    assert [parse_seconds(text) for text in ("5us", "1.5 ms", "2s", "0", "0.15ns")] == [5e-6, 1.5e-3, 2, 0, 1.5e-10]
    for text in ("5", "us", "-1us", "5 minutes", "", "1e-6s", "5US"):
        with pytest.raises(ArgumentError, match="expected a time such as 5us"):
            parse_seconds(text)
