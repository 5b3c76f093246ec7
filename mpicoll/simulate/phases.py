"""What a rank does, phase by phase: round by round, or in pieces that flow through the rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

from ..binding import Decode, Encode, Instruction, Memory, Span, Vector, lowered, ordering
from ..codes import Codes
from ..errors import ScheduleError
from ..schedule import (
    INPUT,
    OUTPUT,
    SENDS,
    Copy,
    Output,
    Part,
    Recv,
    Send,
    is_coded,
    offsets,
    pieces,
)

#: of a cyclic range of blocks: its bytes
Measure = Callable[[Part], int]
Rounds = Iterable[Iterable[Any]]
#: ticks per byte of local work, by the kind of an instruction; of codes: of the elements
Prices = Mapping[type, int]


class Transfer(NamedTuple):
    """One side of a message: kind is `Send` or `Recv`."""

    kind: type[Send] | type[Recv]
    peer: int
    nbytes: int


class Phase(NamedTuple):
    """A step of a rank: it starts transfers, waits for some, then computes."""

    starts: Sequence[Transfer]
    #: transfers to complete, by number: from 0 over all transfers of the rank, with this phase's
    waits: Sequence[int]
    #: ticks of local operations after that
    work: int
    #: rounds with transfers that begin with it
    rounds: int = 1


def measure_of(edges: Sequence[int], itemsize: int, codes: Codes | None) -> Measure:
    """A function that returns the bytes of a cyclic range of blocks, as elements or as codes."""
    if codes is None:
        return _bytes_of_items(edges, itemsize)
    as_elements = _bytes_of_items(edges, itemsize)
    groups = offsets(codes.groups(high - low) for low, high in pairwise(edges))
    as_codes = _bytes_of_items(groups, codes.nbytes)

    def measure(part: Part) -> int:
        return as_codes(part) if is_coded(part) else as_elements(part)

    return measure


def _bytes_of_items(edges: Sequence[int], itemsize: int) -> Measure:
    @cache
    def measure(first: int, count: int) -> int:
        return itemsize * sum(end - start for start, end in pieces(Output(first, count), edges))

    return lambda part: measure(part.first, part.count)


def by_rounds(rank: int, rounds: Rounds, measure: Measure, prices: Prices) -> Iterator[Phase]:
    """Yield a `Phase` for each round, which waits for all its transfers."""
    started = 0
    for operations in _checked(rank, rounds):
        starts: list[Transfer] = []
        work = 0
        for op in operations:
            kind: type = type(op)
            part = op[-1]  # the blocks that are sent, received or changed
            if kind is Copy and is_coded(op.source) != is_coded(part):
                kind = Encode if is_coded(part) else Decode
                part = op.source if is_coded(part) else part
            nbytes = measure(part)
            if kind in prices:
                work += prices[kind] * nbytes
            elif nbytes:
                starts.append(Transfer(Send if kind in SENDS else Recv, op.peer, nbytes))
        yield Phase(starts, range(started, started + len(starts)), work, bool(starts))
        started += len(starts)


def in_pieces(
    rank: int, rounds: Rounds, edges: list[int], itemsize: int, segment_bytes: int,
    prices: Prices, codes: Codes | None,
) -> Iterator[Phase]:  # fmt: skip
    """Yield the phases of the same rounds with messages of at most `segment_bytes`.

    They have the order in which a call in pieces runs them (`binding.ordering`).
    """
    all_operations = list(filter(None, map(tuple, _checked(rank, rounds))))
    space = _AddressSpace()
    vectors = {name: Vector(space.vector(edges[-1], itemsize)) for name in (INPUT, OUTPUT)}
    dtype = _RawType(f"V{itemsize}")
    memory = Memory(all_operations, edges, vectors, dtype, space.acquire, segment_bytes, codes)
    instructions = [
        list(lowered(operations, memory, _VirtualArray.span)) for operations in all_operations
    ]
    round_of = {id(piece): number for number, of_round in enumerate(instructions)
                for piece in of_round}  # fmt: skip
    begun: set[int] = set()
    numbers: dict[int, int] = {}
    for step in ordering.by_pieces(instructions):
        before = len(begun)
        starts = []
        for piece in step.starts:
            assert piece.peer is not None
            begun.add(round_of[id(piece)])
            numbers[id(piece)] = len(numbers)
            starts.append(Transfer(Send if piece.is_sent else Recv, piece.peer, piece.nbytes))
        waits = [numbers[id(piece)] for piece in step.waits]
        work = sum(prices[piece.kind] * _elements(piece) for piece in step.local)
        yield Phase(starts, waits, work, len(begun) - before)


def _elements(piece: Instruction) -> int:
    """The bytes of elements that local work reads or writes."""
    [(start, end)] = piece.reads if piece.kind is Encode else piece.writes
    return end - start


def _checked(rank: int, rounds: Rounds) -> Iterator[Iterable[Any]]:
    try:
        yield from rounds
    except (Exception, SystemExit) as error:  # a user's generator may raise anything
        raise ScheduleError(f"the generator of rank {rank} fails: {error!r}") from error


class _RawType(str):
    """A type of items without a meaning, as NumPy names it: "V4" has 4 bytes."""

    @property
    def itemsize(self) -> int:
        """Bytes of an item."""
        return int(self[1:])


@dataclass(frozen=True)
class _VirtualArray:
    """An array that has addresses and no memory."""

    start: int
    count: int
    itemsize: int

    def __getitem__(self, items: slice) -> _VirtualArray:
        low, high, _ = items.indices(self.count)
        return _VirtualArray(self.start + low * self.itemsize, high - low, self.itemsize)

    def view(self, dtype: str) -> _VirtualArray:
        """The same bytes as items of another type."""
        itemsize = int(dtype[1:])
        return _VirtualArray(self.start, self.count * self.itemsize // itemsize, itemsize)

    def span(self) -> Span:
        """Where it lies."""
        return self.start, self.start + self.count * self.itemsize


class _AddressSpace:
    """Addresses for arrays, one behind the other."""

    def __init__(self) -> None:
        self._top = 0

    def vector(self, count: int, itemsize: int) -> _VirtualArray:
        """An array of so many items."""
        start = self._top
        self._top += count * itemsize
        return _VirtualArray(start, count, itemsize)

    def acquire(self, nbytes: int) -> _VirtualArray:
        """An array of bytes."""
        return self.vector(nbytes, 1)
