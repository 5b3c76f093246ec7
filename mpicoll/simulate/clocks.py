"""The simulator: all ranks of a schedule on clocks, at sizes that no test machine has, without MPI and without data.

Every rank goes through its rounds on its own clock and has one full-duplex port: what it sends passes through it one
message after the other, and so does what it receives. A message of n bytes occupies the ports of both its ranks for
alpha + n / bandwidth seconds. It begins when the sender has reached the round that sends it, the receiver the round that
receives it, and the ports are free; of several that could begin, the one that was ready first does. A round is over when
its messages and then its local operations are. A `Send` is one message even where its blocks wrap around the end of
the vector; one of no bytes is none.
"""

from collections import defaultdict, deque
from functools import cache
from heapq import heappop, heappush
from statistics import median
from typing import NamedTuple

from .. import collectives
from ..errors import ArgumentError, ScheduleError
from ..schedule import Copy, Output, Reduce, Send, bounds, pieces

#: Seconds. Clocks count whole ticks, so that sums are exact, and what should happen at the same time does.
TICK = 1e-24


def _ticks(seconds):
    return round(seconds / TICK)


class Transfer(NamedTuple):
    """One side of a message: kind is `Send` or `Recv`."""

    kind: type
    peer: int
    nbytes: int


class Step(NamedTuple):
    """What a rank does before it goes on: start transfers, wait for some, then compute.

    waits: numbers of transfers that must be through, counted from 0 over all that this rank has started so far, this
    step's included. work: ticks of local operations once they are.
    """

    starts: list
    waits: object
    work: int


class Prediction(NamedTuple):
    """seconds: until the last rank is done. rounds: of the rank that takes part in most. messages: of all ranks."""

    seconds: float
    rounds: int
    messages: int


def predict(algorithm, size, nbytes, network, *, root=0, segments=1, nodes=None, itemsize=1):
    """The `Prediction` for an `algorithms.Algorithm` on a vector of `nbytes` bytes at `size` ranks.

    segments: of pipelined algorithms. nodes: the node of each rank, where the algorithm is to know them, say
    `network.nodes(size)`. itemsize: the vector is cut between elements of this many bytes. Raises ScheduleError where
    ranks wait for ever or do not agree on their messages; ArgumentError for bad arguments. Cost: some 10 to 20
    microseconds for each round and each transfer of each rank, and about as much for what a long generator computes.
    """
    if size < 1 or not 0 <= root < size or nbytes < 0 or segments < 1 or itemsize < 1:
        raise ArgumentError(f"expected ranks, segments and itemsize above 0, a root below size, bytes: got size {size}, "
                            f"segments {segments}, itemsize {itemsize}, root {root}, {nbytes} bytes")  # fmt: skip
    network.check(size)
    blocks = algorithm.vector_blocks(size, segments, nodes)
    measure = _measure(bounds(nbytes // itemsize, blocks), itemsize)
    price = {Reduce: _ticks(network.gamma), Copy: _ticks(network.copying)}
    programs = _programs(algorithm, size, root, blocks, nodes)
    clocks = Clocks([_by_rounds(rank, program, measure, price) for rank, program in enumerate(programs)], network)
    ticks = clocks.play()
    return Prediction(ticks * TICK, max(rank.rounds for rank in clocks.ranks), clocks.messages)


def estimate_work(algorithm, size, *, root=0, segments=1, nodes=None):
    """About how many rounds and transfers all ranks have together, which is what `predict` takes its time for.

    A few ranks are asked, and their median stands for all.
    """
    programs = _programs(algorithm, size, root, algorithm.vector_blocks(size, segments, nodes), nodes)
    counts = [
        sum(1 + len(step.starts) for step in _by_rounds(rank, program, lambda first, count: 1, {Reduce: 0, Copy: 0}))
        for rank, program in list(enumerate(programs))[:: max(1, size // 5)]
    ]
    return round(median(counts) * size)


def _programs(algorithm, size, root, blocks, nodes):
    """The rounds of every rank, as iterators."""
    collective, generator = collectives.find(algorithm.collective), algorithm.placed(nodes)
    return [collective.program(generator, rank, size, root, blocks) for rank in range(size)]


def _measure(edges, itemsize):
    """A function that gives the bytes of a cyclic range of blocks, from its first and its count."""
    return cache(lambda first, count: itemsize * sum(end - start for start, end in pieces(Output(first, count), edges)))


def _by_rounds(rank, program, measure, price):
    """Yield a `Step` for each round: all that it starts, it waits for. price: ticks per byte of local operations."""
    started = 0
    try:
        for operations in program:
            starts, work = [], 0
            for op in operations:
                kind, (_, first, count) = type(op), op[-1]  # the last field: the blocks that leave, arrive or change
                nbytes = measure(first, count)
                if kind in price:
                    work += price[kind] * nbytes
                elif nbytes:
                    starts.append(Transfer(kind, op.peer, nbytes))
            yield Step(starts, range(started, started + len(starts)), work)
            started += len(starts)
    except Exception as error:  # whatever a user's generator raises
        raise ScheduleError(f"the generator of rank {rank} fails: {error!r}") from error


class _Rank:
    """Where one rank is in its program."""

    def __init__(self, number, steps):
        self.number, self.steps = number, iter(steps)
        self.step = Step((), (), 0)  # the one it is in; None after the last
        self.entered = self.rounds = 0  # steps so far, and those of them that start something
        self.time = 0  # when it entered the step, or when the last that it waits for is through, as far as known
        self.ends = []  # when each transfer it has started is through; None where that is not known yet
        self.missing = 0  # how many of those it waits for are not known yet

    def enter_next(self):
        """Compute, then enter the next step; None at the end."""
        self.time += self.step.work
        self.step = next(self.steps, None)
        if self.step:
            self.entered += 1
            self.rounds += bool(self.step.starts)
        return self.step

    def wait(self):
        """Wait for what the step waits for, as far as it is known when that is through."""
        for number in self.step.waits:
            end = self.ends[number]
            if end is None:
                self.missing += 1
            elif end > self.time:
                self.time = end

    def note(self, number, end):
        """Note when a transfer is through; whether the rank can go on by it."""
        self.ends[number] = end
        if not self.missing or number not in self.step.waits:
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

    sides: tuple
    ticks: int
    ports: list


class Clocks:
    """All ranks on their clocks. programs: for each rank an iterable of `Step`s, read as time goes on."""

    def __init__(self, programs, network):
        self.network = network
        self.ranks = [_Rank(number, steps) for number, steps in enumerate(programs)]
        self.channels = defaultdict(deque)  # (source, target): the sides that wait for their partner
        self.free = defaultdict(int)  # port: from when on it is free
        self.agenda = []  # a heap: when a message may begin, since when it is ready, its number, itself
        self.messages = 0

    def play(self):
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

    def _advance(self, rank):
        """Enter steps until one waits for a message of which it is not known yet when it is through."""
        while not rank.missing and rank.enter_next():
            for kind, peer, nbytes in rank.step.starts:
                self._post(rank, (rank.number, peer) if kind is Send else (peer, rank.number), nbytes)
            rank.wait()

    def _post(self, rank, channel, nbytes):
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

    def _transfer(self, message, end):
        """The message occupies its ports until `end`; a rank that waited for nothing else goes on then."""
        for port in message.ports:
            self.free[port] = end
        for side in message.sides:
            if side.rank.note(side.number, end):
                self._advance(side.rank)

    def _check_end(self):
        stuck = [rank for rank in self.ranks if rank.step]
        if stuck:
            raise ScheduleError("deadlock: " + "; ".join(map(_waiting, stuck[:8])))
        for (source, target), waiting in self.channels.items():
            if waiting:
                raise ScheduleError(f"a message from rank {source} to rank {target} is never matched")


def _waiting(rank):
    wants = [f"{'send to' if kind is Send else 'receive from'} {peer}" for kind, peer, _ in rank.step.starts]
    return f"rank {rank.number} waits in round {rank.entered - 1} ({', '.join(wants)})"
