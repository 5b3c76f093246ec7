"""The simulator: all ranks of a schedule on clocks, at any size, without MPI and without data.

Every rank goes through its rounds on its own clock and has one full-duplex port, which passes one
outgoing and one incoming message at a time. A message of n bytes occupies the ports of both its
ranks for alpha + n / bandwidth seconds. It begins when the sender has reached the round that sends
it, the receiver the round that receives it, unless the message is short enough to be sent before
(`Network.eager`), and the ports are free; of several ready messages the first begins, of equals
each sender's in turn. A round ends after its messages and then its local operations. A `Send` is
one message even where its blocks wrap around the end of the vector; a `Send` of no bytes is no
message. With `segment_bytes` messages are cut, and their pieces flow through the rounds as in such
a call.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from .. import collectives
from ..binding import Decode, Encode
from ..codes import ITEMSIZE, Codes
from ..errors import ArgumentError, ScheduleError
from ..schedule import (
    Copy,
    Operation,
    Part,
    Reduce,
    Send,
    bounds,
    deadlock,
    segment_count,
    unmatched,
)
from .phases import Measure, Phase, Prices, Transfer, by_rounds, in_pieces, measure_of

if TYPE_CHECKING:
    from ..algorithms import Algorithm
    from ..graphs import GraphGenerator, Neighborhood
    from .network import Network

    Channel = tuple[int, int]  # source, target

#: seconds; clocks count whole ticks, so that sums are exact and simultaneous events have one time
TICK = 1e-24
#: ranks of a sample
_SAMPLE = 12
#: the prices of work that takes no time
_FREE: Prices = dict.fromkeys((Reduce, Copy, Encode, Decode), 0)


def _ticks(seconds: float) -> int:
    return round(seconds / TICK)


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
    segment_bytes: int | None = None,
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
    segment_bytes : int, optional
        As of a call: a pipelined algorithm has as many segments as that takes, and messages are cut
        into pieces of at most this many bytes where the algorithm is `cuttable`. 0 or None: whole
        messages.
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
    a long generator; 50 for each piece of a message.
    """
    if size < 1 or not 0 <= root < size or nbytes < 0 or segments < 1 or itemsize < 1:
        raise ArgumentError(
            "expected ranks, segments and itemsize above 0, a root below size, bytes: "
            f"got size {size}, segments {segments}, itemsize {itemsize}, root {root}, "
            f"{nbytes} bytes"
        )
    network.check(size)
    if segment_bytes:
        segments = segment_count(nbytes, segment_bytes)
    blocks = algorithm.vector_blocks(size, segments, nodes)
    itemsize = ITEMSIZE if codes else itemsize
    edges = _edges(algorithm, blocks, nbytes // itemsize, codes)
    programs = _programs(algorithm, size, root, blocks, nodes, range(size), codes is not None)
    if segment_bytes and algorithm.cuttable:
        prices = _prices(network)
        return _run(
            (in_pieces(rank, program, edges, itemsize, segment_bytes, prices, codes)
             for rank, program in enumerate(programs)), network)  # fmt: skip
    return _run_by_rounds(programs, measure_of(edges, itemsize, codes), network)


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
    return _run_by_rounds(programs, lambda part: part.count * nbytes, network)


def _prices(network: Network) -> Prices:
    coding = _ticks(network.coding)
    reducing, copying = _ticks(network.gamma), _ticks(network.copying)
    return {Reduce: reducing, Copy: copying, Encode: coding, Decode: coding}


def _run_by_rounds(
    programs: Iterable[Iterable[Iterable[Any]]], measure: Measure, network: Network
) -> Prediction:
    prices = _prices(network)
    return _run(
        (by_rounds(rank, program, measure, prices) for rank, program in enumerate(programs)),
        network)  # fmt: skip


def _run(phases: Iterable[Iterable[Phase]], network: Network) -> Prediction:
    """Run all ranks to their ends."""
    clocks = Clocks(phases, network)
    ticks = clocks.play()
    return Prediction(ticks * TICK, max(rank.rounds for rank in clocks.ranks), clocks.messages)


def _edges(algorithm: Algorithm, blocks: int, elements: int, codes: Codes | None) -> list[int]:
    """Where the blocks of a vector begin and end."""
    collective = collectives.find(algorithm.collective)
    if collective.personal:  # blocks have equal sizes
        elements = -(-elements // blocks) * blocks
    if codes and not collective.blocks_of_ranks:
        return codes.edges(elements, blocks)
    return bounds(elements, blocks)


def estimate_work(
    algorithm: Algorithm,
    size: int,
    nbytes: int = 0,
    *,
    segments: int = 1,
    segment_bytes: int | None = None,
    nodes: tuple[int, ...] | None = None,
    compressed: bool = False,
) -> int:
    """The approximate number of rounds and transfers of all ranks, to which time is proportional.

    nbytes: of the vector; it matters where messages are cut.

    The upper quartile of a sample of ranks stands for all ranks: in some algorithms up to half of
    the ranks only send at the start and receive at the end. The sample is pseudo-random, the same
    at each call, as ranks with equal work may be at regular distances.
    """
    if segment_bytes:
        segments = segment_count(nbytes, segment_bytes)
    blocks = algorithm.vector_blocks(size, segments, nodes)
    sample = sorted({crc32(b"%d %d" % (number, size)) * size >> 32 for number in range(_SAMPLE)})
    counts = []
    measure = measure_of(_edges(algorithm, blocks, nbytes, None), 1, None)
    most_bytes = segment_bytes if algorithm.cuttable else None

    def messages(part: Part) -> int:
        return segment_count(measure(part), most_bytes)

    programs = _programs(algorithm, size, 0, blocks, nodes, sample, compressed)
    for rank, program in zip(sample, programs):
        phases = by_rounds(rank, program, messages, _FREE)
        counts.append(sum(1 + sum(count for *_, count in phase.starts) for phase in phases))
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


class _Rank:
    """The position of one rank in its program."""

    def __init__(self, number: int, phases: Iterable[Phase]) -> None:
        self.number = number
        self.phases = iter(phases)
        #: the current phase; None after the last
        self.phase: Any = Phase((), (), 0)
        #: phases so far
        self.entered = 0
        #: rounds so far with transfers
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
            self.rounds += self.phase.rounds
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


@dataclass
class _Message:
    """A message that its sender has posted."""

    #: for which it occupies the ports
    ticks: int
    ports: list[Hashable]
    #: its number from this rank to that one
    turn: int
    #: whether it begins before its receiver is there
    eager: bool
    #: the sender's, and the receiver's when that is posted
    sides: list[_Side]
    #: its end; None: not known yet
    end: int | None = None


class Clocks:
    """All ranks on their clocks. programs: an iterable of `Phase`s for each rank, read lazily."""

    def __init__(self, programs: Iterable[Iterable[Phase]], network: Network) -> None:
        self.network = network
        self.ranks = [_Rank(number, phases) for number, phases in enumerate(programs)]
        #: messages without a receiver yet, or sides of receivers without a message
        self.channels: defaultdict[Channel, deque[_Side | _Message]] = defaultdict(deque)
        #: by port, the time from which it is free
        self.free: defaultdict[Hashable, int] = defaultdict(int)
        #: a heap: the earliest begin of a message, the time from which it is ready, its turn, its
        #: number: of messages that are ready together each pair of ranks has one in turn
        self.agenda: list[tuple[int, int, int, int, _Message]] = []
        #: messages so far
        self.messages = 0
        #: messages so far from one rank to another
        self.turns: defaultdict[Channel, int] = defaultdict(int)

    def play(self) -> int:
        """Run to the end of the last rank; returns its ticks. ScheduleError at a deadlock."""
        for rank in self.ranks:
            self._advance(rank)
        while self.agenda:
            start, ready, turn, number, message = heappop(self.agenda)
            free = max([self.free[port] for port in message.ports])
            if free > start:  # a port is in use: again when it is free
                heappush(self.agenda, (free, ready, turn, number, message))
            else:
                self._transfer(message, start + message.ticks)
        self._check_end()
        return max(rank.time for rank in self.ranks)

    def _advance(self, rank: _Rank) -> None:
        """Enter phases until one waits for a message with unknown end."""
        while not rank.missing and rank.enter_next():
            for kind, peer, nbytes in rank.phase.starts:
                side = _Side(rank, len(rank.ends), nbytes, rank.time)
                rank.ends.append(None)
                if kind is Send:
                    self._post_send(side, (rank.number, peer))
                else:
                    self._post_receive(side, (peer, rank.number))
            rank.wait()

    def _post_send(self, side: _Side, channel: Channel) -> None:
        """Post the sender's side; the message may begin if it is eager or the receiver is there."""
        waiting = self.channels[channel]
        message = self._message(side, channel)
        if waiting and isinstance(other := waiting[0], _Side):
            waiting.popleft()
            _check_sizes(other.nbytes, side.nbytes, channel)
            message.sides.append(other)
            ready = side.ready if message.eager else max(side.ready, other.ready)
            self._plan(message, ready)
        else:
            waiting.append(message)
            if message.eager:
                self._plan(message, side.ready)

    def _post_receive(self, side: _Side, channel: Channel) -> None:
        """Post the receiver's side, of a message that may have arrived."""
        waiting = self.channels[channel]
        if not waiting or isinstance(message := waiting[0], _Side):
            waiting.append(side)
            return
        waiting.popleft()
        _check_sizes(message.sides[0].nbytes, side.nbytes, channel)
        if message.end is not None:
            side.rank.ends[side.number] = message.end
            return
        message.sides.append(side)
        if not message.eager:
            self._plan(message, max(side.ready, message.sides[0].ready))

    def _message(self, side: _Side, channel: Channel) -> _Message:
        alpha, bandwidth, ports = self.network.path(*channel)
        ticks = _ticks(alpha) + side.nbytes * _ticks(1 / bandwidth)
        self.turns[channel] += 1
        eager = side.nbytes <= self.network.eager
        return _Message(ticks, ports, self.turns[channel], eager, [side])

    def _plan(self, message: _Message, ready: int) -> None:
        heappush(self.agenda, (ready, ready, message.turn, self.messages, message))
        self.messages += 1

    def _transfer(self, message: _Message, end: int) -> None:
        """Occupy the message's ports until `end`; advance ranks that wait for no other message."""
        message.end = end
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


def _check_sizes(one: int, other: int, channel: Channel) -> None:
    if one != other:
        source, target = channel
        raise ScheduleError(
            f"ranks {source} and {target} disagree about a message: "
            f"one means {one} bytes, the other {other}"
        )


def _want(transfer: Transfer) -> str:
    return f"{'send to' if transfer.kind is Send else 'receive from'} {transfer.peer}"
