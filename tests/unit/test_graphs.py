"""Graphs of neighbours: which place belongs to which, what does not match, and the proof of schedules on them."""

import random

import pytest

from mpicoll import algorithms, cli
from mpicoll.algorithms import neighborhood
from mpicoll.errors import ArgumentError, ScheduleError
from mpicoll.graphs import ALLGATHER, ALLTOALL, NEIGHBORHOODS, NOBODY, Block, Graph, parse_graph
from mpicoll.schedule import Copy, Input, Output, Recv, Scratch, Send
from mpicoll.verify import check_graph, prove_graph


def drawn(size, seed):
    """Any graph: with ranks without neighbours, loops, edges that occur twice, and places of nobody."""
    draw = random.Random(seed)
    targets, sources = [[[] for _ in range(size)] for _ in range(2)]
    for _ in range(draw.randrange(4 * size)):
        source, target = draw.randrange(size), draw.randrange(size)
        for _ in range(draw.choice((1, 1, 2))):
            targets[source].append(target)
            sources[target].append(source)
    for peers in targets + sources:
        draw.shuffle(peers)
        if draw.random() < 0.2:
            peers.insert(draw.randrange(len(peers) + 1), NOBODY)
    return Graph.adjacent(targets, sources)


def on_nodes(size):
    """Maps from rank to node: each alone, all together, pairs, in turn."""
    return {tuple(range(size)), (0,) * size, tuple(rank // 2 for rank in range(size)), tuple(rank % 2 for rank in range(size))}


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_all_are_proved_on_any_graph(size):
    for seed in range(3):
        graph = drawn(size, 100 * size + seed)
        for nodes in on_nodes(size):
            proved = [(name, word) for name, word, _ in prove_graph(graph, nodes)]
            assert proved == [(name, each.name) for name in NEIGHBORHOODS for each in algorithms.registered(name)]


@pytest.mark.parametrize("dims", [[], [1], [2], [1, 2], [3, 2], [2, 2, 2]])
@pytest.mark.parametrize("periodic", [False, True])
def test_all_are_proved_on_grids(dims, periodic):
    graph = Graph.cartesian(dims, [periodic] * len(dims))
    for nodes in on_nodes(graph.size):
        assert list(prove_graph(graph, nodes))


def test_what_goes_down_comes_from_above():
    """Also where both neighbours of a dimension are one rank: as MPI-4.1 says, and both libraries do."""
    assert Graph.cartesian([2], [True]).sources[0] == [Block(1, 1), Block(1, 0)]
    assert Graph.cartesian([1], [True]).sources[0] == [Block(0, 1), Block(0, 0)]
    assert Graph.cartesian([2], [False]).sources == [[None, Block(1, 0)], [Block(0, 1), None]]


def test_edges_that_occur_twice_keep_their_order():
    graph = Graph.adjacent([[1, 1, 1], []], [[], [0, 0, 0]])
    assert graph.sources[1] == [Block(0, 0), Block(0, 1), Block(0, 2)]


def test_ranks_that_do_not_name_each_other():
    with pytest.raises(ArgumentError, match="rank 0 names rank 1 as a destination twice|2 times") as raised:
        Graph.adjacent([[1, 1], []], [[], [0]])
    assert "rank 1 names rank 0 as a source once" in str(raised.value)
    with pytest.raises(ArgumentError, match="rank 1 names rank 5, this graph has ranks 0 to 1"):
        Graph.adjacent([[], [5]])


def test_messages_between_nodes():
    """Of a periodic grid of 2 x 2 x 2 on four nodes each rank has four messages to other nodes, packed two, combined one."""
    meaning = ALLTOALL.on(Graph.cartesian([2, 2, 2], [True] * 3))
    nodes = [rank // 2 for rank in range(8)]
    assert neighborhood.busiest(meaning, nodes) == {"direct": 4, "packed": 2, "combined": 1}


def test_a_gathered_block_travels_once_to_each_node():
    meaning = ALLGATHER.on(Graph.adjacent([[1, 2, 3], [], [], []]))
    programs = [list(neighborhood.combined(rank, meaning, (0, 1, 1, 1))) for rank in range(4)]
    sends = [op for step in programs[0] for op in step if isinstance(op, Send)]
    assert len(sends) == 1


# ---- what is wrong is found

PAIR = ALLTOALL.on(Graph.adjacent([[1], [0]]))


@pytest.mark.parametrize(
    ("rounds", "complaint"),
    [
        (lambda rank: [()], "wanted but nothing was put there"),
        (lambda rank: [[Copy(Input(0), Output(0))]], "place 0 has block 0 of rank 0 at the end, expected block 0 of rank 1"),
        (lambda rank: [Send(1 - rank, Input(0)), Recv(1 - rank, Output(0))], "deadlock"),
        (lambda rank: [[Send(1 - rank, Input(0)), Recv(1 - rank, Scratch("x", 0))]], "another block than it has room for"),
        (lambda rank: [[Send(1 - rank, Input(0)), Recv(1 - rank, Input(0))]], "read-only"),
    ],
)
def test_wrong_schedules(rounds, complaint):
    def generator(rank, meaning, nodes):
        return [step if isinstance(step, (list, tuple)) and not hasattr(step, "peer") else [step] for step in rounds(rank)]

    with pytest.raises(ScheduleError, match=complaint):
        check_graph(PAIR, generator)


def test_a_place_of_nobody_is_not_written():
    meaning = ALLTOALL.on(Graph.cartesian([1], [False]))
    check_graph(meaning, lambda *_: [])
    with pytest.raises(ScheduleError, match="place 1 is written, but it has no source"):
        check_graph(meaning, lambda *_: [[Copy(Input(0), Output(1))]])


# ---- files

GRID = "dims: 2 2  # a torus\nnodes: 0 0 1 1\n"


def test_files():
    graph, nodes = parse_graph(GRID)
    assert graph.edges == 16 and nodes == (0, 0, 1, 1)
    assert parse_graph("dims: 2\nperiods: 0").graph.sources == Graph.cartesian([2], [False]).sources
    listed = parse_graph("0: 1 1 -1\n1: 0\n0 < 1\n1 < 0 -1 0\n")
    assert listed.nodes is None and listed.graph.sources[1] == [Block(0, 0), None, Block(0, 1)]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no ranks"),
        ("0: one", "line 1: expected RANK"),
        ("dims: 2\n0: 1", "not both"),
        ("periods: 1", "periods without dims"),
        ("dims: 2\nperiods: 1 1", "1 dimensions, 2 periods"),
        ("dims: 0", "lengths of 1 or more"),
        ("0: 1\n1:\nnodes: 0", "expected the nodes of 2 ranks, got 1"),
        ("0: 1\n1 < 1", "rank 0 names rank 1 as a destination once, rank 1 names rank 0 as a source never"),
    ],
)
def test_files_that_make_no_sense(text, complaint):
    with pytest.raises(ArgumentError, match=complaint):
        parse_graph(text)


def test_the_command(tmp_path, capsys):
    path = tmp_path / "graph"
    path.write_text(GRID)
    for words, status in ((["neighbor_alltoall", "combined"], 0), (["allreduce"], 2)):
        with pytest.raises(SystemExit) as end:
            cli.main(["verify", "--graph", str(path), *words])
        assert (end.value.code or 0) == status
    output = capsys.readouterr()
    assert "4 ranks on 2 nodes, 16 edges" in output.out and "has no 'allreduce'" in output.err
