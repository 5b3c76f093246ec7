"""The neighbours of a rank, on a communicator with a topology, and its schedules among them.

A grid is known from its dimensions, and of MPI_Graph_create each rank has the whole graph. The
ranks of a distributed graph tell each other their neighbours when the communicator is made. Each
rank computes its own part of every schedule at the first call, and forgets the graph: what is left
grows with the edges of its node.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
from mpi4py import MPI

from ..algorithms import neighborhood, registered
from ..errors import ArgumentError
from ..graphs import NEIGHBORHOODS, NOBODY, Block, Graph
from ..schedule import offsets
from .agreement import SILENT, agree_on_sizes, largest_of_all
from .context import Context

Lists = Sequence[Sequence[int]]


class Routes(NamedTuple):
    """A rank's rounds under an algorithm, and the blocks that it carries in scratch."""

    rounds: list[tuple[Any, ...]]
    carried: list[Block]


class _Adjacency(NamedTuple):
    """What ranks said of their neighbours: of all ranks, one after the other."""

    degrees: np.ndarray[Any, Any]
    peers: np.ndarray[Any, Any]

    def lists(self) -> tuple[Lists, Lists]:
        """The destinations of each rank, and the sources of each."""
        edges = offsets(self.degrees.tolist())
        peers = self.peers.tolist()
        both = [peers[low:high] for low, high in pairwise(edges)]
        return both[0::2], both[1::2]


class Surroundings:
    """The places of a rank, and its part of the schedules.

    Parameters
    ----------
    rank : int
        This rank.
    nodes : sequence of int
        The node of each rank.
    graph : callable
        Returns the graph; ArgumentError where neighbours do not match.
    """

    def __init__(self, rank: int, nodes: Sequence[int], graph: Callable[[], Graph]) -> None:
        self._rank = rank
        self._nodes = nodes
        self._graph: Callable[[], Graph] | None = graph
        #: why no call can be made: a text that all ranks have alike; or ""
        self.refusal = ""
        #: of each place for sending, the receiver; of each place for receiving, the block
        self.targets: Sequence[int] = ()
        self.sources: Sequence[Block | None] = ()
        #: the place that gets each block, and one that gets something of each source
        self.into: dict[Block, int] = {}
        self.place_from: dict[int, int] = {}
        #: whether a rank has no places at all
        self.has_idle = False
        #: whether blocks arrive in another order than they are sent
        self.crosses = False
        #: numbers of the first places of each rank among those of all, for sending and receiving
        self.first_sent: list[int] = []
        self.first_received: list[int] = []
        #: messages between nodes that a rank sends, at most, by algorithm
        self.busiest: dict[str, int] = {}
        self._routes: dict[tuple[str, str], Routes] = {}

    def look(self) -> Surroundings:
        """Compute what follows from the graph, once; ArgumentError where it does not match."""
        if self._graph is not None:
            try:
                self._take(self._graph())
            except ArgumentError as error:
                self.refusal = str(error)
            self._graph = None
        if self.refusal:
            raise ArgumentError(self.refusal)
        return self

    def _take(self, graph: Graph) -> None:
        self.targets = tuple(graph.targets[self._rank])
        self.sources = tuple(graph.sources[self._rank])
        for place, block in enumerate(self.sources):
            if block is not None:
                self.into[block] = place
                self.place_from[block.source] = place
        self.has_idle = graph.has_idle
        self.crosses = graph.crosses
        self.first_sent = offsets(map(len, graph.targets))
        self.first_received = offsets(map(len, graph.sources))
        for name, meaning in NEIGHBORHOODS.items():
            on_graph = meaning.on(graph)
            for entry in registered(cast(Any, name)):
                rounds = entry.generator(self._rank, on_graph, self._nodes)
                carried = neighborhood.carried_by(
                    entry.name, self._rank, on_graph, self._nodes)
                self._routes[name, entry.name] = Routes(list(map(tuple, rounds)), carried)
            if not on_graph.gathers:
                self.busiest = neighborhood.busiest(on_graph, self._nodes)

    def routes(self, collective: str, algorithm: str) -> Routes:
        """This rank's part of an algorithm."""
        return self._routes[collective, algorithm]

    def share_counts(
        self, context: Context, method: str, gathers: bool, sent: Sequence[int],
        expected: Sequence[int], number: int,
    ) -> Generator[MPI.Request, None, list[int]]:  # fmt: skip
        """The bytes of all blocks, by the places of their sources: requests to be awaited.

        Raises CollectiveMismatch on all ranks where a destination expects another size. gathers:
        a rank has one block. sent, expected: bytes of this rank's places. number: of the call.
        """
        first = list(range(len(self.first_sent))) if gathers else self.first_sent
        words = np.full(first[-1], SILENT)
        words[first[self._rank] : first[self._rank] + len(sent)] = sent
        yield from largest_of_all(context, words, number)
        wrong = []
        for block, nbytes in zip(self.sources, expected):
            if block is None:
                continue
            actual = words[first[block.source] + (0 if gathers else block.place)]
            if actual != nbytes:
                wrong.append(
                    f"it expects {nbytes} bytes of rank {block.source}, which has {actual} for it")
        yield from agree_on_sizes(context, method, wrong, number)
        return cast("list[int]", words.tolist())

    def place_of(self, block: Block, gathers: bool) -> int:
        """The number of a block in the result of `share_counts`."""
        return block.source if gathers else self.first_sent[block.source] + block.place


def surroundings_of(comm: MPI.Intracomm) -> Surroundings:
    """Those of a communicator with a topology. Local, but for a distributed graph the first time.

    Raises
    ------
    ArgumentError
        It has no topology.
    """
    context = Context.of(comm)
    if context.surroundings is None:
        make = Surroundings(comm.Get_rank(), context.topology.nodes, _graph_of(comm))
        context.surroundings = make
    return cast(Surroundings, context.surroundings)


def _graph_of(comm: MPI.Intracomm) -> Callable[[], Graph]:
    """A function that returns the graph of a communicator."""
    kind = comm.Get_topology()
    if kind == MPI.CART:
        dims, periods, _ = MPI.Cartcomm(comm).Get_topo()
        return partial(Graph.cartesian, dims, list(map(bool, periods)))
    if kind == MPI.GRAPH:
        ends, edges = MPI.Graphcomm(comm).Get_topo()
        lists = [edges[low:high] for low, high in pairwise([0, *ends])]
        lists += [[]] * (comm.Get_size() - len(lists))
        return partial(Graph.adjacent, lists, lists)
    if kind == MPI.DIST_GRAPH:
        said = _told(comm)
        return lambda: Graph.adjacent(*said.lists())
    raise ArgumentError("this communicator has no topology: Create_cart, Create_graph or "
                        "Create_dist_graph_adjacent make one that has neighbours")


def _told(comm: MPI.Intracomm) -> _Adjacency:
    """What each rank says of its neighbours. Collective."""
    sources, targets, _ = MPI.Distgraphcomm(comm).Get_dist_neighbors()
    own = np.array([*targets, *sources], np.int64)
    own[own == MPI.PROC_NULL] = NOBODY
    degrees = np.empty(2 * comm.Get_size(), np.int64)
    MPI.Intracomm.Allgather(comm, np.array([len(targets), len(sources)], np.int64), degrees)
    counts = degrees.reshape(-1, 2).sum(1)
    peers = np.empty(int(counts.sum()), np.int64)
    MPI.Intracomm.Allgatherv(comm, own, [peers, counts])
    return _Adjacency(degrees, peers)
