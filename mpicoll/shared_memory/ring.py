"""Pipes between ranks of a node: the sender publishes locations, the receiver counts its reads.

Two ranks that exchange messages have pipes in each direction, each of which orders its messages in
a circular buffer of a few entries. Blocking calls have one pipe; non-blocking calls and plans have
several, chosen by their number. Two calls of one pipe do not overlap (`track`), so that no call
waits behind a message of another call. Only where ranks start plans in different orders they do:
then the receiver sets a message of the later call aside.

All words of a pipe lie in memory of the sender; the receiver writes only its count, so that nothing
is ever written to memory that was released. The words of all pipes to one receiver are a ring. A
rank creates a ring when it first sends to the receiver, which finds zeros until then: each process
has a word for every communicator on a wire, which leads to a directory, which has a word for each
rank of the node, which leads to the ring for that rank.
"""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from itertools import product
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np
from mpi4py import MPI

from .. import buffers
from ..errors import SharedMemoryError
from ..support.node import processors
from .bell import ring
from .heap import HEAP, HeapBlock
from .mapping import words_at
from .neighbours import Card, Neighbour, clear

#: numbers of pipes: of blocking calls
BLOCKING = range(0, 1)
#: of non-blocking calls
TASKS = range(1, 5)
#: of plans
PLANS = range(5, 9)
_PIPES = 9
#: messages that may be unread
ENTRIES = 8
#: messages in slots that may be unread
SLOTS = 4

# The words of a pipe, by cache lines.
#: 1 if the sender has given the communicator up
GIVEN_UP = 0
#: the receiver's count
READ = 8
#: the sender's count, which no other process reads
PUBLISHED = 16
#: words of an entry: its number, written last, from 1 on; tag, location, bytes; then room for the
#: smallest messages
_ENTRY = 8
_ROOM = 4
#: the first word of each
_AT = tuple(range(24, 24 + _ENTRY * ENTRIES, _ENTRY))
_WORDS = _AT[-1] + _ENTRY
#: bytes of a word
WORD = 8
#: bytes of the words of a pipe, and of those for one receiver
_PIPE_BYTES = _WORDS * WORD
_RING_BYTES = _PIPES * _PIPE_BYTES
#: the words of a pipe before its first message; read-only
_UNSENT = memoryview(bytes(_PIPE_BYTES)).cast("Q")

#: in place of a location: the message comes through MPI
THROUGH_MPI = 0
#: in place of a location: the sender has copied the message into the receiver's memory
WRITTEN = 1
#: in place of a location: of a message that was set aside, this rank has a copy
COPIED = 2
#: added to the bytes: no message, but memory that the receiver of the entry may write to
OPEN = 1 << 62

#: bytes of a message for which there is room in its entry
_SMALL = (_ENTRY - _ROOM) * WORD
#: bytes of the largest slot
CHUNK = 512 << 10
#: the same on nodes with more than `_FEW_RANKS` ranks
_SMALL_CHUNK = 32 << 10
_FEW_RANKS = 8
#: polls before a rank yields its core
_POLLS = 400
#: the same where ranks outnumber cores
_FEW_POLLS = 8
#: polls between two calls of MPI for progress
_MPI = 32
#: seconds after which a message that no call takes is set aside
_UNWANTED = 5e-3


class Slot(NamedTuple):
    """A piece of the heap for copies of messages that are not in shared memory."""

    location: int
    address: int
    array: Any


class Pipe:
    """The sender's or the receiver's end of one order of messages between two ranks.

    The receiver copies a message that no call takes, and sets it aside for its call: it may be in
    front of a message that another call waits for.
    """

    __slots__ = (
        "words", "location", "waiting", "opened", "backoff", "chunk", "overtakes", "_blocks",
        "_slots", "_is_pushed", "_kept", "_unwanted", "_find",
    )  # fmt: skip

    def __init__(
        self,
        words: Any,
        backoff: Backoff,
        chunk: int,
        overtakes: bool,
        find: Callable[[], Any] | None = None,
        location: int = 0,
    ) -> None:
        self.words = words
        #: of the words, at the sender
        self.location = location
        self.backoff = backoff
        #: bytes of the largest slot
        self.chunk = chunk
        #: whether the receiver may start calls in another order
        self.overtakes = overtakes

        #: of the sender: messages that are not yet completely published
        self.waiting: deque[Any] = deque()
        self._is_pushed = False
        self._blocks: list[HeapBlock] = []
        #: by their bytes
        self._slots: dict[int, list[Slot]] = {}

        #: of the receiver: finds the words once the sender has created them
        self._find = find
        #: by tag, location and bytes of memory that this rank may write to
        self.opened: defaultdict[int, deque[tuple[int, int]]] = defaultdict(deque)
        #: by tag, messages set aside: location, or minus the address of the copy; bytes; the copy
        self._kept: defaultdict[int, deque[tuple[int, int, Any]]] = defaultdict(deque)
        #: count and tag of the next message while no call takes it, and since when
        self._unwanted: tuple[tuple[int, int], float] = (0, 0), 0.0

    @property
    def words_at(self) -> int:
        """The address of its words, or 0 before they are found."""
        return MPI.Get_address(self.words) if self.is_found else 0

    @property
    def is_found(self) -> bool:
        """Whether the sender has created its words."""
        return self.words is not _UNSENT or self._finds()

    # The sender's end.

    @property
    def read(self) -> int:
        """Messages that the receiver has read."""
        count: int = self.words[READ]
        return count

    @property
    def published(self) -> int:
        """Messages that were published."""
        count: int = self.words[PUBLISHED]
        return count

    @property
    def unread(self) -> int:
        """Messages that the receiver has not read."""
        words = self.words
        count: int = words[PUBLISHED] - words[READ]
        return count

    def publish(self, tag: int, location: int, nbytes: int) -> None:
        """Publish an entry; the caller has checked that there is room for it."""
        words = self.words
        count = words[PUBLISHED]
        at = _AT[count % ENTRIES]
        words[at + 1] = tag
        words[at + 2] = location
        words[at + 3] = nbytes
        words[at] = words[PUBLISHED] = count + 1

    def slots(self, nbytes: int, itemsize: int = 1) -> list[Slot]:
        """Memory for pieces of this size: piece number n uses slot n modulo their number.

        Where memory to share has run out, the slots are smaller: an entry has room for the
        smallest. itemsize: they are not smaller than that.
        """
        size = max(_SMALL, 1 << (nbytes - 1).bit_length())
        if size not in self._slots:
            try:
                self._slots[size] = list(self._new_slots(size))
            except SharedMemoryError:
                if size // 2 < itemsize:
                    raise
                self._slots[size] = self.slots(size // 2, itemsize)
        return self._slots[size]

    def _new_slots(self, size: int) -> Iterator[Slot]:
        if size == _SMALL:  # with its entry it is one cache line
            offsets = [(at + _ROOM) * WORD for at in _AT]
            memory, location = self.words_at, self.location
        else:
            block = HEAP.acquire(SLOTS * max(size, 128))
            self._blocks.append(block)
            offsets = list(range(0, block.nbytes, block.nbytes // SLOTS))
            memory, location = block.address, block.location
        for offset in offsets:
            address = memory + offset
            yield Slot(location + offset, address, buffers.at(address, size, np.uint8))

    def close(self) -> None:
        """Release the slots; everything was read."""
        while self._blocks:
            HEAP.release(self._blocks.pop())
        self._slots.clear()

    def send(self, message: Any) -> None:
        """Publish a message, now or in its turn: calls its `advance` until that returns True."""
        if self.waiting or not message.advance():
            self.waiting.append(message)
            if self not in self.backoff.unfinished:
                self.backoff.unfinished.append(self)

    def push(self) -> None:
        """Publish waiting messages, in their order."""
        if self._is_pushed:  # a signal handler has interrupted this method
            return
        self._is_pushed = True
        try:
            while self.waiting and self.waiting[0].advance():
                self.waiting.popleft()
            if len(self.waiting) > 1:
                self._push_other_calls(self.waiting[0].tag)
        finally:
            self._is_pushed = False
        if not self.waiting and self in self.backoff.unfinished:
            self.backoff.unfinished.remove(self)

    def _push_other_calls(self, tag: int) -> None:
        """Publish messages behind those with this tag: the receiver may take them earlier."""
        blocked = {tag}
        for message in tuple(self.waiting):
            if message.tag not in blocked:
                if message.advance():
                    self.waiting.remove(message)
                else:
                    blocked.add(message.tag)

    def is_read(self) -> bool:
        """Whether the receiver has read all messages."""
        return not self.waiting and self.unread == 0

    # The receiver's end.

    def next(self, tag: int, peer: Neighbour) -> tuple[int, int] | None:
        """Location and bytes of the next message of a call from `peer`, or None.

        The next message of the pipe may belong to a concurrent call that this rank starts later.
        """
        if tag in self._kept:
            location, nbytes, _ = self._kept[tag][0]
            return location, nbytes
        words = self.words
        count = words[READ]
        at = _AT[count % ENTRIES]
        if words[at] != count + 1:
            return self.next(tag, peer) if words is _UNSENT and self._finds() else None
        other, location, nbytes = words[at + 1], words[at + 2], words[at + 3]
        if nbytes >= OPEN:
            self.opened[other].append((location, nbytes - OPEN))
            self.backoff.aside += 1
        elif other == tag:
            return location, nbytes
        elif self._is_not_wanted(other):
            copy = None
            if location > WRITTEN:
                copy = np.array(buffers.at(peer.address(location), nbytes, np.uint8))
                location = -buffers.address(copy)
            self._kept[other].append((location, nbytes, copy))
            self.backoff.aside += 1
        else:
            return None
        self._count_read()
        return self.next(tag, peer)

    def _finds(self) -> bool:
        """Whether the sender has created the words of this pipe by now."""
        words = self._find() if self._find is not None else None
        if words is None:
            return False
        self.words = words
        return True

    def _is_not_wanted(self, tag: int) -> bool:
        """Whether no call has taken the next message for long: it may block another call."""
        if not self.overtakes:
            return False
        now = perf_counter()
        count = self.words[READ]
        if self._unwanted[0] != (count, tag):
            self._unwanted = (count, tag), now
        return now - self._unwanted[1] > _UNWANTED

    def tags(self) -> Iterator[int]:
        """The tags of messages that no call has taken."""
        yield from (*self._kept, *self.opened)
        if self.words is _UNSENT:
            self._finds()
        words = self.words
        count = words[READ]
        at = _AT[count % ENTRIES]
        if words[at] == count + 1:
            yield words[at + 1]

    def opening(self, tag: int, peer: Neighbour) -> tuple[int, int] | None:
        """Location and bytes of the next memory that `peer` lets this rank write to, or None."""
        if tag not in self.opened:
            self.next(tag, peer)
            if tag not in self.opened:
                return None
        places = self.opened[tag]
        place = places.popleft()
        self.backoff.aside -= 1
        if not places:
            del self.opened[tag]
        return place

    def take_aside(self, tag: int) -> list[Any]:
        """The messages of a call that were set aside.

        Location, or minus the address of the copy; bytes; the copy.
        """
        taken = list(self._kept.pop(tag, ()))
        self.backoff.aside -= len(taken)
        return taken

    def put_aside(self, tag: int, messages: list[Any]) -> None:
        """Give back the last of them, which are for a later call."""
        self._kept[tag].extendleft(reversed(messages))
        self.backoff.aside += len(messages)

    def acknowledge(self, tag: int) -> None:
        """Count the next message as read.

        Raises where the sender has given up: it may have changed its memory before the read.
        """
        if tag not in self._kept:
            self._count_read()
            return
        self._kept[tag].popleft()
        self.backoff.aside -= 1
        if not self._kept[tag]:
            del self._kept[tag]

    def _count_read(self) -> None:
        if self.words[GIVEN_UP]:
            self.backoff.look(surely=True)
        self.words[READ] += 1


def track(kind: range, number: int) -> int:
    """The pipe of call `number` of a kind; the calls of one track run one after the other."""
    return kind[number % len(kind)]


class Pipes(NamedTuple):
    """The pipes to or from a rank for calls of one kind."""

    pipes: list[Pipe]
    #: the lowest bit of the number of a call in its tag
    bit: int

    def of(self, tag: int) -> Pipe:
        """The pipe of the call with this tag."""
        return self.pipes[(tag >> self.bit) % len(self.pipes)]


class Look(Protocol):
    """Lets MPI progress, and raises where another rank has given the communicator up.

    surely: a rank has.
    """

    def __call__(self, surely: bool = False) -> None: ...


class Backoff:
    """What a rank does between polls: progress of unfinished messages and MPI, then yields."""

    def __init__(self, look: Look, crowded: bool) -> None:
        self.look = look
        self._most = _FEW_POLLS if crowded else _POLLS
        self._polls = 0
        #: pipes with messages that are not yet completely published
        self.unfinished: list[Pipe] = []
        #: messages, and memory to write to, that pipes have set aside for calls that come later
        self.aside = 0

    def pause(self) -> None:
        """After a poll without success."""
        for pipe in tuple(self.unfinished):
            pipe.push()
        self._polls += 1
        if not self._polls % _MPI:
            self.look()
        if self._polls > self._most:
            os.sched_yield()

    def reset(self) -> None:
        """At the end of a wait."""
        self._polls = 0


class Peers(dict[int, Neighbour]):
    """The other processes of the node by rank, each looked up at its first use."""

    def __init__(self, cards: dict[int, Card]) -> None:
        super().__init__()
        self._cards = cards

    def __missing__(self, rank: int) -> Neighbour:
        self[rank] = peer = Neighbour.of(self._cards[rank])
        return peer


class Links:
    """The pipes between this rank and the other ranks of its node, of one communicator.

    They are created at their first use. Two threads, or a thread and a signal handler, may create
    the same pipes at the same time: the first `setdefault` counts.

    Parameters
    ----------
    look : Look
        Called from time to time by ranks that wait.
    rank : int
        Of this process.
    cards : dict
        The cards of all ranks of the node, by rank.
    words : HeapBlock
        The words of this process that lead to its rings, for all communicators on the wire.
    number : int
        Of this communicator among these.
    bit : int
        The lowest bit of a call's number in its tag, except for plans.
    """

    def __init__(
        self,
        look: Look,
        rank: int,
        cards: dict[int, Card],
        words: HeapBlock,
        number: int,
        bit: int,
    ) -> None:
        self._rank = rank
        self._cards = cards
        self._words = words_at(words.address, words.nbytes)
        self._number = number
        self._bit = bit
        #: the other ranks of the node
        self.ranks = [other for other in cards if other != rank]
        self.peers = Peers(cards)
        self.chunk = CHUNK if len(cards) <= _FEW_RANKS else _SMALL_CHUNK
        self.look = look
        #: by peer and the first pipe of a kind
        self._out: dict[tuple[int, int], Pipes] = {}
        self._in: dict[tuple[int, int], Pipes] = {}
        #: this rank's rings, by receiver, and, by its own rank, its directory
        self._blocks: dict[int, HeapBlock] = {}
        #: the words of rings of other ranks, by sender
        self._rings: dict[int, Any] = {}

    # Made at their first use: many a communicator sends no message.

    @cached_property
    def _places(self) -> dict[int, int]:
        """The words of ranks in a directory."""
        return {other: place for place, other in enumerate(self._cards)}

    @cached_property
    def _backoffs(self) -> tuple[Backoff, Backoff]:
        """Of blocking calls, and of the thread that advances tasks."""
        return Backoff(self.look, self.is_crowded), Backoff(self.look, self.is_crowded)

    @cached_property
    def is_crowded(self) -> bool:
        """Whether ranks outnumber cores."""
        return len(self._cards) > len(processors())

    def backoff(self, kind: range) -> Backoff:
        """The backoff of calls of one kind."""
        return self._backoffs[kind is not BLOCKING]

    def to(self, peer: int, kind: range) -> Pipes:
        """The pipes to a rank for calls of one kind."""
        pipes = self._out.get((peer, kind.start))
        if pipes is None:
            ring = self._ring_to(peer)
            words = words_at(ring.address, ring.nbytes)
            locations = [ring.location + number * _PIPE_BYTES for number in kind]
            new = [
                self._pipe(kind, _part(words, number), location=location)
                for number, location in zip(kind, locations)
            ]
            pipes = self._out.setdefault((peer, kind.start), self._of_kind(new, kind))
        return pipes

    def from_(self, peer: int, kind: range) -> Pipes:
        """The pipes from a rank for calls of one kind."""
        pipes = self._in.get((peer, kind.start))
        if pipes is None:
            finders = [partial(self._part_from, peer, number) for number in kind]
            new = [self._pipe(kind, _UNSENT, find=find) for find in finders]
            pipes = self._in.setdefault((peer, kind.start), self._of_kind(new, kind))
        return pipes

    def _pipe(self, kind: range, words: Any, **end: Any) -> Pipe:
        return Pipe(words, self.backoff(kind), self.chunk, kind is not BLOCKING, **end)

    def _of_kind(self, pipes: list[Pipe], kind: range) -> Pipes:
        return Pipes(pipes, 0 if kind is PLANS else self._bit)

    # Rings.

    def _ring_to(self, peer: int) -> HeapBlock:
        """The ring for a receiver, entered in the directory."""
        directory = self._block(self._rank, len(self._cards) * WORD)
        ring = self._block(peer, _RING_BYTES)
        words_at(directory.address, directory.nbytes)[self._places[peer]] = ring.location
        self._words[self._number] = directory.location
        return ring

    def _block(self, owner: int, nbytes: int) -> HeapBlock:
        """The block of an owner, at first zeros."""
        block = self._blocks.get(owner)
        if block is None:
            new = HEAP.acquire(nbytes)
            clear(new)
            block = self._blocks.setdefault(owner, new)
            if block is not new:
                HEAP.release(new)
        return block

    def _part_from(self, peer: int, pipe: int) -> Any:
        """The words of a pipe from a rank, or None before the rank has created them."""
        ring = self._ring_from(peer)
        return None if ring is None else _part(ring, pipe)

    def _ring_from(self, peer: int) -> Any:
        """The words of the ring from a rank.

        None before the rank has created it, and after the rank has freed the communicator.
        """
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
            except SharedMemoryError:
                raise
            except OSError:  # the rank has released the memory
                return None
        return self._rings[peer]

    # All pipes.

    def tags(self) -> Iterator[int]:
        """The tags of messages that no call has taken."""
        sending = [peer for peer in self.ranks if self._ring_from(peer) is not None]
        for peer, kind in product(sending, (BLOCKING, TASKS, PLANS)):
            for pipe in self.from_(peer, kind).pipes:
                yield from pipe.tags()

    def all_read(self) -> bool:
        """Whether the other ranks have read everything."""
        return all(pipe.is_read() for pipe in self._outward())

    def give_up(self) -> None:
        """Tell all receivers that this rank may change the memory of messages from now on."""
        for pipe in self._outward():
            pipe.words[GIVEN_UP] = 1

    def _outward(self) -> Iterator[Pipe]:
        for pipes in list(self._out.values()):  # another thread may add pipes
            yield from pipes.pipes

    def ring(self) -> None:
        """Wake the watchers of the other ranks, whose main threads may be in a blocking call."""
        for other in self.ranks:
            card = self._cards[other]
            ring(card.pid, card.bell, card.bell_file)

    def close(self) -> None:
        """Release rings and slots; everything was read."""
        for pipe in self._outward():
            pipe.close()
        self._words[self._number] = 0
        while self._blocks:
            HEAP.release(self._blocks.popitem()[1])


def _part(ring: Any, pipe: int) -> Any:
    """The words of one pipe of a ring."""
    return ring[pipe * _WORDS : (pipe + 1) * _WORDS]
