"""The pass that adds copies between host and device: for device vectors that MPI must not read.

A *twin* is memory with a copy on the host, which messages use, and a copy on the device. Every
piece uses one of the two. Where it reads what is up to date only in the other, an instruction
copies that before it; where the result is wanted on the device, one copies it after the last piece
that wrote it. So nothing is copied twice, or without need.

This module knows neither MPI nor CuPy.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, count, groupby
from typing import NamedTuple

from .program import Fetch, Instruction, Put, Span


class Twin(NamedTuple):
    """Memory with a copy on the host and a copy on the device."""

    #: addresses of the copies
    host: int
    device: int
    nbytes: int
    #: whether what is written must be on the device in the end
    wanted: bool

    def on_host(self, address: int) -> bool:
        """Whether this is an address in its copy on the host."""
        return self.host <= address < self.host + self.nbytes

    def on_device(self, address: int) -> bool:
        """Whether this is an address in its copy on the device."""
        return self.device <= address < self.device + self.nbytes

    def holds(self, span: Span) -> bool:
        """Whether these bytes, of which there is at least one, are in one of its copies."""
        return span[1] > span[0] and (self.on_host(span[0]) or self.on_device(span[0]))


class _Stretch:
    """Memory of a twin that every piece uses as a whole."""

    def __init__(self) -> None:
        #: where it is up to date
        self.on_host = False
        self.on_device = True
        #: the number of the piece that wrote it last
        self.writer = -1


class _Stretches:
    """A twin in stretches; they end wherever some piece's memory does."""

    def __init__(self, twin: Twin, spans: Sequence[Span]) -> None:
        self.twin = twin
        offsets = (self.offset(edge, start) for start, end in spans for edge in (start, end))
        self.edges = sorted({0, twin.nbytes, *offsets})
        self.index = {edge: number for number, edge in enumerate(self.edges)}
        self.stretches = [_Stretch() for _ in self.edges[1:]]

    def offset(self, edge: int, start: int) -> int:
        """How far into the twin an edge of a span that starts at `start` is."""
        return edge - (self.twin.host if self.twin.on_host(start) else self.twin.device)

    def of(self, span: Span) -> range:
        """The numbers of the stretches of a span."""
        return range(*(self.index[self.offset(edge, span[0])] for edge in span))

    def copy(self, kind: type, first: int, last: int) -> Instruction:
        """The piece that copies stretches, from `first` up to and with `last`."""
        low, high = self.edges[first], self.edges[last + 1]
        host, device = ((start + low, start + high) for start in (self.twin.host, self.twin.device))
        source, target = (device, host) if kind is Fetch else (host, device)
        return Instruction(kind, None, (source,), (target,))


def with_copies(
    rounds: Sequence[list[Instruction]], twins: Sequence[Twin]
) -> list[list[Instruction]]:
    """The rounds, with the copies that they need, each beside the piece that needs it."""
    if not any(twin.nbytes for twin in twins):
        return list(rounds)
    pieces = list(chain.from_iterable(rounds))
    spans = [span for piece in pieces for span in piece.reads + piece.writes]
    tables = [_Stretches(twin, list(filter(twin.holds, spans))) for twin in twins if twin.nbytes]
    before: dict[int, list[Instruction]] = defaultdict(list)
    for number, piece in enumerate(pieces):
        for span in piece.reads:
            before[number] += _brought(tables, span)
        for span in piece.writes:
            _written(tables, span, number)
    after = _results(tables)
    numbers = count()
    copied = []
    for instructions in rounds:
        pieces_beside = [_beside(next(numbers), piece, before, after) for piece in instructions]
        copied.append(list(chain.from_iterable(pieces_beside)))
    return copied


def _table(tables: Sequence[_Stretches], span: Span) -> _Stretches | None:
    return next((table for table in tables if table.twin.holds(span)), None)


def _brought(tables: Sequence[_Stretches], span: Span) -> Iterator[Instruction]:
    """Copies of what is not up to date where a piece reads it."""
    table = _table(tables, span)
    if table is None:
        return
    here, kind = ("on_host", Fetch) if table.twin.on_host(span[0]) else ("on_device", Put)
    stale = [number for number in table.of(span) if not getattr(table.stretches[number], here)]
    for first, last in _runs(stale):
        yield table.copy(kind, first, last)
    for number in stale:
        setattr(table.stretches[number], here, True)


def _written(tables: Sequence[_Stretches], span: Span, number: int) -> None:
    table = _table(tables, span)
    if table is not None:
        on_host = table.twin.on_host(span[0])
        for stretch in (table.stretches[place] for place in table.of(span)):
            stretch.on_host = on_host
            stretch.on_device = not on_host
            stretch.writer = number


def _results(tables: Sequence[_Stretches]) -> dict[int, list[Instruction]]:
    """Copies of results to the device, by the number of the piece that wrote them."""
    after: dict[int, list[Instruction]] = defaultdict(list)
    for table in tables:
        missing = [
            number
            for number, stretch in enumerate(table.stretches)
            if table.twin.wanted and not stretch.on_device
        ]
        for writer, numbers in groupby(missing, key=lambda number: table.stretches[number].writer):
            after[writer] += [table.copy(Put, *run) for run in _runs(list(numbers))]
    return after


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(first, last) of each run of consecutive numbers."""
    for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        yield members[0], members[-1]


def _beside(
    number: int,
    piece: Instruction,
    before: dict[int, list[Instruction]],
    after: dict[int, list[Instruction]],
) -> list[Instruction]:
    return [*before.get(number, ()), piece, *after.get(number, ())]
