"""The simulator: all ranks of a schedule on clocks, at any size, without MPI and without data.

Every rank goes through its rounds on its own clock and has one full-duplex port, which passes one
outgoing and one incoming message at a time. A message of n bytes occupies the ports of both its
ranks for alpha + n / bandwidth seconds. It begins when the sender has reached the round that sends
it, the receiver the round that receives it, and the ports are free; of several ready messages the
first begins. A round ends after its messages and then its local operations. A `Send` is one message
even where its blocks wrap around the end of the vector; a `Send` of no bytes is no message.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cache
from heapq import heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from .. import collectives
from ..codes import ITEMSIZE, Codes
from ..errors import ArgumentError, ScheduleError
from ..schedule import (
    SENDS,
    Copy,
    Operation,
    Output,
    Part,
    Recv,
    Reduce,
    Send,
    bounds,
    deadlock,
    is_coded,
    offsets,
    pieces,
    unmatched,
)

if TYPE_CHECKING:
    from ..algorithms import Algorithm
    from ..graphs import GraphGenerator, Neighborhood
    from .network import Network

    Measure = Callable[[Part], int]
    Channel = tuple[int, int]  # source, target

#: seconds; clocks count whole ticks, so that sums are exact and simultaneous events have one time
TICK = 1e-24
#: ranks of a sample
_SAMPLE = 12


def _ticks(seconds: float) -> int:
    return round(seconds / TICK)


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


class Prediction(NamedTuple):
    """The predicted cost of a schedule."""

    #: until the last rank ends
    seconds: float
    #: the maximum over ranks
    rounds: int
    #: of all ranks
    messages: int


def predict(
    algorithm: Algorithm,
    size: int,
    nbytes: int,
    network: Network,
    *,
    root: int = 0,
    segments: int = 1,
    nodes: tuple[int, ...] | None = None,
    itemsize: int = 1,
    codes: Codes | None = None,
) -> Prediction:
    """Predict the time of an algorithm.

    Parameters
    ----------
    algorithm : algorithms.Algorithm
        As of `algorithms.find`.
    size, nbytes : int
        Ranks, and bytes of the whole vector.
    network : Network
        The links between ranks.
    root, segments : int
        Of rooted collectives, and of pipelined algorithms.
    nodes : tuple of int, optional
        The node of each rank, for algorithms that use it; for example `network.nodes(size)`.
    itemsize : int
        The vector is cut between elements of this many bytes.
    codes : codes.Codes, optional
        What messages have in the place of float32 elements, for a `compressible` algorithm.

    Raises
    ------
    ScheduleError
        Ranks wait for ever, or do not agree on their messages.
    ArgumentError
        An argument is out of range.

    Cost
    ----
    10 to 20 microseconds for each round and each transfer of each rank, and about as much again for
    a long generator.
    """
    if size < 1 or not 0 <= root < size or nbytes < 0 or segments < 1 or itemsize < 1:
        raise ArgumentError(
            "expected ranks, segments and itemsize above 0, a root below size, bytes: "
            f"got size {size}, segments {segments}, itemsize {itemsize}, root {root}, "
            f"{nbytes} bytes"
        )
    network.check(size)
    blocks = algorithm.vector_blocks(size, segments, nodes)
    itemsize = ITEMSIZE if codes else itemsize
    elements = nbytes // itemsize
    collective = collectives.find(algorithm.collective)
    if collective.personal:  # blocks have equal sizes
        elements = -(-elements // blocks) * blocks
    edges = bounds(elements, blocks)
    if codes and not collective.blocks_of_ranks:
        edges = codes.edges(elements, blocks)
    measure = _measure(edges, itemsize, codes)
    programs = _programs(algorithm, size, root, blocks, nodes, range(size), codes is not None)
    return _run(programs, measure, network)


def predict_on_graph(
    meaning: Neighborhood,
    generator: GraphGenerator,
    nbytes: int,
    network: Network,
    nodes: Sequence[int] | None = None,
) -> Prediction:
    """Predict the time of a neighbourhood collective.

    Parameters
    ----------
    meaning : graphs.Neighborhood
        Of a graph: ``graphs.ALLTOALL.on(graph)``.
    generator : callable
        generator(rank, meaning, nodes) yields the rounds of a rank.
    nbytes : int
        Bytes of each block.
    network : Network
        The links between ranks.
    nodes : sequence of int, optional
        The node of each rank; default: each has its own.

    Raises
    ------
    ScheduleError, ArgumentError
        As `predict`.
    """
    size = meaning.graph.size
    network.check(size)
    nodes = range(size) if nodes is None else nodes
    programs = [generator(rank, meaning, nodes) for rank in range(size)]
    return _run(programs, lambda part: part.count * nbytes, network)


def _run(
    programs: Iterable[Iterable[Iterable[Any]]], measure: Measure, network: Network
) -> Prediction:
    """Run all ranks to their ends."""
    price: dict[type, int] = {
        Reduce: _ticks(network.gamma),
        Copy: _ticks(network.copying),
        Codes: _ticks(network.coding),
    }
    phases = [_by_rounds(rank, program, measure, price) for rank, program in enumerate(programs)]
    clocks = Clocks(phases, network)
    ticks = clocks.play()
    return Prediction(ticks * TICK, max(rank.rounds for rank in clocks.ranks), clocks.messages)


def estimate_work(
    algorithm: Algorithm,
    size: int,
    *,
    root: int = 0,
    segments: int = 1,
    nodes: tuple[int, ...] | None = None,
    compressed: bool = False,
) -> int:
    """The approximate number of rounds and transfers of all ranks, to which time is proportional.

    The upper quartile of a sample of ranks stands for all ranks: in some algorithms up to half of
    the ranks only send at the start and receive at the end. The sample is pseudo-random, the same
    at each call, as ranks with equal work may be at regular distances.
    """
    blocks = algorithm.vector_blocks(size, segments, nodes)
    sample = sorted({crc32(b"%d %d" % (number, size)) * size >> 32 for number in range(_SAMPLE)})
    counts = []
    programs = _programs(algorithm, size, root, blocks, nodes, sample, compressed)
    for rank, program in zip(sample, programs):
        phases = _by_rounds(rank, program, lambda part: 1, {Reduce: 0, Copy: 0, Codes: 0})
        counts.append(sum(1 + len(phase.starts) for phase in phases))
    counts.sort()
    return counts[3 * len(counts) // 4] * size


def _programs(
    algorithm: Algorithm,
    size: int,
    root: int,
    blocks: int,
    nodes: tuple[int, ...] | None,
    ranks: Iterable[int],
    compressed: bool,
) -> list[Iterator[tuple[Operation, ...]]]:
    """The rounds of these ranks, as iterators."""
    program = collectives.find(algorithm.collective).program
    generator = algorithm.placed(nodes, compressed)
    return [program(generator, rank, size, root, blocks) for rank in ranks]


def _measure(edges: Sequence[int], itemsize: int, codes: Codes | None) -> Measure:
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


def _by_rounds(
    rank: int, program: Iterable[Iterable[Any]], measure: Measure, price: dict[type, int]
) -> Iterator[Phase]:
    """Yield a `Phase` for each round, which waits for all its transfers.

    price: ticks per byte of local operations; of `Codes`: of elements that are coded or decoded.
    """
    started = 0
    try:
        for operations in program:
            starts: list[Transfer] = []
            work = 0
            for op in operations:
                kind = type(op)
                part = op[-1]  # the blocks that are sent, received or changed
                if kind is Copy and is_coded(op.source) != is_coded(part):
                    kind = Codes
                    part = op.source if is_coded(part) else part
                nbytes = measure(part)
                if kind in price:
                    work += price[kind] * nbytes
                elif nbytes:
                    starts.append(Transfer(Send if kind in SENDS else Recv, op.peer, nbytes))
            yield Phase(starts, range(started, started + len(starts)), work)
            started += len(starts)
    except Exception as error:  # a user's generator may raise anything
        raise ScheduleError(f"the generator of rank {rank} fails: {error!r}") from error


class _Rank:
    """The position of one rank in its program."""

    def __init__(self, number: int, phases: Iterable[Phase]) -> None:
        self.number = number
        self.phases = iter(phases)
        #: the current phase; None after the last
        self.phase: Any = Phase((), (), 0)
        #: phases so far
        self.entered = 0
        #: phases so far with transfers
        self.rounds = 0
        #: begin of the phase, or the latest known end of a transfer that it waits for
        self.time = 0
        #: the end of each transfer; None: not known yet
        self.ends: list[int | None] = []
        #: the number of transfers that it waits for, with unknown end
        self.missing = 0

    def enter_next(self) -> bool:
        """Compute, then enter the next phase; False after the last."""
        self.time += self.phase.work
        self.phase = next(self.phases, None)
        if self.phase:
            self.entered += 1
            self.rounds += bool(self.phase.starts)
        return self.phase is not None

    def wait(self) -> None:
        """Wait for the phase's transfers with known ends; count the others."""
        for number in self.phase.waits:
            end = self.ends[number]
            if end is None:
                self.missing += 1
            elif end > self.time:
                self.time = end

    def note(self, number: int, end: int) -> bool:
        """Record the end of a transfer; whether the rank waits for no other."""
        self.ends[number] = end
        if not self.missing or number not in self.phase.waits:
            return False
        self.time = max(self.time, end)
        self.missing -= 1
        return not self.missing


class _Side(NamedTuple):
    """One rank's side of a message."""

    rank: _Rank
    #: of the transfer, in its rank
    number: int
    nbytes: int
    #: the time from which the rank is ready
    ready: int


class _Message(NamedTuple):
    """A message that both ranks are ready for."""

    sides: tuple[_Side, _Side]
    #: for which it occupies the ports
    ticks: int
    ports: list[Hashable]


class Clocks:
    """All ranks on their clocks. programs: an iterable of `Phase`s for each rank, read lazily."""

    def __init__(self, programs: Iterable[Iterable[Phase]], network: Network) -> None:
        self.network = network
        self.ranks = [_Rank(number, phases) for number, phases in enumerate(programs)]
        #: sides that wait for their partner
        self.channels: defaultdict[Channel, deque[_Side]] = defaultdict(deque)
        #: by port, the time from which it is free
        self.free: defaultdict[Hashable, int] = defaultdict(int)
        #: a heap: the earliest begin of a message, the time from which it is ready, its number
        self.agenda: list[tuple[int, int, int, _Message]] = []
        #: messages so far
        self.messages = 0

    def play(self) -> int:
        """Run to the end of the last rank; returns its ticks. ScheduleError at a deadlock."""
        for rank in self.ranks:
            self._advance(rank)
        while self.agenda:
            start, ready, number, message = heappop(self.agenda)
            free = max([self.free[port] for port in message.ports])
            if free > start:  # a port is in use: again when it is free
                heappush(self.agenda, (free, ready, number, message))
            else:
                self._transfer(message, start + message.ticks)
        self._check_end()
        return max(rank.time for rank in self.ranks)

    def _advance(self, rank: _Rank) -> None:
        """Enter phases until one waits for a message with unknown end."""
        while not rank.missing and rank.enter_next():
            for kind, peer, nbytes in rank.phase.starts:
                channel = (rank.number, peer) if kind is Send else (peer, rank.number)
                self._post(rank, channel, nbytes)
            rank.wait()

    def _post(self, rank: _Rank, channel: Channel, nbytes: int) -> None:
        """Post one side of a message; with the other side posted, it may begin."""
        side = _Side(rank, len(rank.ends), nbytes, rank.time)
        rank.ends.append(None)
        waiting = self.channels[channel]
        if not waiting or waiting[0].rank is rank:
            waiting.append(side)
            return
        other = waiting.popleft()
        if other.nbytes != nbytes:
            source, target = channel
            raise ScheduleError(
                f"ranks {source} and {target} disagree about a message: "
                f"one means {other.nbytes} bytes, the other {nbytes}"
            )
        alpha, bandwidth, ports = self.network.path(*channel)
        ready = max(side.ready, other.ready)
        message = _Message((side, other), _ticks(alpha) + nbytes * _ticks(1 / bandwidth), ports)
        heappush(self.agenda, (ready, ready, self.messages, message))
        self.messages += 1

    def _transfer(self, message: _Message, end: int) -> None:
        """Occupy the message's ports until `end`; advance ranks that wait for no other message."""
        for port in message.ports:
            self.free[port] = end
        for side in message.sides:
            if side.rank.note(side.number, end):
                self._advance(side.rank)

    def _check_end(self) -> None:
        stuck = [
            (rank.number, rank.entered - 1, map(_want, rank.phase.starts))
            for rank in self.ranks
            if rank.phase
        ]
        if stuck:
            raise ScheduleError(deadlock(stuck))
        if left := unmatched(self.channels):
            raise ScheduleError(left)


def _want(transfer: Transfer) -> str:
    return f"{'send to' if transfer.kind is Send else 'receive from'} {transfer.peer}"
