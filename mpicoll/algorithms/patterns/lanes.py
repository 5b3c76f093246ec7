"""Lanes, of which node-aware algorithms consist: a lane has one rank of every node.

There are as many lanes as the largest node has ranks; they share the work. On a node of n ranks,
local rank l mod n serves lane l: on equal nodes each rank has one lane, on smaller nodes some ranks
have several. A vector is cut into cells, one per lane and node (node by node inside a lane); where
blocks belong to ranks, the cell of lane l and node i is the block of local rank l of node i, if it
exists. `inside` runs an algorithm among the ranks of a node, with whole lanes as blocks; `across`
runs an algorithm among the nodes in every lane of this rank, with the cells of the lane as blocks.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, ClassVar, TypeAlias, Union
from weakref import WeakValueDictionary

from ...schedule import Generator, Operation, joined, operations_of, renamed

#: the node of each rank, any labels; None: unknown
Nodes: TypeAlias = Union[Sequence[Hashable], None]
Places: TypeAlias = Union[Mapping[str, str], None]

#: the most nodes of a ring: in pieces it uses links better than circulant (by an eighth on four)
RINGED = 8


class NodeMap:
    """The ranks of each node, and the node of each rank; shared by all ranks of a simulation."""

    def __init__(self, size: int, nodes: Nodes) -> None:
        self.nodes = nodes
        self.members = node_members(size, nodes)
        #: of lanes
        self.count = max(map(len, self.members))
        #: node and local rank, by rank
        self.node_of = array("l", bytes(array("l").itemsize * size))
        self.local_of = array("l", self.node_of)
        for node, ranks in enumerate(self.members):
            for local, rank in enumerate(ranks):
                self.node_of[rank] = node
                self.local_of[rank] = local

    _in_use: ClassVar[WeakValueDictionary[tuple[int, int], NodeMap]] = WeakValueDictionary()

    @classmethod
    def of(cls, size: int, nodes: Nodes) -> NodeMap:
        """The map of these nodes, as long as a rank uses it."""
        if nodes is not None and not isinstance(nodes, tuple):  # it may change
            return cls(size, nodes)
        key = size, id(nodes)
        node_map = cls._in_use.get(key)
        if node_map is None:
            node_map = cls._in_use[key] = cls(size, nodes)
        return node_map


class Lanes:
    """The lanes of one rank.

    nodes: the node of each rank, any labels; None: ranks 0 and 1, 2 and 3, …
    """

    def __init__(self, rank: int, size: int, nodes: Nodes) -> None:
        self._map = NodeMap.of(size, nodes)
        #: the ranks of each node
        self.members = self._map.members
        #: of this rank
        self.node, self.local = self.place_of(rank)
        #: their number
        self.nodes = len(self.members)
        #: of this node
        self.ranks = len(self.members[self.node])
        #: of lanes
        self.count = self._map.count

    def cells(self, lane: int, first: int, count: int) -> list[tuple[int, int]]:
        """The cells of `count` nodes from `first` on (cyclic) as ranges of blocks."""
        begin = lane * self.nodes
        start = begin + first % self.nodes
        inside = min(count, begin + self.nodes - start)
        if count > inside:
            return [(start, inside), (begin, count - inside)]
        return [(start, inside)]

    def place_of(self, rank: int) -> tuple[int, int]:
        """(node, local rank) of a rank."""
        return self._map.node_of[rank], self._map.local_of[rank]

    def suited(self, ring: Generator, circulant: Generator) -> Generator:
        """The algorithm of the two that suits this number of nodes."""
        return ring if self.nodes <= RINGED else circulant

    def inside(
        self, generator: Generator, *root: int, places: Places = None, **names: Any
    ) -> Iterator[tuple[Operation, ...]]:
        """Rounds of an algorithm among the ranks of this node.

        Its block j is the lanes that local rank j serves.
        """
        steps = generator(self.local, self.ranks, *root, **names)
        ranks = self.members[self.node]
        return renamed(steps, places, peer=lambda j: ranks[j % self.ranks], block=self._lanes_of)

    def across(
        self, generator: Generator, *root: int, places: Places = None
    ) -> Iterator[tuple[Operation, ...]]:
        """Rounds of an algorithm among the nodes, in all lanes of this rank at the same time.

        Its block i is the cell of node i.
        """
        numbers = range(self.local, self.count, self.ranks)
        lanes = [self._lane(number, generator, root, places) for number in numbers]
        for steps in zip_longest(*lanes, fillvalue=()):
            yield tuple(operation for step in steps for operation in operations_of(step))

    def _lane(
        self, lane: int, generator: Generator, root: tuple[int, ...], places: Places
    ) -> Iterator[tuple[Operation, ...]]:
        def server(node: int) -> int:
            ranks = self.members[node % self.nodes]
            return ranks[lane % len(ranks)]

        def cells(first: int, count: int) -> list[tuple[int, int]]:
            return joined(self.cells(lane, first, count))

        return renamed(generator(self.node, self.nodes, *root), places, peer=server, block=cells)

    def _lanes_of(self, first: int, count: int) -> list[tuple[int, int]]:
        """The ranges of all cells of the lanes of `count` local ranks from `first` on (cyclic)."""
        lanes = (
            lane
            for local in range(first, first + count)
            for lane in range(local % self.ranks, self.count, self.ranks)
        )
        return joined(cyclic for lane in lanes for cyclic in self.cells(lane, 0, self.nodes))


class LanesOfRanks(Lanes):
    """Lanes of a vector whose blocks belong to ranks."""

    def cells(self, lane: int, first: int, count: int) -> list[tuple[int, int]]:
        """The cells of `count` nodes; a node without a rank in this lane has none."""
        members = (self.members[node % self.nodes] for node in range(first, first + count))
        return [(ranks[lane], 1) for ranks in members if lane < len(ranks)]


def node_members(size: int, nodes: Nodes) -> list[list[int]]:
    """The ranks of each node, in the order of the nodes' lowest ranks."""
    members: dict[Hashable, list[int]] = {}
    for rank, node in enumerate(nodes or (rank // 2 for rank in range(size))):
        members.setdefault(node, []).append(rank)
    return list(members.values())


def lane_blocks(size: int, nodes: Nodes = None) -> int:
    """The number of cells of a vector."""
    node_map = NodeMap.of(size, nodes)
    return node_map.count * len(node_map.members)
