"""Neighbourhoods: the graph of who sends blocks to whom, and what its collectives mean.

A rank has numbered places for the blocks that it sends and for those that it receives. An edge of
the graph leads from a place of its source to a place of its destination. An edge that occurs
several times has a place for each time at both ends; the first place of its source belongs to the
first of its destination, and so on. On a grid, what is sent in one direction arrives from the
opposite one, also where both neighbours of a dimension are the same rank.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from math import prod
from typing import Any, Literal, NamedTuple, TypeAlias

from .errors import ArgumentError
from .schedule import INPUT, OUTPUT, Part

NeighborhoodName: TypeAlias = Literal["neighbor_allgather", "neighbor_alltoall"]
#: in the place of a neighbour: nothing is sent there, and nothing comes (MPI.PROC_NULL)
NOBODY = -1
#: mismatches of a graph that are listed
_MOST_LISTED = 8
#: ranks of the graph of a file; what reads it would take very long with more
_MOST_RANKS = 100_000


class Block(NamedTuple):
    """A block: the rank that sends it, and its place there."""

    source: int
    place: int


class Graph:
    """Who sends blocks to whom.

    Attributes
    ----------
    targets : sequence of sequence of int
        Of each rank, the receiver of each place, or `NOBODY`.
    sources : sequence of sequence of Block or None
        Of each rank, the block that each place receives, or None.
    """

    def __init__(
        self, targets: Sequence[Sequence[int]], sources: Sequence[Sequence[Block | None]]
    ) -> None:
        self.targets = targets
        self.sources = sources

    @classmethod
    def adjacent(
        cls, targets: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] | None = None
    ) -> Graph:
        """The graph of ranks that name their destinations and their sources.

        Parameters
        ----------
        targets : sequence of sequence of int
            Of each rank the destinations, in the order of its places.
        sources : sequence of sequence of int, optional
            Of each rank the sources; default: those that name it, by rank.

        Raises
        ------
        ArgumentError
            A rank is out of range, or a rank names another one that does not name it.
        """
        size = len(targets)
        for rank, peer in _named(targets, sources or ()):
            if not NOBODY <= peer < size:
                ranks = f"this graph has ranks 0 to {size - 1}"
                raise ArgumentError(f"rank {rank} names rank {peer}, {ranks}")
        if sources is None:
            named: list[list[int]] = [[] for _ in targets]
            for rank, destinations in enumerate(targets):
                for peer in destinations:
                    if peer != NOBODY:
                        named[peer].append(rank)
            sources = named
        if refusal := mismatch(targets, sources):
            raise ArgumentError(refusal)
        unread: defaultdict[tuple[int, int], deque[int]] = defaultdict(deque)
        for rank, destinations in enumerate(targets):
            for place, peer in enumerate(destinations):
                unread[rank, peer].append(place)
        return cls(targets, [
            [
                None if peer == NOBODY else Block(peer, unread[peer, rank].popleft())
                for peer in of_rank
            ]
            for rank, of_rank in enumerate(sources)
        ])  # fmt: skip

    @classmethod
    def cartesian(cls, dims: Sequence[int], periods: Sequence[bool]) -> Graph:
        """The grid of MPI_Cart_create: in each dimension a neighbour below, and one above."""
        if len(dims) != len(periods):
            got = f"{len(dims)} dimensions, {len(periods)} periods"
            raise ArgumentError(f"expected a period for each dimension, got {got}")
        if any(length < 1 for length in dims):
            raise ArgumentError(f"expected lengths of 1 or more, got {' '.join(map(str, dims))}")
        size = prod(dims)
        targets = [list(_around(rank, size, dims, periods)) for rank in range(size)]
        return cls(targets, [
            # what comes from below was sent upwards
            [
                None if peer == NOBODY else Block(peer, place ^ 1)
                for place, peer in enumerate(peers)
            ]
            for peers in targets
        ])  # fmt: skip

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.targets)

    @property
    def edges(self) -> int:
        """The number of edges, each as often as it occurs."""
        return sum(peer != NOBODY for peer in chain.from_iterable(self.targets))

    @property
    def places(self) -> int:
        """The places that a rank has for one direction, at most."""
        return max(map(len, chain(self.targets, self.sources)), default=0)

    @property
    def has_idle(self) -> bool:
        """Whether a rank has no place at all, so that its buffers tell no size of a block."""
        return any(not (sent or received) for sent, received in zip(self.targets, self.sources))

    @property
    def crosses(self) -> bool:
        """Whether blocks of one rank for another arrive in another order than they are sent."""
        for sources in self.sources:
            last: dict[int, int] = {}
            for block in sources:
                if block is not None:
                    if block.place < last.get(block.source, -1):
                        return True
                    last[block.source] = block.place
        return False


def _named(*adjacency: Sequence[Sequence[int]]) -> Iterator[tuple[int, int]]:
    """(rank, a rank that it names)."""
    for of_ranks in adjacency:
        for rank, peers in enumerate(of_ranks):
            for peer in peers:
                yield rank, peer


def _around(rank: int, size: int, dims: Sequence[int], periods: Sequence[bool]) -> Iterator[int]:
    """The neighbours of a rank on a grid, as MPI orders them; the last dimension varies fastest."""
    stride = size
    for length, is_periodic in zip(dims, periods):
        stride //= length
        own = rank // stride % length
        for other in (own - 1, own + 1):
            if is_periodic or 0 <= other < length:
                yield rank + (other % length - own) * stride
            else:
                yield NOBODY


def mismatch(targets: Sequence[Sequence[int]], sources: Sequence[Sequence[int]]) -> str:
    """Where ranks do not name each other as often: a text with both names of each; or ""."""
    sent = Counter((rank, peer) for rank, peer in _named(targets) if peer != NOBODY)
    expected = Counter((peer, rank) for rank, peer in _named(sources) if peer != NOBODY)
    edges = sorted(edge for edge in sent | expected if sent[edge] != expected[edge])
    if not edges:
        return ""
    lines = [
        f"  rank {source} names rank {target} as a destination {_times(sent[source, target])}, "
        f"rank {target} names rank {source} as a source {_times(expected[source, target])}"
        for source, target in edges[:_MOST_LISTED]
    ]
    if len(edges) > _MOST_LISTED:
        lines.append(f"  and {len(edges) - _MOST_LISTED} more")
    return "\n".join(["the neighbours do not match:", *lines])


def _times(count: int) -> str:
    return {0: "never", 1: "once"}.get(count, f"{count} times")


# What the collectives mean.


class Neighborhood:
    """A neighbourhood collective, of any graph or of a given one.

    It has what `collectives.Collective` has. Blocks are numbered by their places, so the same block
    has other numbers at its source and at its destination.
    """

    reduces = False
    rooted = False
    personal = True
    blocks_of_ranks = True
    shares_memory = False
    place = INPUT
    promise = "starts: input, at its source; must end: output, at its destination"

    def __init__(self, name: NeighborhoodName, graph: Graph | None = None) -> None:
        self.name: NeighborhoodName = name
        self._graph = graph

    def on(self, graph: Graph) -> Neighborhood:
        """The same collective on this graph."""
        return Neighborhood(self.name, graph)

    @property
    def graph(self) -> Graph:
        """The graph, which has to be given."""
        assert self._graph is not None
        return self._graph

    @property
    def gathers(self) -> bool:
        """Whether a rank sends the same block to all its neighbours."""
        return self.name == "neighbor_allgather"

    def sent(self, rank: int) -> int:
        """How many blocks a rank has at the start."""
        return 1 if self.gathers else len(self.graph.targets[rank])

    @cached_property
    def wanted(self) -> list[dict[Block, list[int]]]:
        """Of each rank, the places that get each block; in the order of sources and their places.

        A gathered block has place 0 at its source.
        """
        wanted = []
        for sources in self.graph.sources:
            places: defaultdict[Block, list[int]] = defaultdict(list)
            for place, block in enumerate(sources):
                if block is not None:
                    places[Block(block.source, 0) if self.gathers else block].append(place)
            wanted.append({block: places[block] for block in sorted(places)})
        return wanted

    # For the verifier.

    def precondition(self, rank: int, size: int, blocks: int, root: int = 0) -> Part | None:
        """The `Part` that `rank` holds at the start, or None."""
        count = self.sent(rank)
        return Part(INPUT, 0, count) if count else None

    def postcondition(self, rank: int, size: int, blocks: int, root: int = 0) -> Part | None:
        """The `Part` of `rank` at the end, or None."""
        count = len(self.graph.sources[rank])
        return Part(OUTPUT, 0, count) if count else None

    def contribution(self, rank: int, block: int, size: int, blocks: int, root: int = 0) -> int:
        """The number of what `rank` has of `block` at the start."""
        return rank * blocks + block


#: generator(rank, meaning, nodes) yields the rounds of a rank
GraphGenerator: TypeAlias = Callable[[int, Neighborhood, Sequence[int]], Iterable[Iterable[Any]]]
ALLGATHER = Neighborhood("neighbor_allgather")
ALLTOALL = Neighborhood("neighbor_alltoall")
NEIGHBORHOODS: dict[NeighborhoodName, Neighborhood] = {
    each.name: each for each in (ALLGATHER, ALLTOALL)
}


# Files.


#: lines of a file that belong to no rank
_WORDS = ("dims", "periods", "nodes")


class GraphFile(NamedTuple):
    """A graph, and the node of each rank where the file says it."""

    graph: Graph
    nodes: tuple[int, ...] | None


def parse_graph(text: str) -> GraphFile:
    """A graph from its text.

    A line for each rank, ``RANK: DESTINATION ...``, and where the order of the sources matters a
    line ``RANK < SOURCE ...``; or instead ``dims: LENGTH ...``, and ``periods: 0-OR-1 ...``
    (default: all 1). A line ``nodes: NODE ...`` says the node of each rank. ``-1`` is nobody,
    ``#`` begins a comment. No line occurs twice.

    Raises
    ------
    ArgumentError
        A line cannot be understood, or the neighbours do not match.

    Examples
    --------
    >>> parse_graph("0: 1 2\\n1: 0\\n2:").graph.edges
    3
    """
    # keys of lines are words, or the number of the rank that has the list
    lists: dict[str | int, list[int]] = {}
    sources: dict[int, list[int]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        separator = "<" if "<" in content else ":"
        word, found, rest = content.partition(separator)
        word = word.strip()
        try:
            values = [int(each) for each in rest.split()]
            key = word if separator == ":" and word in _WORDS else int(word)
            if not found or (isinstance(key, int) and key < 0):
                raise ValueError
        except ValueError:
            expected = "RANK: DESTINATION ..., RANK < SOURCE ..., dims:, periods: or nodes:"
            raise ArgumentError(f"line {number}: expected {expected}, got {content!r}") from None
        if key == "periods" and (not values or not {0, 1}.issuperset(values)):
            raise ArgumentError(f"line {number}: expected periods of 0 or 1, got {content!r}")
        entries: dict[Any, list[int]] = sources if separator == "<" else lists
        if key in entries:
            raise ArgumentError(
                f"line {number}: expected each line once, but {content!r} is the second one of"
                f" '{key}{separator}'; write its numbers in one line"
            )
        entries[key] = values
    nodes = lists.pop("nodes", None)
    periods = lists.pop("periods", None)
    dims = lists.pop("dims", None)
    if dims is not None:
        if lists or sources:
            raise ArgumentError("a graph has either dims or a line for each rank, not both")
        _must_be_few(prod(dims))
        graph = Graph.cartesian(dims, list(map(bool, periods or [1] * len(dims))))
    elif periods is not None:
        raise ArgumentError("periods without dims")
    else:
        graph = _listed({int(key): values for key, values in lists.items()}, sources)
    if nodes is not None and len(nodes) != graph.size:
        raise ArgumentError(f"expected the nodes of {graph.size} ranks, got {len(nodes)}")
    return GraphFile(graph, None if nodes is None else tuple(nodes))


def _must_be_few(ranks: int) -> None:
    """Raise ArgumentError where a file has too many ranks."""
    if ranks > _MOST_RANKS:
        raise ArgumentError(f"expected at most {_MOST_RANKS} ranks, got {ranks}")


def _listed(targets: dict[int, list[int]], sources: dict[int, list[int]]) -> Graph:
    size = max(chain(targets, sources), default=-1) + 1
    if not size:
        raise ArgumentError("the graph has no ranks")
    _must_be_few(size)
    destinations = [targets.get(rank, []) for rank in range(size)]
    if not sources:
        return Graph.adjacent(destinations)
    return Graph.adjacent(destinations, [sources.get(rank, []) for rank in range(size)])


def runs(pairs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """(first, first, count) of each run in which both numbers grow by one.

    >>> list(runs([(0, 4), (1, 5), (2, 0)]))
    [(0, 4, 2), (2, 0, 1)]
    """
    start: tuple[int, int] | None = None
    count = 0
    for left, right in pairs:
        if start is not None and (left, right) == (start[0] + count, start[1] + count):
            count += 1
            continue
        if start is not None:
            yield *start, count
        start = left, right
        count = 1
    if start is not None:
        yield *start, count
