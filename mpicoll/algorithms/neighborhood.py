"""Neighbourhoods: Neighbor_allgather and Neighbor_alltoall, whose schedules come from a graph.

A generator is called with a rank, the `Neighborhood`, and the node of each rank. Inputs and outputs
are numbered by their places at this rank, scratch blocks by their places in `carried`.

Blocks that a rank would get several times (allgather, the same neighbour twice) come once and are
copied.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ..graphs import NOBODY, Block, Neighborhood, runs
from ..schedule import Copy, Input, Operation, Output, Recv, Scratch, Send

ALGORITHMS: dict[str, dict[str, Any]] = {"direct": {}, "packed": {}, "combined": {}}

Rounds = Iterator[tuple[Operation, ...]]
Nodes = Sequence[int]

#: the place of blocks that a rank carries for others
_CARRIED = "carried"


class Edge(NamedTuple):
    """A block on its way to a rank: its place at the source, its first place at the destination."""

    source: int
    place: int
    target: int
    into: int


def direct(rank: int, meaning: Neighborhood, nodes: Nodes) -> Rounds:
    """Send each block straight to its destination, all at once: one round.

    A message per neighbour, or several where the blocks do not lie side by side at both ends.
    """
    operations = list(_straight(rank, meaning, lambda peer: True))
    yield (*operations, *_copies(rank, meaning))


def packed(rank: int, meaning: Neighborhood, nodes: Nodes) -> Rounds:
    """`direct` with one message to each neighbour on another node, however its blocks lie.

    One round, and copies before and after it of blocks that do not lie side by side: where a rank
    has the same neighbour several times.
    """
    return _through(_Carrier(rank, _plan(meaning, nodes, between_ranks=True)), meaning, nodes)


def combined(rank: int, meaning: Neighborhood, nodes: Nodes) -> Rounds:
    """What goes from one node to another travels in one message: three rounds.

    A rank of the sending node collects the blocks, a rank of the receiving node deals them; the
    messages of a node are spread over its ranks. A block that several ranks of a node get travels
    once. Between nodes as many bytes as `direct` at most, and a message for each pair of nodes;
    inside a node each block is sent up to twice more. Source: Bienz, Gropp, Olson, "Node aware
    sparse matrix-vector multiplication", J. Parallel Distrib. Comput. 130 (2019).
    """
    return _through(_Carrier(rank, _plan(meaning, nodes, between_ranks=False)), meaning, nodes)


def _through(own: _Carrier, meaning: Neighborhood, nodes: Nodes) -> Rounds:
    """The rounds of a rank that carries blocks."""
    rank = own.rank
    yield own.collecting()
    near = _straight(rank, meaning, lambda peer: nodes[peer] == nodes[rank])
    yield (*own.travelling(), *near)
    yield (*own.dealing(), *_copies(rank, meaning))


def carried_by(algorithm: str, rank: int, meaning: Neighborhood, nodes: Nodes) -> list[Block]:
    """The blocks that an algorithm has room for in the scratch of a rank, by their numbers."""
    if algorithm == "direct":
        return []
    between_ranks = algorithm == "packed"
    return _Carrier(rank, _plan(meaning, nodes, between_ranks)).blocks


def busiest(meaning: Neighborhood, nodes: Nodes) -> dict[str, int]:
    """Messages to other nodes that a rank sends at most, by algorithm."""
    straight = 0
    for rank in range(meaning.graph.size):
        far = _straight(rank, meaning, lambda peer, rank=rank: nodes[peer] != nodes[rank])
        straight = max(straight, sum(type(operation) is Send for operation in far))
    most = {"direct": straight}
    for name, between_ranks in (("packed", True), ("combined", False)):
        plan = _plan(meaning, nodes, between_ranks)
        sent = Counter(cargo.collector for cargo in plan.values())
        most[name] = max(sent.values(), default=0)
    return most


# Messages that need no help.


def _straight(rank: int, meaning: Neighborhood, is_peer: Any) -> Iterator[Operation]:
    """Messages between this rank and those that `is_peer` names, and copies to itself."""
    sent: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    received: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for edge in _edges_from(rank, meaning):
        if edge.target != rank and is_peer(edge.target):
            sent[edge.target].append((edge.place, edge.into))
    for block, places in meaning.wanted[rank].items():
        if block.source == rank or is_peer(block.source):
            received[block.source].append((block.place, places[0]))
    for peer, pairs in sent.items():
        for place, _, count in runs(pairs):
            yield Send(peer, Input(place, count))
    for peer, pairs in received.items():
        for place, into, count in runs(pairs):
            if peer == rank:
                yield Copy(Input(place, count), Output(into, count))
            else:
                yield Recv(peer, Output(into, count))


def _edges_from(rank: int, meaning: Neighborhood) -> list[Edge]:
    """What a rank sends, in the order of destinations and of places."""
    targets = sorted(set(meaning.graph.targets[rank]) - {NOBODY})
    edges = []
    for target in targets:
        for block, places in meaning.wanted[target].items():
            if block.source == rank:
                edges.append(Edge(rank, block.place, target, places[0]))
    return edges


def _copies(rank: int, meaning: Neighborhood) -> Iterator[Copy]:
    """Copies of blocks that this rank gets at several places."""
    for first, *others in meaning.wanted[rank].values():
        for place in others:
            yield Copy(Output(first), Output(place))


# Messages between nodes.


class _Cargo(NamedTuple):
    """What goes from one node, or rank, to another.

    Attributes
    ----------
    blocks : list of Block
        In the order in which they travel.
    goals : list of list of (int, int)
        Of each block, its destinations: rank, and first place there.
    collector, dealer : int
        The rank that sends the message, and the rank that receives it.
    """

    blocks: list[Block]
    goals: list[list[tuple[int, int]]]
    collector: int
    dealer: int

    def run_of(self, source: int) -> list[tuple[int, int]]:
        """(place at the source, number in the message) of the blocks of a rank."""
        return [
            (block.place, number)
            for number, block in enumerate(self.blocks)
            if block.source == source
        ]

    def dealt_to(self, target: int) -> list[tuple[int, int]]:
        """(number in the message, place at the destination) of the blocks for a rank."""
        return [
            (number, into)
            for number, goals in enumerate(self.goals)
            for rank, into in goals
            if rank == target
        ]

    @property
    def sources(self) -> list[int]:
        """The ranks whose blocks it has."""
        return sorted({block.source for block in self.blocks})

    @property
    def targets(self) -> list[int]:
        """The ranks that its blocks are for."""
        return sorted({rank for goals in self.goals for rank, _ in goals})

    @property
    def single_send(self) -> int | None:
        """The first place at the collector, where the blocks lie there side by side."""
        return self._side_by_side(self.sources, self.run_of(self.collector))

    @property
    def single_receive(self) -> int | None:
        """The first place at the dealer, where the blocks belong there side by side."""
        if self.targets != [self.dealer]:
            return None
        swapped = [(into, number) for number, into in self.dealt_to(self.dealer)]
        return self._side_by_side(self.targets, swapped)

    def _side_by_side(self, ranks: list[int], pairs: list[tuple[int, int]]) -> int | None:
        found = list(runs(pairs))
        return found[0][0] if len(ranks) == len(found) == 1 else None


_Plan = dict[tuple[int, int], _Cargo]
#: what ranks of the same graph compute alike; weak, because graphs are large
_PLANS: WeakKeyDictionary[Neighborhood, dict[tuple[tuple[int, ...], bool], _Plan]]
_PLANS = WeakKeyDictionary()


def _plan(meaning: Neighborhood, nodes: Nodes, between_ranks: bool) -> _Plan:
    """The `_Cargo` of each pair of nodes (from, to), in order; or of ranks on different nodes."""
    plans = _PLANS.setdefault(meaning, {})
    key = tuple(nodes), between_ranks
    if key not in plans:
        plans[key] = _planned(meaning, nodes, between_ranks)
    return plans[key]


def _planned(meaning: Neighborhood, nodes: Nodes, between_ranks: bool) -> _Plan:
    goals: defaultdict[tuple[int, int], defaultdict[Block, list[tuple[int, int]]]]
    goals = defaultdict(lambda: defaultdict(list))
    for target, wanted in enumerate(meaning.wanted):
        for block, places in wanted.items():
            if nodes[block.source] != nodes[target]:
                pair = nodes[block.source], nodes[target]
                if between_ranks:
                    pair = block.source, target
                goals[pair][block].append((target, places[0]))
    collecting: Counter[int] = Counter()
    dealing: Counter[int] = Counter()
    plan = {}
    for pair in sorted(goals):
        blocks = sorted(goals[pair])
        of_blocks = [goals[pair][block] for block in blocks]
        plan[pair] = _Cargo(
            blocks,
            of_blocks,
            _least_busy(collecting, Counter(block.source for block in blocks)),
            _least_busy(dealing, Counter(rank for each in of_blocks for rank, _ in each)),
        )
    return plan


def _least_busy(busy: Counter[int], shares: Counter[int]) -> int:
    """The rank with the fewest messages so far, of these the one with the most blocks."""
    rank = min(shares, key=lambda rank: (busy[rank], -shares[rank], rank))
    busy[rank] += 1
    return rank


class _Carrier:
    """The part of one rank in what nodes, or ranks, send each other."""

    def __init__(self, rank: int, plan: _Plan) -> None:
        self.rank = rank
        self._cargoes = list(plan.values())
        #: what it has room for in scratch
        self.blocks: list[Block] = []
        #: by (number of a cargo, whether it is received), the first block in scratch
        self._room: dict[tuple[int, bool], int] = {}
        for number, cargo in enumerate(self._cargoes):
            if cargo.collector == rank and cargo.single_send is None:
                self._make_room(number, False, cargo)
            if cargo.dealer == rank and cargo.single_receive is None:
                self._make_room(number, True, cargo)

    def _make_room(self, number: int, is_received: bool, cargo: _Cargo) -> None:
        self._room[number, is_received] = len(self.blocks)
        self.blocks += cargo.blocks

    def collecting(self) -> tuple[Operation, ...]:
        """Blocks go to the rank that sends them to their node."""
        operations: list[Operation] = []
        for number, cargo in enumerate(self._cargoes):
            if cargo.collector != self.rank:
                for place, _, count in runs(cargo.run_of(self.rank)):
                    operations.append(Send(cargo.collector, Input(place, count)))
            elif (number, False) in self._room:
                first = self._room[number, False]
                for source in cargo.sources:
                    for place, at, count in runs(cargo.run_of(source)):
                        into = Scratch(_CARRIED, first + at, count)
                        if source == self.rank:
                            operations.append(Copy(Input(place, count), into))
                        else:
                            operations.append(Recv(source, into))
        return tuple(operations)

    def travelling(self) -> Iterator[Operation]:
        """One message from node to node."""
        for number, cargo in enumerate(self._cargoes):
            count = len(cargo.blocks)
            if cargo.collector == self.rank:
                place = cargo.single_send
                if place is not None:
                    yield Send(cargo.dealer, Input(place, count))
                else:
                    first = self._room[number, False]
                    yield Send(cargo.dealer, Scratch(_CARRIED, first, count))
            if cargo.dealer == self.rank:
                place = cargo.single_receive
                if place is not None:
                    yield Recv(cargo.collector, Output(place, count))
                else:
                    first = self._room[number, True]
                    yield Recv(cargo.collector, Scratch(_CARRIED, first, count))

    def dealing(self) -> tuple[Operation, ...]:
        """Blocks go to their destinations."""
        operations: list[Operation] = []
        for number, cargo in enumerate(self._cargoes):
            if cargo.dealer != self.rank:
                for _, into, count in runs(cargo.dealt_to(self.rank)):
                    operations.append(Recv(cargo.dealer, Output(into, count)))
            elif (number, True) in self._room:
                first = self._room[number, True]
                for target in cargo.targets:
                    for at, into, count in runs(cargo.dealt_to(target)):
                        part = Scratch(_CARRIED, first + at, count)
                        if target == self.rank:
                            operations.append(Copy(part, Output(into, count)))
                        else:
                            operations.append(Send(target, part))
        return tuple(operations)
