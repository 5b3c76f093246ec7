"""The simulator: all ranks of a schedule on clocks, at sizes that no test machine has, without MPI and without data.

Every rank goes through its rounds on its own clock and has one full-duplex port: what it sends passes through it one
message after the other, and so does what it receives. A message of n bytes occupies the ports of both its ranks for
alpha + n / bandwidth seconds. It begins when the sender has reached the round that sends it, the receiver the round that
receives it, and the ports are free; of several that could begin, the one that was ready first does. A round is over when
its messages and then its local operations are. A `Send` is one message even where its blocks wrap around the end of
the vector; one of no bytes is none.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cache
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from .. import collectives
from ..errors import ArgumentError, ScheduleError
from ..schedule import SENDS, Copy, Operation, Output, Recv, Reduce, Send, bounds, deadlock, pieces, unmatched

if TYPE_CHECKING:
    from ..algorithms import Algorithm
    from .network import Network

    Measure = Callable[[int, int], int]
    Channel = tuple[int, int]  # source, target

#: Seconds. Clocks count whole ticks, so that sums are exact, and what should happen at the same time does.
TICK = 1e-24
#: ranks that an estimate asks
_ASKED = 12


def _ticks(seconds: float) -> int:
    return round(seconds / TICK)


class Transfer(NamedTuple):
    """One side of a message: kind is `Send` or `Recv`."""

    kind: type[Send] | type[Recv]
    peer: int
    nbytes: int


class Phase(NamedTuple):
    """What a rank does before it goes on: start transfers, wait for some, then compute.

    waits: numbers of transfers that must be through, counted from 0 over all that this rank has started so far, this
    phase's included. work: ticks of local operations once they are.
    """

    starts: Sequence[Transfer]
    waits: Sequence[int]
    work: int


class Prediction(NamedTuple):
    """What a schedule takes: seconds until the last rank is done, rounds of the rank that has most, messages of all."""

    seconds: float
    rounds: int
    messages: int


def predict(
    algorithm: Algorithm, size: int, nbytes: int, network: Network, *, root: int = 0, segments: int = 1,
    nodes: tuple[int, ...] | None = None, itemsize: int = 1,
) -> Prediction:
    """How long an algorithm takes.

    Parameters
    ----------
    algorithm : algorithms.Algorithm
        As of `algorithms.find`.
    size, nbytes : int
        Ranks, and bytes of the whole vector.
    network : Network
        What the ranks are connected by.
    root, segments : int
        Of rooted collectives, and of pipelined algorithms.
    nodes : tuple of int, optional
        The node of each rank, where the algorithm is to know them: `network.nodes(size)`, say.
    itemsize : int
        The vector is cut between elements of this many bytes.

    Raises
    ------
    ScheduleError
        Ranks wait for ever, or do not agree on their messages.
    ArgumentError
        An argument is out of range.

    Cost
    ----
    Some 10 to 20 microseconds for each round and each transfer of each rank, and about as much for a long generator.
    """
    if size < 1 or not 0 <= root < size or nbytes < 0 or segments < 1 or itemsize < 1:
        raise ArgumentError(f"expected ranks, segments and itemsize above 0, a root below size, bytes: got size {size}, "
                            f"segments {segments}, itemsize {itemsize}, root {root}, {nbytes} bytes")  # fmt: skip
    network.check(size)
    blocks = algorithm.vector_blocks(size, segments, nodes)
    elements = nbytes // itemsize
    if collectives.find(algorithm.collective).personal:  # a number says where a block lies: all have one size
        elements = -(-elements // blocks) * blocks
    measure = _measure(bounds(elements, blocks), itemsize)
    price: dict[type, int] = {Reduce: _ticks(network.gamma), Copy: _ticks(network.copying)}
    programs = _programs(algorithm, size, root, blocks, nodes, range(size))
    clocks = Clocks([_by_rounds(rank, program, measure, price) for rank, program in enumerate(programs)], network)
    ticks = clocks.play()
    return Prediction(ticks * TICK, max(rank.rounds for rank in clocks.ranks), clocks.messages)


def estimate_work(
    algorithm: Algorithm, size: int, *, root: int = 0, segments: int = 1, nodes: tuple[int, ...] | None = None
) -> int:
    """About how many rounds and transfers all ranks have together, which is what `predict` takes its time for.

    A few ranks are asked, and the upper quartile stands for all: in some algorithms up to half of the ranks do nothing but
    hand over and get back. They are chosen as if by chance, the same ones each time: ranks with the same work may be at
    regular places.
    """
    blocks = algorithm.vector_blocks(size, segments, nodes)
    asked = sorted({crc32(b"%d %d" % (number, size)) * size >> 32 for number in range(_ASKED)})
    counts = sorted(
        sum(1 + len(phase.starts) for phase in _by_rounds(rank, program, lambda first, count: 1, {Reduce: 0, Copy: 0}))
        for rank, program in zip(asked, _programs(algorithm, size, root, blocks, nodes, asked))
    )
    return counts[3 * len(counts) // 4] * size


def _programs(
    algorithm: Algorithm, size: int, root: int, blocks: int, nodes: tuple[int, ...] | None, ranks: Iterable[int]
) -> list[Iterator[tuple[Operation, ...]]]:
    """The rounds of these ranks, as iterators."""
    collective, generator = collectives.find(algorithm.collective), algorithm.placed(nodes)
    return [collective.program(generator, rank, size, root, blocks) for rank in ranks]


def _measure(edges: Sequence[int], itemsize: int) -> Measure:
    """A function that gives the bytes of a cyclic range of blocks, from its first and its count."""
    return cache(lambda first, count: itemsize * sum(end - start for start, end in pieces(Output(first, count), edges)))


def _by_rounds(
    rank: int, program: Iterable[Sequence[Any]], measure: Measure, price: dict[type, int]
) -> Iterator[Phase]:
    """Yield a `Phase` for each round: all that it starts, it waits for. price: ticks per byte of local operations."""
    started = 0
    try:
        for operations in program:
            starts: list[Transfer] = []
            work = 0
            for op in operations:
                kind, (_, first, count) = type(op), op[-1]  # the last field: the blocks that leave, arrive or change
                nbytes = measure(first, count)
                if kind in price:
                    work += price[kind] * nbytes
                elif nbytes:
                    starts.append(Transfer(Send if kind in SENDS else Recv, op.peer, nbytes))
            yield Phase(starts, range(started, started + len(starts)), work)
            started += len(starts)
    except Exception as error:  # whatever a user's generator raises
        raise ScheduleError(f"the generator of rank {rank} fails: {error!r}") from error


class _Rank:
    """Where one rank is in its program."""

    def __init__(self, number: int, phases: Iterable[Phase]) -> None:
        self.number, self.phases = number, iter(phases)
        self.phase: Any = Phase((), (), 0)  # the one it is in; None after the last
        self.entered = self.rounds = 0  # phases so far, and those of them that start something
        self.time = 0  # when it entered the phase, or when the last that it waits for is through, as far as known
        self.ends: list[int | None] = []  # when each transfer it has started is through; None where that is not known yet
        self.missing = 0  # how many of those it waits for are not known yet

    def enter_next(self) -> bool:
        """Compute, then enter the next phase; False at the end."""
        self.time += self.phase.work
        self.phase = next(self.phases, None)
        if self.phase:
            self.entered += 1
            self.rounds += bool(self.phase.starts)
        return self.phase is not None

    def wait(self) -> None:
        """Wait for what the phase waits for, as far as it is known when that is through."""
        for number in self.phase.waits:
            end = self.ends[number]
            if end is None:
                self.missing += 1
            elif end > self.time:
                self.time = end

    def note(self, number: int, end: int) -> bool:
        """Note when a transfer is through; whether the rank can go on by it."""
        self.ends[number] = end
        if not self.missing or number not in self.phase.waits:
            return False
        self.time = max(self.time, end)
        self.missing -= 1
        return not self.missing


class _Side(NamedTuple):
    """One rank's part in a message: its number there, its bytes, and when the rank was ready for it."""

    rank: _Rank
    number: int
    nbytes: int
    ready: int


class _Message(NamedTuple):
    """A message both ranks are ready for: it occupies the ports for so many ticks."""

    sides: tuple[_Side, _Side]
    ticks: int
    ports: list[Hashable]


class Clocks:
    """All ranks on their clocks. programs: for each rank an iterable of `Phase`s, read as time goes on."""

    def __init__(self, programs: Iterable[Iterable[Phase]], network: Network) -> None:
        self.network = network
        self.ranks = [_Rank(number, phases) for number, phases in enumerate(programs)]
        self.channels: defaultdict[Channel, deque[_Side]] = defaultdict(deque)  # the sides that wait for their partner
        self.free: defaultdict[Hashable, int] = defaultdict(int)  # port: from when on it is free
        # a heap: when a message may begin, since when it is ready, its number, itself
        self.agenda: list[tuple[int, int, int, _Message]] = []
        self.messages = 0

    def play(self) -> int:
        """Run to the end; return the ticks until the last rank is done. ScheduleError where a rank waits for ever."""
        for rank in self.ranks:
            self._advance(rank)
        while self.agenda:
            start, ready, number, message = heappop(self.agenda)
            free = max([self.free[port] for port in message.ports])
            if free > start:  # others came first: try again when they are through
                heappush(self.agenda, (free, ready, number, message))
            else:
                self._transfer(message, start + message.ticks)
        self._check_end()
        return max(rank.time for rank in self.ranks)

    def _advance(self, rank: _Rank) -> None:
        """Enter phases until one waits for a message of which it is not known yet when it is through."""
        while not rank.missing and rank.enter_next():
            for kind, peer, nbytes in rank.phase.starts:
                self._post(rank, (rank.number, peer) if kind is Send else (peer, rank.number), nbytes)
            rank.wait()

    def _post(self, rank: _Rank, channel: Channel, nbytes: int) -> None:
        """A rank is ready to send or receive; where its partner is too, the message may begin."""
        side = _Side(rank, len(rank.ends), nbytes, rank.time)
        rank.ends.append(None)
        waiting = self.channels[channel]
        if not waiting or waiting[0].rank is rank:
            waiting.append(side)
            return
        other = waiting.popleft()
        if other.nbytes != nbytes:
            raise ScheduleError(f"ranks {channel[0]} and {channel[1]} disagree about a message: one means {other.nbytes} "
                                f"bytes, the other {nbytes}")  # fmt: skip
        alpha, bandwidth, ports = self.network.path(*channel)
        ready = max(side.ready, other.ready)
        message = _Message((side, other), _ticks(alpha) + nbytes * _ticks(1 / bandwidth), ports)
        heappush(self.agenda, (ready, ready, self.messages, message))
        self.messages += 1

    def _transfer(self, message: _Message, end: int) -> None:
        """The message occupies its ports until `end`; a rank that waited for nothing else goes on then."""
        for port in message.ports:
            self.free[port] = end
        for side in message.sides:
            if side.rank.note(side.number, end):
                self._advance(side.rank)

    def _check_end(self) -> None:
        stuck = [(rank, rank.phase) for rank in self.ranks if rank.phase]
        if stuck:
            raise ScheduleError(deadlock((rank.number, rank.entered - 1, map(_want, phase.starts)) for rank, phase in stuck))
        if left := unmatched(self.channels):
            raise ScheduleError(left)


def _want(transfer: Transfer) -> str:
    return f"{'send to' if transfer.kind is Send else 'receive from'} {transfer.peer}"
