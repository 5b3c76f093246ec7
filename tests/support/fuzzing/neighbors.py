"""Graphs of neighbours, and the calls whose blocks have places: those of neighbours, and Alltoallw; and barriers."""

import random
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from mpicoll.support.quirks import applies

from .calls import SENTINEL, Bound, values
from .layouts import Layout, layout_of, mpi_type, spaced

NEIGHBOR_METHODS = (
    "Neighbor_allgather", "Neighbor_allgatherv", "Neighbor_alltoall", "Neighbor_alltoallv", "Neighbor_alltoallw",
)  # fmt: skip
#: what there is beside them and the methods of `cases`
OTHERS = ("Alltoallw", "Barrier")
#: how a member of a family is called that is a graph with this number
GRAPH = "graph "
#: blocks that a rank may have, at most
_MOST_PLACES = 64


class Neighbours(NamedTuple):
    """A graph, by what each rank knows. make: a function of the parent that makes the communicator, on all its ranks.

    targets: of each rank, the receiver of each place, or PROC_NULL. sources: of each rank and place, (sender, its place),
    or None.
    """

    kind: str
    make: Any
    targets: list[list[int]]
    sources: list[list[tuple[int, int] | None]]

    @property
    def crosses(self) -> bool:
        """Whether blocks of one rank for another one arrive in another order than they are sent."""
        for sources in self.sources:
            for rank in range(len(self.targets)):
                places = [place for one in sources if one for sender, place in [one] if sender == rank]
                if places != sorted(places):
                    return True
        return False


@cache
def neighbours(number: int, size: int) -> Neighbours:
    """The graph of that number: a grid, or edges with loops, repetitions, and ranks that have none."""
    draw = random.Random(number)
    return draw.choice((_grid, _general, _adjacent, _adjacent, _adjacent))(draw, size)


def _grid(draw, size):
    """Of all ranks or of fewer, also of no dimension; what goes down comes from above."""
    dims = [draw.choice((1, 2, size)) for _ in range(draw.randrange(4))]
    while prod(dims) > size:
        dims[dims.index(max(dims))] -= 1
    periods = [draw.random() < 0.6 for _ in dims]
    coordinates = list(np.ndindex(*dims))
    targets: list[list[int]] = []
    for place in coordinates:
        targets.append([])
        for axis, way in ((axis, way) for axis in range(len(dims)) for way in (-1, 1)):
            other = list(place)
            other[axis] += way
            inside = periods[axis] or 0 <= other[axis] < dims[axis]
            other[axis] %= dims[axis]
            targets[-1].append(coordinates.index(tuple(other)) if inside else MPI.PROC_NULL)
    sources = [[None if peer == MPI.PROC_NULL else (peer, place ^ 1) for place, peer in enumerate(of_rank)]
               for of_rank in targets]  # fmt: skip
    reorder = draw.random() < 0.5
    return Neighbours("grid", lambda parent: parent.Create_cart(dims, periods, reorder), targets, sources)


def _general(draw, size):
    """Each edge leads both ways."""
    targets: list[list[int]] = [[] for _ in range(size)]
    for _ in range(draw.randrange(2 * size + 1)):
        one, other = draw.randrange(size), draw.randrange(size)
        targets[one].append(other)
        if one != other:
            targets[other].append(one)
    # mpi4py takes a first 0 for the beginning, also where the first rank has no neighbours
    ends = [0, *np.cumsum([len(peers) for peers in targets]).tolist()]
    edges = [peer for peers in targets for peer in peers]
    return Neighbours("graph", lambda parent: parent.Create_graph(ends, edges), targets, _matched(targets, targets))


def _adjacent(draw, size):
    """Any edges, each rank's in any order."""
    targets: list[list[int]] = [[] for _ in range(size)]
    named: list[list[int]] = [[] for _ in range(size)]
    idle = draw.randrange(size) if draw.random() < 0.3 else None
    for _ in range(draw.randrange(3 * size + 1)):
        source, target = draw.randrange(size), draw.randrange(size)
        if idle in (source, target):
            continue
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            targets[source].append(target)
            named[target].append(source)
    for peers in targets + named:
        draw.shuffle(peers)
    weights = draw.random() < 0.3

    def make(parent):
        rank = parent.Get_rank()
        given = ([1] * len(named[rank]), [3] * len(targets[rank])) if weights else (MPI.UNWEIGHTED, MPI.UNWEIGHTED)
        return parent.Create_dist_graph_adjacent(named[rank], targets[rank], *given)

    return Neighbours("edges", make, targets, _matched(targets, named))


def _matched(targets, named):
    """The n-th time that a rank names a source belongs to the n-th time that this one names it."""
    sources = []
    for rank, peers in enumerate(named):
        unread = {peer: (place for place, one in enumerate(targets[peer]) if one == rank) for peer in peers}
        sources.append([(peer, next(unread[peer])) for peer in peers])
    return sources


def complete(size: int) -> Neighbours:
    """The graph of Alltoallw."""
    ranks = range(size)
    return Neighbours("all", None, [list(ranks)] * size, [[(peer, rank) for peer in ranks] for rank in ranks])


def bind(call, comm) -> Bound:
    """A call of any method bound to memory."""
    if call["method"] == "Barrier":
        return BoundBarrier(call, comm)
    return (BoundExchange if call["method"] in (*NEIGHBOR_METHODS, *OTHERS) else Bound)(call, comm)


class BoundBarrier(Bound):
    """A barrier, which has no memory."""

    def __init__(self, call, comm):
        self.call, self.method, self.arguments = call, call["method"], ()
        self.rooms, self.free = [], []

    def fill(self, repetition):
        self.wanted = []


class BoundExchange(Bound):
    """A call whose blocks are numbered by their places: room 0 is what a rank sends, room 1 what it gets."""

    def __init__(self, call, comm):
        self.call, self.comm = call, comm
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.method, self.dtype = call["method"], np.dtype(call["dtype"])
        number = call["on"].removeprefix(GRAPH)
        self.graph = complete(self.size) if self.method == "Alltoallw" else neighbours(int(number), MPI.COMM_WORLD.Get_size())
        self.gathers = "allgather" in self.method
        self.free = []
        in_place = self.method == "Alltoallw" and call["place"] in ("in place", "none")
        sent = [self._count(*block) for block in self._sent()]
        received = [self._count(*(block or (self.rank, 0))) for block in self.graph.sources[self.rank]]
        layouts = [self._layout(which, counts) for which, counts in enumerate((sent, received))]
        self.rooms = [self._room(layout, which) for which, layout in enumerate(layouts)]
        self.parts = [self._parts(layout, counts) for layout, counts in zip(layouts, (sent, received))]
        self.arguments = tuple(layout.given(room) for layout, room in zip(layouts, self.rooms))
        if in_place:
            self.arguments = MPI.IN_PLACE if call["place"] == "in place" else None, self.arguments[1]
            self.rooms, self.parts = [self.rooms[1]], [self.parts[1]] * 2

    def _sent(self):
        """(rank, place) of the blocks that it sends."""
        return [(self.rank, place) for place in range(1 if self.gathers else len(self.graph.targets[self.rank]))]

    def _count(self, source, place):
        """Elements of a block; in place two ranks have as much for each other."""
        given = self.call["counts"]
        if self.method[-1] not in "vw":
            return given[0]
        return given[(source + place) % len(given)] if not self.gathers else given[source % len(given)]

    def _layout(self, which, counts):
        name, empty = self._drawn("layouts", which), self.call["empty"]
        if self.method.endswith("w"):
            return _typed(counts, self.dtype, self.call["seed"] + self.rank)
        if self.method.endswith("v") and not (self.gathers and which == 0):
            if not counts:
                return Layout(0, np.arange(0), lambda room: [room, []])
            return layout_of(name, counts, self.dtype, 0, False, empty)
        blocks = 0 if self.gathers and which == 0 else len(counts)
        return layout_of(name, sum(counts), self.dtype, blocks, False, empty)

    @staticmethod
    def _parts(layout, counts):
        """Where the elements of each block lie."""
        return np.split(layout.places, np.cumsum(counts)[:-1]) if counts else []

    def fill(self, repetition):
        self.wanted_is_made = False
        for room in self.rooms:
            room[...] = SENTINEL
        for block, places in zip(self._sent(), self.parts[0]):
            self.rooms[0][places] = self._values(repetition, block, places.size)
        self.wanted = [room.copy() for room in self.rooms]
        self.wanted_is_made = True
        for block, places in zip(self.graph.sources[self.rank], self.parts[1]):
            if block is not None:
                self.wanted[-1][places] = self._values(repetition, block, places.size)

    def _values(self, repetition, block, length):
        source, place = block
        return values(self.call, repetition, _MOST_PLACES * source + (0 if self.gathers else place), length)

    def make(self, comm):
        """The call in its form; of those of MPI's own that have the wrong result none is asked for."""
        early = self.call["form"] != "blocking" and "Neighbor_alltoall" in self.method
        if early and self.call["algorithm"] == "native" and self.graph.crosses and applies("neighbor-directions"):
            self.call = {**self.call, "algorithm": None}
        return super().make(comm)


def _typed(counts, dtype, number):
    """A type for each block, with gaps between blocks, the last one first on some ranks."""
    kind = mpi_type(dtype)
    unit = dtype.itemsize
    places, starts, types, numbers = [], [], [], []
    end = 0
    order = range(len(counts))[:: -1 if number % 3 == 0 else 1]
    for block in order:
        step = 2 if kind is not None and (number + block) % 2 else 1
        start = end + (number + block) % 3
        end = start + step * counts[block]
        places.append(np.arange(start, end, step))
        starts.append(unit * start)
        types.append(MPI.BYTE if kind is None else spaced(dtype.char) if step == 2 else kind)
        numbers.append(counts[block] * unit if kind is None else counts[block])
    ordered = [[each[at] for at in order] for each in (places, starts, types, numbers)]
    places, starts, types, numbers = ordered
    whole = np.concatenate(places) if places else np.arange(0)
    return Layout(end, whole, lambda room: [room, numbers, starts, types])
