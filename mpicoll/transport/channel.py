"""Private communicators for messages, and the tags that tell the messages of one call from others.

A `Wire` is a duplicate that the user never sees, made when a communicator is wrapped. A
communicator made from another one shares its wire if it has all ranks of that wire, otherwise the
wire of another such part: MPI grants a few thousand contexts at most. Each communicator has a
`Channel` on its wire: a range of tags, laid out as

    channel | kind of message (2 bits) | number of the call | fingerprint of all calls up to it

so that no call receives a message of another call, whatever a faulty program does: the number
differs if a rank has left out a call, the fingerprint if ranks make different calls, or made some
before. Both are cut to the bits that MPI has. Where a message goes through shared memory, its tag
has the rest of the fingerprint, or of a plan's number, too. A message with the number of a call
that began here with another fingerprint shows that the ranks diverged (`accounts`).
"""

from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from operator import eq
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from ..errors import MpicollError
from ..failure import ABANDONED, cancelled, owning, still_under_way, survivable
from ..shared_memory import NOBODY, WORD, Neighbours, meet
from ..support.node import ranks_of_node
from ..support.turn import FOR_EVER, Turn

#: kinds of messages: of single calls, of persistent plans, of comparing calls, between watchers
CALL, PLAN, COMPARE, WATCH = range(4)
#: numbers of messages between watchers: a rank gives the communicator up; a rank lists its calls
NOTICE, ACCOUNT = 3, 4
#: seconds that the notices of a rank have to leave it
_LEAVING = 0.05
#: the bits of a tag that MPI gets
_FOR_MPI = (1 << 32) - 1
#: bits of a channel's tags, where MPI grants more than that
_CHANNEL_BITS = 24


def tag_bits() -> int:
    """How many bits of a tag may be used; MPI grants at least 15."""
    limit = int(MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 32767)
    return (limit + 1).bit_length() - 1


def _most_channels() -> int:
    """How many channels a wire has."""
    return 1 << max(0, tag_bits() - _CHANNEL_BITS)


def words_of_wire() -> int:
    """Bytes of the words by which processes find each other's rings: one for each channel."""
    return _most_channels() * WORD


def random_name() -> int:
    """What a wire may be called, as a number: the largest that any rank says."""
    return int.from_bytes(os.urandom(3), "big")


def name_of(number: int) -> str:
    """The name of a wire."""
    return f"{number:06x}"


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except MPI.Exception as error:
        raise MpicollError(
            f"MPI cannot make the private communicator that schedules need ({error}): "
            "free communicators that are no longer used"
        ) from error


class Wire:
    """A private duplicate of a communicator, on which the messages of several travel.

    name: the same on all ranks, used in reports. neighbours: the processes that read each other's
    memory.
    """

    def __init__(self, comm: MPI.Intracomm, name: str) -> None:
        self.comm = comm
        self.name = name
        self.size = self.comm.Get_size()
        #: the rank of each of its ranks in COMM_WORLD; stored, as the watcher must not ask MPI
        self.world_ranks = places_in(self.comm, MPI.COMM_WORLD)
        self.neighbours = NOBODY
        self.bits = min(_CHANNEL_BITS, tag_bits())
        self._channels = 0
        self._users = 0
        self._lock = threading.RLock()

    @classmethod
    def of(cls, comm: MPI.Comm) -> Wire:
        """The wire of a communicator. Collective."""
        with _explained(), node_of(comm) as node:
            wire = cls.between(comm, "", NOBODY)
            wire.meet(comm, node)
            return wire

    @classmethod
    def between(cls, comm: MPI.Comm, name: str, neighbours: Neighbours) -> Wire:
        """The same for ranks that have met; name and neighbours are the result of that."""
        with _explained():
            private = MPI.Intracomm(MPI.Comm.Dup(comm))  # plain: `Dup` gives the class of `comm`
        wire = cls(private, name)
        wire.neighbours = neighbours
        return wire

    def meet(self, comm: MPI.Comm, node: MPI.Intracomm) -> None:
        """Find the processes that read each other's memory. Collective.

        comm: the ranks of the wire. node: the ranks of this node.
        """
        neighbours, problem = meet(node, comm.Get_rank(), words_of_wire())
        words = np.array([bool(problem), random_name()], np.int64)
        MPI.Comm.Allreduce(comm, MPI.IN_PLACE, words, MPI.MAX)
        texts = MPI.Comm.allgather(comm, problem) if words[0] else ()
        problems = {rank: text for rank, text in enumerate(texts) if text}
        self.neighbours = neighbours.but_for(problems)
        self.name = self.name or name_of(words[1])

    def take(self) -> int:
        """The number of a free channel; -1 if there is none left."""
        with self._lock:
            self._channels += 1
            return self._channels - 1 if self._channels <= _most_channels() else -1

    def use(self) -> None:
        """One more communicator travels on it."""
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        """One communicator less; the last one frees it."""
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            self.neighbours.release()
            self.comm.Free()


class Share(NamedTuple):
    """A channel number of a wire, for communicators of some ranks of another communicator.

    ranks: the rank on the wire of each rank of that communicator.
    """

    wire: Wire
    number: int
    ranks: Sequence[int]


class Begun:
    """The numbers and tags of the last calls that were begun, in memory that the extension knows.

    size: how many calls, a power of two. Numbers begin with 1.
    """

    def __init__(self, size: int) -> None:
        self.last = size - 1
        self._words = array("q", bytes(16 * size))

    @property
    def address(self) -> int:
        """Of the first number, which its tag follows."""
        return self._words.buffer_info()[0]

    def add(self, number: int, tag: int) -> None:
        """The call of this number begins."""
        at = 2 * (number & self.last)
        self._words[at] = number
        self._words[at + 1] = tag

    def at(self, number: int) -> tuple[int, int]:
        """Number and tag of the last call in the place of this number; 0 and 0: none."""
        at = 2 * (number & self.last)
        return self._words[at], self._words[at + 1]

    @property
    def latest(self) -> int:
        """The number of the last call; 0: none."""
        return max(self._words[::2])

    def tags(self) -> dict[int, int]:
        """The tags by number."""
        words = self._words.tolist()
        return {number: tag for number, tag in zip(words[::2], words[1::2]) if number}


class _Posted:
    """Two messages by which ranks agree, with their memory, which lives as long as MPI may use it.

    A request is None before it is known: a signal handler may raise when MPI has begun it.
    """

    def __init__(self, received: Any, sent: Any) -> None:
        self.received = received
        self.sent = sent
        self.receive: MPI.Request | None = None
        self.send: MPI.Request | None = None

    @property
    def is_known(self) -> bool:
        """Whether both requests are."""
        return self.receive is not None and self.send is not None


class Channel:
    """One communicator's messages on a wire.

    number: the channel's number on the wire. ranks: the rank on the wire of each rank of the
    communicator. rank: this process's rank in the communicator.
    """

    def __init__(self, wire: Wire, number: int, ranks: Sequence[int], rank: int) -> None:
        self.wire = wire
        self.number = number
        self.ranks = ranks
        self.rank = rank
        self._spare: Wire | None = None
        self.name = f"{wire.name}.{number}"
        #: for the watcher, a thread that may not use what is being freed
        self.open = True
        #: whether a message by which a rank tells of itself is just being received or sent
        self.is_talking = False
        #: of looking at messages by which ranks tell of themselves. Who finds it taken looks later:
        #: a finalizer may interrupt the thread that has it, and wait for what this thread keeps
        self.looking = Turn()
        #: messages by which ranks agree
        self._posted: set[_Posted] = set()
        #: the lowest tag of the channel
        self._first = number << wire.bits
        #: bits of a call's number in a tag, and of its fingerprint
        self._half = (wire.bits - 2) // 2
        self._mask = (1 << self._half) - 1
        #: the last calls begun, half as many as a tag has numbers
        self.begun = Begun(1 << (self._half - 1))
        wire.use()

    @classmethod
    def of_its_own(cls, comm: MPI.Comm) -> Channel:
        """The first channel of a new wire. Collective."""
        return cls.first(Wire.of(comm))

    @classmethod
    def first(cls, wire: Wire) -> Channel:
        """The first channel of a wire. Local."""
        return cls(wire, wire.take(), range(wire.size), wire.comm.Get_rank())

    def share(self, parent: MPI.Comm) -> Share:
        """What communicators of some ranks of `parent`, the owner of this channel, may travel on.

        Collective. One rank of a wire gives all its numbers away, so that threads may make
        communicators at the same time. A part of the wire's ranks, which may lack that rank, has
        another wire for what is made from it.
        """
        while True:
            giving = self._giving
            if giving is not None:
                wire, ranks = giving
                number = _taken(wire, ranks, parent)
                MPI.Comm.Bcast(parent, number, ranks.index(0))
                if number >= 0:
                    return Share(wire, int(number), ranks)
            self._replace_spare(Wire.of(parent))

    def duplicate_soon(
        self, parent: MPI.Comm
    ) -> tuple[Callable[[MPI.Comm], Channel], Callable[[], object]]:
        """The channel of a duplicate of `parent`, the owner of this channel; made later or never.

        Returns a function that makes it, and one that gives it up; one of the two is called, once.
        Waits for no other rank. It begins no duplicate of its own (quirk: idup-beside-others). So
        where no wire has a number left, or a part of a wire's ranks has no other wire, the ranks
        make a new wire: then the first call on the duplicate waits for all of them.
        """
        giving = self._giving
        if giving is None:
            return Channel.of_its_own, lambda: None
        wire, ranks = giving
        number = _taken(wire, ranks, parent)
        request = owning(MPI.Comm.Ibcast(parent, number, ranks.index(0)), number)
        wire.use()  # `parent` may be freed before the duplicate is used

        def make(comm: MPI.Comm) -> Channel:
            request.Wait()
            share = Share(wire, int(number), ranks) if number >= 0 else None
            made = Channel.of_part(share, comm, range(len(ranks)))
            wire.leave()
            return made

        def drop() -> None:
            still_under_way([request])  # MPICH complains at its end of requests that nobody tests
            wire.leave()

        return make, drop

    @property
    def _giving(self) -> tuple[Wire, Sequence[int]] | None:
        """The wire that gives numbers to communicators made from this one, and their ranks there.

        None where there is no such wire yet.
        """
        if self._spare is not None:  # the other has none left
            return self._spare, range(self._spare.size)
        return (self.wire, self.ranks) if len(self.ranks) == self.wire.size else None

    def _replace_spare(self, wire: Wire | None) -> None:
        if self._spare is not None:
            self._spare.leave()
        if wire is not None:
            wire.use()
        self._spare = wire

    @staticmethod
    def of_part(share: Share | None, comm: MPI.Comm, places: Sequence[int]) -> Channel:
        """The channel of a communicator of some ranks of another communicator.

        Local, unless it shares nothing. places: the rank there of each of its ranks.
        """
        if share is None:
            return Channel.of_its_own(comm)
        if len(places) == len(share.ranks) and all(map(eq, places, count())):
            return Channel(share.wire, share.number, share.ranks, comm.Get_rank())
        ranks = array("i", [share.ranks[place] for place in places])
        return Channel(share.wire, share.number, ranks, comm.Get_rank())

    def neighbours(self, nodes: Sequence[int]) -> Neighbours:
        """The ranks that read each other's memory. Local. nodes: the node of each rank."""
        return self.wire.neighbours.among(self.ranks, nodes, self.rank)

    @property
    def world_ranks(self) -> list[int]:
        """The rank in COMM_WORLD of each of its ranks; for reports."""
        return [self.wire.world_ranks[rank] for rank in self.ranks]

    @property
    def own_name(self) -> str:
        """A name that is unique here: communicators of one `Split` have one number on the wire."""
        is_whole = len(self.ranks) == self.wire.size
        return self.name if is_whole else f"{self.name}/{self.ranks[0]}"

    def shut(self, patience: float = FOR_EVER) -> bool:
        """Let no other thread begin to use the channel. Returns whether no thread is using it.

        patience: seconds to wait for a thread that uses it.
        """
        self.open = False
        return bool(self.looking.take(lambda: True, patience=patience))

    def close(self) -> None:
        """The communicator is gone."""
        self._replace_spare(None)
        self.wire.leave()

    # Messages.

    @property
    def number_bit(self) -> int:
        """The bit of a call's tag at which its number begins; a plan's tag begins with it."""
        return self._half

    def tag(self, kind: int, number: int, fingerprint: int = 0) -> int:
        """The tag of one call's messages. fingerprint: any number made of its description."""
        unnumbered = self._first | kind << (2 * self._half) | fingerprint & self._mask
        return self.numbered(unnumbered, number)

    def numbered(self, tag: int, number: int, sequence: int = 0) -> int:
        """The tag of a call, made of the tag of call 0 of the same fingerprint.

        sequence: a hash of all calls up to this one.
        """
        begun = (tag | (number & self._mask) << self._half) ^ (sequence & self._mask)
        return begun | sequence >> self._half << 32

    # Messages of calls that are different calls here.

    def begin(self, number: int, tag: int) -> None:
        """The call of this number begins here, and has this tag."""
        self.begun.add(number, tag)

    def begun_tags(self) -> dict[int, int]:
        """The tags of the last calls that were begun here, by number."""
        return self.begun.tags()

    def is_of_another_call(self, tag: int) -> bool:
        """Whether the call of a message with this tag was begun here as a different call."""
        through_mpi = tag & _FOR_MPI
        kind = tag >> (2 * self._half) & 3
        is_here = through_mpi >> self.wire.bits == self._first >> self.wire.bits
        if not is_here or kind not in (CALL, COMPARE):
            return False
        latest = self.begun.latest
        behind = latest - (tag >> self._half) & self._mask
        if behind > self._mask // 2:  # it is ahead: not begun here
            return False
        number = latest - behind
        begun, its_tag = self.begun.at(number)
        if tag == through_mpi:  # the rest of the fingerprint is not known
            its_tag &= _FOR_MPI
        # not all numbers are calls: the place of one that is none has an earlier call
        return 0 < begun == number and its_tag != tag

    def unmatched(self) -> Iterator[int]:
        """For each other rank, the tag of its first message that nothing here receives."""
        status = MPI.Status()
        for rank, number in enumerate(self.ranks):
            if rank != self.rank and self.wire.comm.Iprobe(number, MPI.ANY_TAG, status):
                yield status.tag

    def plan_tag(self, number: int) -> int:
        """The tag of a persistent plan, which may live for long: all bits are for its number.

        Through MPI, tags repeat after 2^22 plans of a communicator; after 2^12 where MPI grants
        15 bits.
        """
        bits = 2 * self._half
        numbered = number & ((1 << bits) - 1) | number >> bits << 32
        return self._first | PLAN << bits | numbered

    def sender(self, memory: Any, peer: int) -> Callable[[int], MPI.Request]:
        """A function (tag) that begins to send the memory to a rank."""
        return _tagged(self.wire.comm.Isend, memory, self.ranks[peer])

    def receiver(self, memory: Any, peer: int) -> Callable[[int], MPI.Request]:
        """A function (tag) that begins to receive into the memory from a rank."""
        return _tagged(self.wire.comm.Irecv, memory, self.ranks[peer])

    def exchange(
        self, received: Any, source: int, sent: Any, target: int, tag: int
    ) -> Iterator[MPI.Request]:
        """Receive from one rank, send to another: requests to be awaited.

        `withdraw` gives them up with their call.
        """
        posted = _Posted(received, sent)
        self._posted.add(posted)
        posted.receive = self.receiver(received, source)(tag)
        posted.send = self.sender(sent, target)(tag)
        yield posted.receive
        yield posted.send
        self._posted.discard(posted)

    def withdraw(self) -> list[MPI.Request]:
        """Give up the messages by which ranks agree; returns those that MPI may still use."""
        posted, self._posted = self._posted, set()
        left = cancelled([one.receive for one in posted if one.receive is not None])
        left += still_under_way([one.send for one in posted if one.send is not None])
        if left or not all(one.is_known for one in posted):
            ABANDONED.append(posted)
        return left

    # Giving up.

    def give_notice(self, text: str) -> None:
        """Tell all other ranks that this rank gives the communicator up, and why."""
        words = np.frombuffer(text.encode(), np.uint8)
        tag = self.tag(WATCH, NOTICE)
        notices: list[MPI.Request] = []
        with suppress(MPI.Exception):  # where ranks died
            for number in self.ranks:
                if number != self.ranks[self.rank]:
                    notice = self.wire.comm.Isend([words, MPI.BYTE], number, tag)
                    notices.append(owning(notice, words))
        until = perf_counter() + _LEAVING
        while notices and perf_counter() < until:
            notices = still_under_way(notices)

    def notice(self) -> tuple[int, str] | None:
        """Which rank has given the communicator up, and why; None where none has.

        Lets MPI make progress.
        """
        return self.looking.take(self._notice)

    def _notice(self) -> tuple[int, str] | None:
        tag = self.tag(WATCH, NOTICE)
        status = MPI.Status()
        if not self.probe(tag, status):
            return None
        self.is_talking = True  # for good: this communicator is given up
        words = np.empty(status.Get_count(MPI.BYTE), np.uint8)
        self.wire.comm.Recv([words, MPI.BYTE], status.source, tag)
        return list(self.ranks).index(status.source), words.tobytes().decode(errors="replace")

    def probe(self, tag: int, status: MPI.Status) -> bool:
        """Whether a message with this tag has come, from any rank. Needs the turn `looking`."""
        return self.open and self.wire.comm.Iprobe(MPI.ANY_SOURCE, tag, status)


def _tagged(
    start: Callable[..., MPI.Request], memory: Any, rank: int
) -> Callable[[int], MPI.Request]:
    message = memory, memory.nbytes, MPI.BYTE
    return lambda tag: start(message, rank, tag & _FOR_MPI)


def _taken(wire: Wire, ranks: Sequence[int], parent: MPI.Comm) -> Any:
    """At the rank that gives numbers away: a free number of the wire, or -1 if none is left.

    All ranks of `parent` receive it; 0 at the others.
    """
    return np.array(wire.take() if ranks[parent.Get_rank()] == 0 else 0, np.int64)


@contextmanager
def node_of(comm: MPI.Comm) -> Iterator[MPI.Intracomm]:
    """The ranks of this node. Collective. If a rank leaves with an error, no other waits for it."""
    with ranks_of_node(comm) as node:
        try:
            yield node
        except Exception:
            if survivable():
                node.Revoke()
            raise


def places_in(comm: MPI.Comm, parent: MPI.Comm) -> Sequence[int]:
    """The rank in `parent` of each of the ranks of `comm`. Collective over these.

    They tell each other (quirk: translation-of-ranks-is-quadratic, quirk: group-of-a-grid). The
    communicators may be of different sessions of MPI.
    """
    places = np.empty(comm.Get_size(), np.int32)
    MPI.Comm.Allgather(comm, np.array([parent.Get_rank()], np.int32), places)
    return array("i", places.tobytes())
