"""Graphs of neighbours: which place belongs to which, what does not match, and the proof of schedules on them."""

import json
import random
import textwrap

import pytest

from mpicoll import algorithms, cli
from mpicoll.algorithms import neighborhood
from mpicoll.errors import ArgumentError, ScheduleError
from mpicoll.graphs import ALLGATHER, ALLTOALL, NEIGHBORHOODS, NOBODY, Block, Graph, parse_graph
from mpicoll.schedule import Copy, Input, Output, Recv, Scratch, Send
from mpicoll.simulate import Level, Network, predict_on_graph
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
        ("0: 1\n00: 2\n1:\n2:", "line 2: expected each line once, .* second one of '0:'"),
        ("0: 1\n1 < 0\n1 < 0", "line 3: expected each line once"),
        ("dims: 2\nnodes: 0 0\nnodes: 0 1", "line 3: expected each line once"),
        ("dims: 2\nperiods: -1", "line 2: expected periods of 0 or 1"),
        ("dims: 2\nperiods:", "line 2: expected periods of 0 or 1"),
        ("dims: 100000 100000", "at most 100000 ranks, got 10000000000"),
        ("999999999: 0", "at most 100000 ranks, got 1000000000"),
        ("nodes < 1", "line 1: expected RANK"),
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


# ---- show and simulate

TWICE = """\
    neighbor_alltoall combined, 3 ranks on 2 nodes: 2 rounds, a rank sends at most 2
    messages.
    Below each rank: the blocks that it receives, in the order of its places, each
    by source:place; a dot before it is there, - where nobody sends.

    start
      rank 0   rank 1   rank 2
      .   .    .   .    .

    round 1   0 -> 2: 0:1
      .   .    .   .    0:1

    round 2   0 -> 1: 0:0   1 -> 0: 1:0 1:1   2 -> 1: 2:1
      1:0 1:1  0:0 2:1  0:1
    """


@pytest.fixture
def command(tmp_path, capsys):
    """Run a command on a graph; its exit status, output and error output."""

    def run(name, text, *words):
        path = tmp_path / "graph"
        path.write_text(text)
        with pytest.raises(SystemExit) as end:
            cli.main([name, *map(str, words), "--graph", str(path)])
        output = capsys.readouterr()
        return end.value.code or 0, output.out, output.err

    return run


def test_show(command):
    words = "neighbor_alltoall", "combined"
    assert command("show", "0: 1 2\n1: 0 0\n2: -1 1\nnodes: 0 0 1\n", *words) == (0, textwrap.dedent(TWICE), "")


@pytest.mark.parametrize("collective", NEIGHBORHOODS)
def test_show_ends_with_each_block_in_its_place(command, collective, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    for seed in range(5):
        graph = drawn(4, seed)
        lines = [f"{rank}: {' '.join(map(str, targets))}" for rank, targets in enumerate(graph.targets)]
        lines += [
            f"{rank} < {' '.join(str(block.source if block else NOBODY) for block in sources)}"
            for rank, sources in enumerate(graph.sources)
        ]
        numbered = collective == "neighbor_alltoall"
        names = [
            f"{block.source}:{block.place}" if block and numbered else f"{block.source}" if block else "-"
            for sources in graph.sources
            for block in sources
        ]
        for algorithm in algorithms.registered(collective):
            status, output, _ = command("show", "\n".join(lines), collective, algorithm.name, "--all")
            assert status == 0 and output.splitlines()[-1].split() == names, output


def test_show_of_many_ranks_counts_their_blocks(command):
    _, output, _ = command("show", "dims: 4 4 4\nperiods: 0 1 1", "neighbor_allgather", "direct")
    # the first dimension has two ends, whose ranks are done after five rounds
    assert [line.split()[2] for line in output.splitlines()[-2:]] == ["1+>5", "5"]


def test_show_as_a_picture(command, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "out.svg"
    assert command("show", GRID, "neighbor_alltoall", "packed", "--plot", path)[0] == 0
    assert "<!-- a box: a block, 4 of a rank at most" in path.read_text()


@pytest.mark.parametrize("size", [2, 5, 8])
def test_the_clocks_pass_the_messages_that_the_verifier_counts(size):
    network = Network(1e-6, 1e9)
    for nodes in on_nodes(size):
        graph = drawn(size, size)
        for name, word, cost in prove_graph(graph, nodes):
            generator = algorithms.find(name, word).generator
            prediction = predict_on_graph(NEIGHBORHOODS[name].on(graph), generator, 100, network, nodes)
            assert prediction.messages == sum(rank.messages for rank in cost.ranks)


def test_the_clocks_of_a_pair_and_of_two_nodes():
    network = Network(3e-6, 2e9)
    assert predict_on_graph(PAIR, neighborhood.direct, 4000, network).seconds == pytest.approx(3e-6 + 2e-6)
    # all blocks for the other node in one message, or in one of each rank through the port of the node
    graph, nodes = parse_graph(GRID)
    network = network._replace(levels=(Level(nodes, 0, 1e30, shared_port=True),))
    times = {
        word: predict_on_graph(ALLTOALL.on(graph), algorithms.find("neighbor_alltoall", word).generator, 4000, network, nodes)
        for word in ("packed", "combined")
    }
    assert times["combined"].seconds == pytest.approx(3e-6 + 4 * 2e-6)
    assert times["packed"].seconds == pytest.approx(2 * (3e-6 + 2 * 2e-6))


def test_simulate(command, tmp_path):
    written = tmp_path / "out.json"
    words = "--bytes", "1K,1M", "--node-alpha", "1us", "--json", written
    status, output, _ = command("simulate", GRID, "neighbor_alltoall", *words)
    lines = [line.split() for line in output.splitlines() if line[0] != "#"]
    names = [each.name for each in algorithms.registered("neighbor_alltoall")]
    assert status == 0 and lines[0] == ["bytes", "algorithm", "time", "rounds", "messages"]
    assert [line[:2] for line in lines[1:]] == [[size, name] for size in ("1K", "1M") for name in names]
    assert "# neighbor_alltoall, 4 ranks on 2 nodes, 16 edges." in output
    document = json.loads(written.read_text())
    assert document["network"]["levels"][0]["group"] == [0, 0, 1, 1] and document["network"]["size"] == 4
    assert [row["messages"] for row in document["results"][:3]] == [16, 12, 16]


def test_simulate_cuts_no_messages_of_neighbours(command):
    """It was taken and had no effect."""
    status, _, error = command("simulate", GRID, "neighbor_alltoall", "--segment-bytes", "1K")
    assert status == 2 and "--graph: it takes no --segment-bytes" in error


def test_simulate_places_ranks_once(command):
    status, _, error = command("simulate", GRID, "neighbor_alltoall", "--ranks-per-node", 2)
    assert status == 2 and "--placement place ranks, as the line nodes: does in" in error
    _, output, _ = command("simulate", "dims: 2 2", "neighbor_alltoall", "--ranks-per-node", 2, "--bytes", "1K")
    assert "4 ranks on 2 nodes" in output
    _, output, _ = command("simulate", "0:", "neighbor_alltoall", "--bytes", "1K", "--algorithms", "direct")
    assert output.splitlines()[-1].split() == ["1K", "direct", "0.00us", "0", "0"]
