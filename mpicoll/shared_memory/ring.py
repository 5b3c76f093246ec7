"""How a rank tells another one of its node where a message lies, and that one that it has read it: rings of words.

Two ranks that send each other messages have pipes in each direction, a ring of a few entries each. A pipe is an order of
messages: blocking calls have one, calls and plans that run beside them a few, chosen by their number. Two calls of one
pipe do not overlap (`track`), so that none waits behind a message of the other that is not yet wanted. Where ranks start
plans in different orders they do: then such a message is kept aside. All words of a pipe lie in the memory of the sender;
the receiver writes only how many messages it has read, so that nothing is ever written to memory that was given back.

Rings are made when a rank first sends to another one. Until then the receiver finds zeros: each process has a word for every
communicator on a wire, which leads to a directory, a word for each rank of the node, which leads to the ring for that rank.
"""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np

from .. import buffers
from .bell import ring
from .heap import HEAP, Block
from .mapping import words_at
from .neighbours import Card, Neighbour, clear

#: pipes: of blocking calls; of calls that do not block; of plans
BLOCKING, TASKS, PLANS = range(0, 1), range(1, 5), range(5, 9)
_PIPES = 9
#: entries of a ring, and its words: published, whether the sender has given up, and read, which has a cache line of its own,
#: then (tag, location, bytes) of each
ENTRIES = 8
PUBLISHED, GIVEN_UP, READ = 0, 1, 8
_AT = tuple(range(16, 16 + 4 * ENTRIES, 4))
_WORDS = _AT[-1] + 4
#: messages in slots that may be unread; bytes of the largest slot, where few ranks and where many share the node
SLOTS = 4
CHUNK, _SMALL_CHUNK, _FEW_RANKS = 512 << 10, 32 << 10, 8
#: bytes of the words for one receiver
_RING_BYTES = _PIPES * _WORDS * 8
#: looks at a word before others get the core: where each rank may have one of its own, and where not
_LOOKS, _FEW_LOOKS = 400, 8
#: so many looks, and MPI may advance what is under way there
_MPI = 32
#: seconds after which a message that nobody has taken is kept aside
_UNWANTED = 5e-3
#: in place of a location: the message comes through MPI, or lies already where the receiver wants it
THROUGH_MPI, WRITTEN = 0, 1
#: in place of the bytes of a message: they are those of memory that the receiver may write to
OPEN = 1 << 62
#: bytes of a word
WORD = 8
#: the words of a pipe on which nothing was sent yet; nothing is written there
_UNSENT = memoryview(bytes(_WORDS * WORD)).cast("Q")


class Slot(NamedTuple):
    """A piece of the heap that what lies elsewhere is copied to."""

    location: int
    array: Any


class Pipe:
    """The sender's end, or the receiver's, of one order of messages between two ranks.

    count: messages published, or read. waiting: those that are not yet published whole. opened: by tag, location and bytes of
    memory that the receiver may write to, in its turn. chunk: bytes of the largest slot. overtakes: whether calls may come in
    another order to the receiver. find: of the receiver, finds the words once the sender has made them.

    A message that nobody wants yet, before one that is awaited, is copied and kept for its call.
    """

    __slots__ = ("words", "count", "waiting", "opened", "pace", "chunk", "overtakes", "_blocks", "_slots", "_is_pushed",
                 "_kept", "_unwanted", "_find")  # fmt: skip

    def __init__(
        self, words: Any, pace: Pace, chunk: int, overtakes: bool, find: Callable[[], Any] | None = None
    ) -> None:
        self.words = words
        self.pace = pace
        self.chunk = chunk
        self.overtakes = overtakes
        self._find = find
        #: by tag: location, or minus the address of the copy, and bytes
        self._kept: defaultdict[int, deque[tuple[int, int, Any]]] = defaultdict(deque)
        self._unwanted: tuple[tuple[int, int], float] = (0, 0), 0.0
        self.count = 0
        self.waiting: deque[Any] = deque()
        self.opened: defaultdict[int, deque[tuple[int, int]]] = defaultdict(deque)
        self._blocks: list[Block] = []
        self._slots: dict[int, list[Slot]] = {}
        self._is_pushed = False

    # The sender's end.

    @property
    def read(self) -> int:
        """How many messages were read."""
        count: int = self.words[READ]
        return count

    @property
    def unread(self) -> int:
        """How many were not."""
        count: int = self.count - self.words[READ]
        return count

    def publish(self, tag: int, location: int, nbytes: int) -> None:
        """Tell the receiver where a message lies; there is room for it."""
        words, at = self.words, _AT[self.count % ENTRIES]
        words[at], words[at + 1], words[at + 2] = tag, location, nbytes
        self.count = words[PUBLISHED] = self.count + 1

    def slots(self, nbytes: int) -> list[Slot]:
        """Memory for messages of so many bytes, in turn: message number n lies in the n-th of them, modulo SLOTS."""
        size = 1 << (nbytes - 1).bit_length()
        if size not in self._slots:
            block = HEAP.acquire(SLOTS * max(size, 128))
            self._blocks.append(block)
            offsets = range(0, block.nbytes, block.nbytes // SLOTS)
            self._slots[size] = [Slot(block.location + at, buffers.at(block.address + at, size, np.uint8)) for at in offsets]
        return self._slots[size]

    def close(self) -> None:
        """Give the slots back; everything was read."""
        while self._blocks:
            HEAP.release(self._blocks.pop())
        self._slots.clear()

    def send(self, message: Any) -> None:
        """Publish a message, now or in its turn: whenever it is asked to advance, until that says that all of it is out."""
        if self.waiting or not message.advance():
            self.waiting.append(message)
            if self not in self.pace.unfinished:
                self.pace.unfinished.append(self)

    def push(self) -> None:
        """Publish what waits, in its order."""
        if self._is_pushed:  # a signal handler waits, and interrupted just this
            return
        self._is_pushed = True
        try:
            while self.waiting and self.waiting[0].advance():
                self.waiting.popleft()
            if len(self.waiting) > 1:
                self._push_other_calls(self.waiting[0].tag)
        finally:
            self._is_pushed = False
        if not self.waiting and self in self.pace.unfinished:
            self.pace.unfinished.remove(self)

    def _push_other_calls(self, tag: int) -> None:
        """Publish what waits behind messages with this tag: the receiver may want it before those."""
        held_up = {tag}
        for message in tuple(self.waiting):
            if message.tag not in held_up:
                if message.advance():
                    self.waiting.remove(message)
                else:
                    held_up.add(message.tag)

    def is_read(self) -> bool:
        """Whether all that was published was read."""
        return not self.waiting and self.unread == 0

    # The receiver's.

    def next(self, tag: int, peer: Neighbour) -> tuple[int, int] | None:
        """Location and bytes of the next message of a call; None where none has come. peer: the sender.

        Where calls run beside each other the next one may be of a call that comes later here.
        """
        if tag in self._kept:
            location, nbytes, _ = self._kept[tag][0]
            return location, nbytes
        words, count = self.words, self.count
        if words[PUBLISHED] <= count:
            return self.next(tag, peer) if words is _UNSENT and self._is_found() else None
        at = _AT[count % ENTRIES]
        other, location, nbytes = words[at], words[at + 1], words[at + 2]
        if nbytes >= OPEN:
            self.opened[other].append((location, nbytes - OPEN))
        elif other == tag:
            return location, nbytes
        elif self._is_not_wanted(other):
            copy = np.array(buffers.at(peer.address(location), nbytes, np.uint8)) if location > WRITTEN else None
            self._kept[other].append((location if copy is None else -buffers.address(copy), nbytes, copy))
        else:
            return None
        self._count_read()
        return self.next(tag, peer)

    def _is_found(self) -> bool:
        """Whether the sender has made the words of this pipe by now."""
        words = self._find() if self._find is not None else None
        if words is None:
            return False
        self.words = words
        return True

    def _is_not_wanted(self, tag: int) -> bool:
        """Whether nobody has taken the next message for so long that others may be behind it that are wanted first."""
        if not self.overtakes:
            return False
        now = perf_counter()
        if self._unwanted[0] != (self.count, tag):
            self._unwanted = (self.count, tag), now
        return now - self._unwanted[1] > _UNWANTED

    def tags(self) -> Iterator[int]:
        """Those of messages that have come and were not taken."""
        yield from (*self._kept, *self.opened)
        if self.words is _UNSENT:
            self._is_found()
        words, count = self.words, self.count
        if words[PUBLISHED] > count:
            yield words[_AT[count % ENTRIES]]

    def opening(self, tag: int, peer: Neighbour) -> tuple[int, int] | None:
        """Location and bytes of the next memory that may be written to; None where none was opened yet. peer: who opens it."""
        if tag not in self.opened:
            self.next(tag, peer)
            if tag not in self.opened:
                return None
        places = self.opened[tag]
        found = places.popleft()
        if not places:
            del self.opened[tag]
        return found

    def acknowledge(self, tag: int) -> None:
        """It was read. Raises where the sender has given up meanwhile, and may have used its memory again."""
        if tag not in self._kept:
            self._count_read()
            return
        self._kept[tag].popleft()
        if not self._kept[tag]:
            del self._kept[tag]

    def _count_read(self) -> None:
        if self.words[GIVEN_UP]:
            self.pace.look(surely=True)
        self.count = self.words[READ] = self.count + 1


def track(kind: range, number: int) -> int:
    """The number of the pipe of a call: those of one track run one after the other. number: among those of its kind."""
    return kind[number % len(kind)]


class Pipes(NamedTuple):
    """The pipes to a rank, or from it, that calls of one kind use. bit: of a tag, at which the number of the call begins."""

    pipes: list[Pipe]
    bit: int

    def of(self, tag: int) -> Pipe:
        """The one of the call with this tag."""
        return self.pipes[(tag >> self.bit) % len(self.pipes)]


class Look(Protocol):
    """Lets MPI move, and raises where another rank has given the communicator up; surely: it has."""

    def __call__(self, surely: bool = False) -> None: ...


class Pace:
    """What a rank does while it waits: a moment of its own for messages half sent, MPI, and other processes.

    unfinished: pipes with messages that are not yet published whole.
    """

    def __init__(self, look: Look, crowded: bool) -> None:
        self.look = look
        self._most = _FEW_LOOKS if crowded else _LOOKS
        self._looks = 0
        self.unfinished: list[Pipe] = []

    def pause(self) -> None:
        """Nothing has come."""
        for pipe in tuple(self.unfinished):
            pipe.push()
        self._looks += 1
        if not self._looks % _MPI:
            self.look()
        if self._looks > self._most:
            os.sched_yield()

    def go(self) -> None:
        """Something has."""
        self._looks = 0


class Peers(dict[int, Neighbour]):
    """The other processes of the node by rank, each looked up when it is first asked for."""

    def __init__(self, cards: dict[int, Card]) -> None:
        super().__init__()
        self._cards = cards

    def __missing__(self, rank: int) -> Neighbour:
        self[rank] = peer = Neighbour.of(self._cards[rank])
        return peer


class Links:
    """The pipes of one communicator's rank to and from the others of its node, made when they are first asked for.

    look: what is done now and then by those who wait. cards: of all ranks of the node, by rank. words: of this process, which
    lead to its rings, of all communicators on the wire; number: of this communicator among these.
    bit: of the tag of a call that is no plan, at which its number begins.

    What two threads, or a signal handler, make at the same time is made by the one whose `setdefault` comes first.
    """

    def __init__(self, look: Look, rank: int, cards: dict[int, Card], words: Block, number: int, bit: int) -> None:
        self._cards = cards
        self._words = words_at(words.address, words.nbytes)
        self._number = number
        self._bit = bit
        self._rank = rank
        self.ranks = [other for other in cards if other != rank]
        self.chunk = CHUNK if len(cards) <= _FEW_RANKS else _SMALL_CHUNK
        crowded = len(cards) > len(os.sched_getaffinity(0))
        self._paces = [Pace(look, crowded) for _ in range(2)]  # the caller's thread's, and of whoever advances tasks
        self.peers = Peers(cards)
        self._places = {other: place for place, other in enumerate(cards)}
        #: by peer and the first pipe of their kind
        self._out: dict[tuple[int, int], Pipes] = {}
        self._in: dict[tuple[int, int], Pipes] = {}
        #: this rank's rings, by the receiver; by its own rank the directory that leads to them
        self._blocks: dict[int, Block] = {}
        #: the words of the rings of others that were found, by the sender
        self._rings: dict[int, Any] = {}

    def pace(self, kind: range) -> Pace:
        """That of calls of one kind."""
        return self._paces[kind is not BLOCKING]

    def to(self, peer: int, kind: range) -> Pipes:
        """The pipes to a rank that calls of one kind use."""
        pipes = self._out.get((peer, kind.start))
        if pipes is None:
            ring = self._ring_to(peer)
            made = [Pipe(_part(ring, pipe), self.pace(kind), self.chunk, kind is not BLOCKING) for pipe in kind]
            pipes = self._out.setdefault((peer, kind.start), self._of_kind(made, kind))
        return pipes

    def from_(self, peer: int, kind: range) -> Pipes:
        """The pipes from a rank."""
        pipes = self._in.get((peer, kind.start))
        if pipes is None:
            made = [
                Pipe(_UNSENT, self.pace(kind), self.chunk, kind is not BLOCKING, partial(self._part_from, peer, pipe))
                for pipe in kind
            ]
            pipes = self._in.setdefault((peer, kind.start), self._of_kind(made, kind))
        return pipes

    def _of_kind(self, pipes: list[Pipe], kind: range) -> Pipes:
        return Pipes(pipes, 0 if kind is PLANS else self._bit)

    # Rings.

    def _ring_to(self, peer: int) -> Any:
        """The words of the ring for a receiver, which is told of it."""
        directory = self._block(self._rank, len(self._cards) * WORD)
        ring = self._block(peer, _RING_BYTES)
        words_at(directory.address, directory.nbytes)[self._places[peer]] = ring.location
        self._words[self._number] = directory.location
        return words_at(ring.address, ring.nbytes)

    def _block(self, owner: int, nbytes: int) -> Block:
        """A block of zeros, the same each time."""
        block = self._blocks.get(owner)
        if block is None:
            made = HEAP.acquire(nbytes)
            clear(made)
            block = self._blocks.setdefault(owner, made)
            if block is not made:
                HEAP.release(made)
        return block

    def _part_from(self, peer: int, pipe: int) -> Any:
        """The words of a pipe from a rank; None where that has made none yet."""
        ring = self._ring_from(peer)
        return None if ring is None else _part(ring, pipe)

    def _ring_from(self, peer: int) -> Any:
        """The words of the ring from a rank; None where that has made none, or has freed the communicator."""
        if peer not in self._rings:
            neighbour = self.peers[peer]
            try:
                (directory,) = neighbour.words(self._cards[peer].rings + self._number * WORD, WORD)
                if not directory:
                    return None
                (ring,) = neighbour.words(directory + self._places[self._rank] * WORD, WORD)
                if not ring:
                    return None
                self._rings[peer] = neighbour.words(ring, _RING_BYTES)
            except OSError:  # it has given up the memory
                return None
        return self._rings[peer]

    # All of them.

    def tags(self) -> Iterator[int]:
        """Those of messages that have come and were not taken."""
        sending = [peer for peer in self.ranks if self._ring_from(peer) is not None]
        for peer, kind in product(sending, (BLOCKING, TASKS, PLANS)):
            for pipe in self.from_(peer, kind).pipes:
                yield from pipe.tags()

    def all_read(self) -> bool:
        """Whether the other ranks have read everything."""
        return all(pipe.is_read() for pipe in self._outward())

    def give_up(self) -> None:
        """Tell whoever reads what this rank has sent that it may have used its memory again."""
        for pipe in self._outward():
            pipe.words[GIVEN_UP] = 1

    def _outward(self) -> Iterator[Pipe]:
        for pipes in list(self._out.values()):  # another thread may make one
            yield from pipes.pipes

    def ring(self) -> None:
        """Wake the watchers of the other ranks, which may be in a call that cannot look around."""
        for other in self.ranks:
            card = self._cards[other]
            ring(card.pid, card.bell, card.bell_file)

    def close(self) -> None:
        """Give rings and slots back; everything was read."""
        for pipe in self._outward():
            pipe.close()
        self._words[self._number] = 0
        while self._blocks:
            HEAP.release(self._blocks.popitem()[1])


def _part(ring: Any, pipe: int) -> Any:
    """The words of one pipe of a ring."""
    return ring[pipe * _WORDS : (pipe + 1) * _WORDS]
