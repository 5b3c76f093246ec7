"""One call on one rank: its buffers, its arguments, and what each byte of its memory must be afterwards.

A call is plain data: {"method", "form", "algorithm", "segment", "counts", "dtype", "op", "root", "place", "layouts",
"memory", "empty", "compression", "seed", "times"}; see `drawing`. What ranks contribute is drawn from a pool by all of
them, so that each knows all of it.
"""

from functools import cache, reduce
from itertools import accumulate

import numpy as np
from mpi4py import MPI
from mpi4py.util import dtlib

from mpicoll import collectives
from mpicoll.schedule import INPUT
from tests.support.cases import METHODS

from .layouts import layout_of
from .memory import array

SENTINEL = 7
_POOL = np.random.default_rng(11).integers(0, 256, 2 << 20, np.uint8)


# ---- operations: NumPy's function, and MPI's op


def joined(lower, higher):
    """Decimal digits after a leading 1, one number after the other: no order of ranks but the right one gives it."""
    leading = np.ones_like(higher)
    for power in range(1, 7):
        leading[higher >= 10**power] = 10**power
    return lower * leading + (higher - leading)


def xored(lower, higher):
    """Any order will do."""
    return lower ^ higher ^ lower.dtype.type(5)


FUNCTIONS = {
    "SUM": np.add, "PROD": np.multiply, "MAX": np.maximum, "MIN": np.minimum, "LAND": np.logical_and,
    "LOR": np.logical_or, "LXOR": np.logical_xor, "BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor,
    "joined": joined, "xored": xored,
}  # fmt: skip


@cache
def op_of(name: str) -> MPI.Op:
    """MPI's, or one made of our function."""
    if name.isupper():
        return getattr(MPI, name)

    def run(lower, higher, datatype):
        kind = dtlib.to_numpy_dtype(datatype)
        out = np.frombuffer(higher, kind)
        out[...] = FUNCTIONS[name](np.frombuffer(lower, kind), out)

    return MPI.Op.Create(run, commute=name != "joined")


# ---- what ranks contribute


def with_lists_of_its_own(method, arguments, options):
    """Make a call whose lists the caller uses for something else as soon as its method has returned."""
    lists = []

    def copied(argument):
        if argument.__class__ is not list:
            return argument
        lists.append([copied(item) for item in argument])
        return lists[-1]

    handle = method(*map(copied, arguments), **options)
    for each in lists:
        each[:] = [None] * len(each)
    return handle


def values(call, repetition: int, rank: int, count: int) -> np.ndarray:
    """The vector of a rank: any bits at all where they are only moved, numbers whose result is exact where not."""
    dtype = np.dtype(call["dtype"])
    start = (call["seed"] * 7919 + repetition * 104_729 + rank * 15_485_863) % (1 << 16)
    if call["op"] is None and not call.get("compression") and dtype.char not in "?gG":
        return _POOL[start // 16 * 16 :][: count * dtype.itemsize].view(dtype)
    small = _POOL[start : start + count]
    if call["op"] in ("SUM", "PROD") or call.get("compression"):
        return (small % 3).astype(dtype)
    if call["op"] == "joined":
        return (10 + small % 10).astype(dtype)
    if dtype.kind in "b":
        return (small % 2).astype(dtype)
    return small.astype(np.int8 if dtype.kind in "ifc" else np.uint8).astype(dtype)


class Bound:
    """A call bound to memory on this rank. `fill` writes what goes in, `problem` says what is wrong with what came out."""

    def __init__(self, call, comm: MPI.Intracomm):
        self.call, self.rank, self.size = call, comm.Get_rank(), comm.Get_size()
        self.comm = comm
        self.method, self.dtype = call["method"], np.dtype(call["dtype"])
        self.collective = collectives.find(METHODS[self.method])
        self.root = call["root"] % self.size
        self.counts = self._counts(self.rank)
        self.received = self._received()
        self.edges = [0, *accumulate(self.counts)]
        self.reads, self.writes, self.free, self.rooms = [], [], [], []  # (number of the room, places, part of the vector)
        self.arguments = self._complete(*self._buffers())

    # Which elements of the vector this rank has and gets.

    @property
    def of_any_size(self):
        return self.method in ("Gatherv", "Scatterv", "Allgatherv", "Alltoallv")

    def _counts(self, mine):
        """Elements of each block; of those that rank `mine` has for each rank."""
        given = self.call["counts"]
        if self.method == "Alltoallv":  # in place two ranks have as much for each other
            step = 2 if self.call["place"] in ("apart", "woven", "beside") else 1
            return [given[(mine + step * rank) % len(given)] for rank in range(self.size)]
        if self.of_any_size or self.method == "Reduce_scatter":
            return [given[rank % len(given)] for rank in range(self.size)]
        if self.collective.blocks_of_ranks:
            return [given[0]] * self.size
        return [given[0], *[0] * (self.size - 1)]  # not cut

    def _received(self):
        """Of the blocks that it gets."""
        personal = self.collective.personal
        return [self._counts(rank)[self.rank] for rank in range(self.size)] if personal else self.counts

    def _part(self, condition):
        part = condition(self.rank, self.size, self.size, self.root)
        if part is not None and self.collective.personal:
            return slice(0, sum(self.received if condition == self.collective.postcondition else self.counts))
        return None if part is None else slice(self.edges[part.first], self.edges[part.first + part.count])

    def _contributed(self, repetition):
        """What this rank's vector is, and what the whole result is."""
        ranks, total = range(self.size), self.edges[-1]
        if self.collective.initial == collectives.ROOT:
            vector = values(self.call, repetition, self.root, total)
            return vector, vector
        if self.collective.personal:
            edges = [[0, *accumulate(self._counts(rank))] for rank in ranks]
            vectors = [values(self.call, repetition, rank, edges[rank][-1]) for rank in ranks]
            mine = [vectors[rank][edges[rank][self.rank] : edges[rank][self.rank + 1]] for rank in ranks]
            return vectors[self.rank], np.concatenate(mine)
        vectors = [values(self.call, repetition, rank, total) for rank in ranks]
        if self.collective.reduces:
            terms = self.collective.contributors(self.rank, 0, self.size, 1)
            result = reduce(FUNCTIONS[self.call["op"]], vectors[: len(terms) or 1]).astype(self.dtype)
        else:
            result = np.concatenate([vectors[rank][self.edges[rank] : self.edges[rank + 1]] for rank in ranks])
        return vectors[self.rank], result

    # Memory.

    def _buffers(self):
        before, after = self._part(self.collective.precondition), self._part(self.collective.postcondition)
        if self.collective.place != INPUT:
            (buffer,) = self._apart((0, None if before is None else slice(0, self.edges[-1]), after))
            return (buffer,)
        if self.collective is collectives.EXSCAN and after is None:  # what it gives for the result stays as it is
            return self._apart((0, before, None), (1, None, None, before))
        place = self.call["place"] if before is not None and after is not None else "apart"
        if place in ("in place", "none"):
            return self._in_place(before, after, MPI.IN_PLACE if place == "in place" else None)
        if place == "same" and before == after and not self.of_any_size:
            (buffer,) = self._apart((1, before, after))
            return buffer, buffer
        if place in ("woven", "beside"):
            return self._in_one_room(before, after, place == "woven")
        return self._apart((0, before, None), (1, None, after))

    def _apart(self, *buffers):
        """An array for each (which layout, part read, part written, and of what it is made if it is neither)."""
        arguments = []
        for which, read, written, *unused in buffers:
            part = next((one for one in (read, written, *unused) if one is not None), None)
            if part is None:
                arguments.append(None)
                continue
            layout = self._layout(which, part)
            arguments.append(self._add(self._room(layout, which), layout.given, layout.places, read, written))
        return tuple(arguments)

    def _layout(self, which, part):
        """How a buffer lies in memory. which: 0 for the send buffer, 1 for the receive buffer."""
        name, reduces, empty = self._drawn("layouts", which), self.collective.reduces, self.call["empty"]
        in_place = self.call["place"] in ("in place", "none")
        of_all_ranks = {"gather": which == 1, "allgather": which == 1, "scatter": which == 0, "alltoall": True,
                        "reduce_scatter": which == 0 or in_place}.get(self.collective.name, False)  # fmt: skip
        if of_all_ranks and self.of_any_size:
            return layout_of(name, self.received if which else self.counts, self.dtype, 0, reduces, empty)
        blocks = self.size if of_all_ranks and self.method != "Reduce_scatter" else 0
        return layout_of(name, part.stop - part.start, self.dtype, blocks, reduces, empty)

    def _room(self, layout, which):
        """The array over which a buffer lies."""
        if layout.raw:
            return np.frombuffer(bytearray(layout.length * self.dtype.itemsize), self.dtype)
        return self._array(layout.length, which)

    def _array(self, length, which):
        return array(self._drawn("memory", which), length, self.dtype, self.comm)

    def _drawn(self, field, which):
        """What was drawn for a buffer of this rank."""
        return self.call[field][(2 * self.rank + which) % len(self.call[field])]

    def _add(self, room, given, places, read, written):
        number = len(self.rooms)
        self.rooms.append(room)
        if read is not None:
            self.reads.append((number, places, read))
        if written is not None:
            self.writes.append((number, places, written))
        return given(room)

    def _in_place(self, before, after, marker):
        """One buffer has the whole vector, and this rank's block in its place."""
        which = 0 if self.collective.name == "scatter" else 1
        layout = self._layout(which, slice(0, self.edges[-1]))
        places, room = layout.places, self._room(layout, which)
        self.rooms.append(room)
        self.reads.append((0, places[before], before))
        if self.collective.name == "scatter":
            return layout.given(room), marker
        if self.collective.name == "reduce_scatter":  # the result comes to the front, what is behind it is nobody's
            length = after.stop - after.start
            self.writes.append((0, places[:length], after))
            self.free.append((0, places[length:]))
        else:
            self.writes.append((0, places[after], after))
        return marker, layout.given(room)

    def _in_one_room(self, before, after, woven):
        """Both in one array: every second element, or one behind the other."""
        n, m = before.stop - before.start, after.stop - after.start
        room = self._array(2 * max(n, m) + 1 if woven else n + m, 0)
        send, recv = (np.s_[: 2 * n : 2], np.s_[1 : 2 * m + 1 : 2]) if woven else (np.s_[:n], np.s_[n : n + m])
        self.rooms.append(room)
        places = np.arange(room.size)
        self.reads.append((0, places[send], before))
        self.writes.append((0, places[recv], after))
        arguments = [room[send], room[recv]]
        if self.of_any_size:
            for which, counts in self._dealt():
                arguments[which] = [arguments[which], counts]
        return arguments

    def _dealt(self):
        """Which buffers have a block for, or from, each rank, and of how many elements."""
        both = (0, self.counts), (1, self.received)
        return both if self.collective.personal else both[:1] if self.collective.name == "scatter" else both[1:]

    def _complete(self, *buffers):
        """Counts, op and root where the method has them."""
        if self.method == "Bcast":
            return *buffers, self.root
        counts = [self.counts] if self.method == "Reduce_scatter" else []
        op = [op_of(self.call["op"])] if self.collective.reduces else []
        return (*buffers, *counts, *op, *([self.root] if self.collective.rooted else []))

    # Making it.

    def fill(self, repetition):
        """Write what this rank contributes; all else is what must not stay, or must."""
        mine, result = self._contributed(repetition)
        for room in self.rooms:
            room[...] = SENTINEL
        for number, places, part in self.reads:
            self.rooms[number][places] = mine[part]
        self.wanted = [room.copy() for room in self.rooms]
        for number, places, part in self.writes:
            self.wanted[number][places] = result[part]

    def make(self, comm):
        """The call in its form: None, a request or a plan."""
        form, options = self.call["form"], {"algorithm": self.call["algorithm"], "segment_bytes": self.call["segment"]}
        if self.call.get("compression"):
            options["compression"] = self.call["compression"]
        names = {"blocking": self.method, "begin": f"I{self.method.lower()}", "plan": f"{self.method}_init"}
        return with_lists_of_its_own(getattr(comm, names[form]), self.arguments, options)

    def problem(self):
        """What is wrong with this rank's memory; empty where nothing is."""
        for number, places in self.free:
            self.wanted[number][places] = self.rooms[number][places]
        for number, (room, wanted) in enumerate(zip(self.rooms, self.wanted)):
            plain = self.call["op"] is not None or self.dtype.char in "gG"  # the padding of long doubles may be anything
            one, other = (room, wanted) if plain else (room.view(np.uint8), wanted.view(np.uint8))
            if not np.array_equal(one, other):
                at = np.flatnonzero(one != other)
                return f"buffer {number}: {at.size} wrong, the first at {at[0]}: {one[at[0]]} for {other[at[0]]}"
        return ""
