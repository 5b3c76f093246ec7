"""The private communicators that messages travel on, and the tags by which those of one call are told from all others.

A `Wire` is a duplicate that the user never sees, made when a communicator is wrapped. Communicators made from one that
has all the ranks of its wire share that wire, those made from one that has a part of them share another one: MPI grants a few
thousand contexts at most. Each has a `Channel` on it: a
range of tags, laid out as

    channel | kind of message (2 bits) | number of the call | fingerprint of all calls up to it

so that no message of one call is ever received by another, whatever a faulty program does: by the number if a rank has
left out a call, by the fingerprint if ranks make different calls, or made some before. Both are cut
to the bits that there are. A message whose number was begun here with another fingerprint shows
that ranks went apart (`accounts`).
"""

from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from operator import eq
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from ..errors import MpicollError
from ..shared_memory import NOBODY, WORD, Neighbours, meet
from ..support.node import ranks_of_node, ranks_within
from .survival import survivable
from .withdrawal import ABANDONED, cancelled, still_under_way

#: kinds of messages: of single calls, of persistent plans, of the comparison of calls, between watchers
CALL, PLAN, COMPARE, WATCH = range(4)
#: the numbers, among messages between watchers, of the one by which a rank says that it gives the
#: communicator up, and of the one by which it tells its calls
_NOTICE, ACCOUNT = 3, 4
#: seconds that the notices of a rank have to leave it
_LEAVING = 0.05
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

    name: by which reports of all ranks know it, the same on all of them. neighbours: the processes that read each other's
    memory.
    """

    def __init__(self, comm: MPI.Intracomm, name: str) -> None:
        self.comm = comm
        self.name = name
        self.size = self.comm.Get_size()
        #: the rank in the world of each of its ranks: found here, as the watcher must not ask MPI
        self.world_ranks = _world_ranks(self.comm)
        self.neighbours = NOBODY
        self.bits = min(_CHANNEL_BITS, tag_bits())
        self._channels = 0
        self._users = 0
        self._lock = threading.Lock()

    @classmethod
    def of(cls, comm: MPI.Comm) -> Wire:
        """That of a communicator. Collective."""
        with _explained(), node_of(comm) as node:
            wire = cls.between(comm, "", NOBODY)
            wire.meet(comm, node)
            return wire

    @classmethod
    def between(cls, comm: MPI.Comm, name: str, neighbours: Neighbours) -> Wire:
        """The same for ranks that have met. name, neighbours: what came of it."""
        with _explained():
            private = MPI.Intracomm(MPI.Comm.Dup(comm))  # plain: `Dup` gives the class of `comm`
        wire = cls(private, name)
        wire.neighbours = neighbours
        return wire

    def meet(self, comm: MPI.Comm, node: MPI.Intracomm) -> None:
        """Find the processes that read each other's memory. Collective. comm: its ranks; node: those of this node."""
        neighbours, problem = meet(node, comm.Get_rank(), words_of_wire())
        words = np.array([bool(problem), random_name()], np.int64)
        MPI.Comm.Allreduce(comm, MPI.IN_PLACE, words, MPI.MAX)
        texts = MPI.Comm.allgather(comm, problem) if words[0] else ()
        self.neighbours = neighbours.but_for({rank: text for rank, text in enumerate(texts) if text})
        self.name = self.name or name_of(words[1])

    def take(self) -> int:
        """The number of a channel that nobody has; -1: there is none left."""
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


def _world_ranks(comm: MPI.Intracomm) -> Sequence[int]:
    world = MPI.COMM_WORLD
    is_whole = comm.Get_size() == world.Get_size()
    if is_whole and MPI.Comm.Compare(comm, world) == MPI.CONGRUENT:
        return range(world.Get_size())
    return ranks_within(comm, world)


class Share(NamedTuple):
    """A number on a wire, for communicators of some ranks of another. ranks: where that one's ranks are on the wire."""

    wire: Wire
    number: int
    ranks: Sequence[int]


class Channel:
    """One communicator's messages on a wire.

    number: of those on the wire. ranks: the number on the wire of each of its ranks; rank: this one's.
    """

    def __init__(self, wire: Wire, number: int, ranks: Sequence[int], rank: int) -> None:
        self.wire = wire
        self.number = number
        self.ranks = ranks
        self.rank = rank
        self._spare: Wire | None = None
        self.name = f"{wire.name}.{number}"
        self.open, self.lock = True, threading.RLock()  # for the watcher, a thread that may not use what is being freed
        #: messages that ranks agree by, with their memory, which lives as long as MPI may use it: received, sent
        self._posted: dict[int, tuple[Any, MPI.Request, Any, MPI.Request]] = {}
        self._first, self._half = number << wire.bits, (wire.bits - 2) // 2
        self._mask = (1 << self._half) - 1
        #: number and tag of the last calls begun, half as many as a tag has numbers
        self._begun: list[tuple[int, int] | None] = [None] * (1 << (self._half - 1))
        self._recent = len(self._begun) - 1
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
        """What communicators of some ranks of `parent`, whose channel this is, may travel on. Collective.

        One rank of a wire gives all its numbers away, so that threads may make communicators at the same time. A part of the
        wire's ranks, of which that rank may be none, has another wire for what is made from it.
        """
        while True:
            if self._giving is not None:
                wire, ranks = self._giving
                number = _taken(wire, ranks, parent)
                MPI.Comm.Bcast(parent, number, ranks.index(0))
                if number >= 0:
                    return Share(wire, int(number), ranks)
            self._replace_spare(Wire.of(parent))

    def duplicate_soon(self, parent: MPI.Comm) -> Callable[[MPI.Comm], Channel]:
        """The channel of a duplicate of `parent`, whose channel this is, without waiting for other ranks: it is made later.

        It begins no duplicate of its own (quirk: idup-beside-others). So where no wire has a number
        left, or a part of a wire's ranks has no other, the ranks make a new wire: then the first
        call on the duplicate waits for all of them.
        """
        if self._giving is None:
            return Channel.of_its_own
        wire, ranks = self._giving
        number = _taken(wire, ranks, parent)
        request = MPI.Comm.Ibcast(parent, number, ranks.index(0))
        wire.use()  # `parent` may be freed before the duplicate is used

        def make(comm: MPI.Comm) -> Channel:
            request.Wait()
            share = Share(wire, int(number), ranks) if number >= 0 else None
            made = Channel.of_part(share, comm, range(len(ranks)))
            wire.leave()
            return made

        return make

    @property
    def _giving(self) -> tuple[Wire, Sequence[int]] | None:
        """The wire that communicators made from this one get numbers of, and where its ranks are there; None: none yet."""
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
        """The channel of a communicator of some ranks of another one. Local, unless it shares nothing.

        places: the rank there of each of its ranks.
        """
        if share is None:
            return Channel.of_its_own(comm)
        if len(places) == len(share.ranks) and all(map(eq, places, count())):
            return Channel(share.wire, share.number, share.ranks, comm.Get_rank())
        return Channel(share.wire, share.number, array("i", [share.ranks[place] for place in places]), comm.Get_rank())

    def neighbours(self, nodes: Sequence[int]) -> Neighbours:
        """The ranks that read each other's memory. Local. nodes: of each rank."""
        return self.wire.neighbours.among(self.ranks, nodes, self.rank)

    @property
    def world_ranks(self) -> list[int]:
        """The rank in the world of each of its ranks; for reports."""
        return [self.wire.world_ranks[rank] for rank in self.ranks]

    @property
    def own_name(self) -> str:
        """A name that no other communicator has: those of one `Split` have the same number on the wire."""
        return self.name if len(self.ranks) == self.wire.size else f"{self.name}/{self.ranks[0]}"

    def shut(self, patience: float = -1) -> bool:
        """No other thread begins to use it any more. Returns whether none is using it.

        patience: seconds for which one is awaited that does; -1: for as long as it takes.
        """
        self.open = False
        if not self.lock.acquire(timeout=patience):
            return False
        self.lock.release()
        return True

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
        """The tag of one call's messages. number: of the call; fingerprint: any number made of what the call is."""
        return self.numbered(self._first | kind << (2 * self._half) | fingerprint & self._mask, number)

    def numbered(self, tag: int, number: int, sequence: int = 0) -> int:
        """The tag of a call from that of call 0 of the same fingerprint.

        sequence: a hash of the calls up to it.
        """
        return (tag | (number & self._mask) << self._half) ^ (sequence & self._mask)

    # Messages of calls that are others here.

    def begin(self, number: int, tag: int) -> None:
        """The call of this number begins here, and has this tag."""
        self._begun[number & self._recent] = number, tag

    def begun_tags(self) -> dict[int, int]:
        """The tags of the last calls that were begun here, by number."""
        return dict(one for one in self._begun if one is not None)

    def is_of_another_call(self, tag: int) -> bool:
        """Whether a message with this tag is of a call that was begun here as another one."""
        kind = tag >> (2 * self._half) & 3
        if tag >> self.wire.bits != self._first >> self.wire.bits or kind not in (CALL, COMPARE):
            return False
        number = tag >> self._half & self._mask
        begun = self._begun[number & self._recent]
        return begun is not None and begun[0] & self._mask == number and begun[1] != tag

    def unmatched(self) -> Iterator[int]:
        """Of each other rank the tag of the first message that nothing here receives."""
        status = MPI.Status()
        for rank, number in enumerate(self.ranks):
            if rank != self.rank and self.wire.comm.Iprobe(number, MPI.ANY_TAG, status):
                yield status.tag

    def plan_tag(self, number: int) -> int:
        """The tag of a persistent plan, which may live for long: all bits are for its number."""
        return self._first | PLAN << (2 * self._half) | number & ((1 << 2 * self._half) - 1)

    def sender(self, memory: Any, peer: int) -> Callable[[int], MPI.Request]:
        """A function that begins to send the memory to a rank, with the tag that it is given."""
        return partial(self.wire.comm.Isend, (memory, memory.nbytes, MPI.BYTE), self.ranks[peer])

    def receiver(self, memory: Any, peer: int) -> Callable[[int], MPI.Request]:
        """A function that begins to receive into the memory from a rank, with the tag that it is given."""
        return partial(self.wire.comm.Irecv, (memory, memory.nbytes, MPI.BYTE), self.ranks[peer])

    def exchange(self, received: Any, source: int, sent: Any, target: int, tag: int) -> Iterator[MPI.Request]:
        """Receive from one rank, send to another: requests to be awaited. Given up with the call (`withdraw`)."""
        receive, send = self.receiver(received, source)(tag), self.sender(sent, target)(tag)
        self._posted[id(receive)] = received, receive, sent, send
        yield receive
        yield send
        self._posted.pop(id(receive), None)

    def withdraw(self) -> list[MPI.Request]:
        """Give up the messages that ranks agree by; returns those that MPI may still use."""
        posted = list(self._posted.values())
        self._posted = {}
        left = cancelled([receive for _, receive, _, _ in posted])
        left += still_under_way([send for *_, send in posted])
        if left:
            ABANDONED.append(posted)
        return left

    # Giving up.

    def give_notice(self, text: str) -> None:
        """Tell all other ranks that this one gives the communicator up, and why."""
        words = np.frombuffer(text.encode(), np.uint8)
        tag = self.tag(WATCH, _NOTICE)
        notices = []
        with suppress(MPI.Exception):  # where ranks died
            for number in self.ranks:
                if number != self.ranks[self.rank]:
                    notices.append(self.wire.comm.Isend([words, MPI.BYTE], number, tag))
        until = perf_counter() + _LEAVING
        while notices and perf_counter() < until:
            notices = still_under_way(notices)
        if notices:
            ABANDONED.append((words, notices))

    def notice(self) -> tuple[int, str] | None:
        """Which rank has given the communicator up, and why; None where none has. Lets MPI move."""
        tag, status = self.tag(WATCH, _NOTICE), MPI.Status()
        with self.lock:
            if not self.probe(tag, status):
                return None
            words = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            self.wire.comm.Recv([words, MPI.BYTE], status.source, tag)
        return list(self.ranks).index(status.source), words.tobytes().decode(errors="replace")

    def probe(self, tag: int, status: MPI.Status) -> bool:
        """Whether a message with this tag has come, from any rank. The caller has the lock."""
        return self.open and self.wire.comm.Iprobe(MPI.ANY_SOURCE, tag, status)


def _taken(wire: Wire, ranks: Sequence[int], parent: MPI.Comm) -> Any:
    """A number of the wire that nobody has, or -1 if there is none left, at the rank of `parent` that all get it from."""
    return np.array(wire.take() if ranks[parent.Get_rank()] == 0 else 0, np.int64)


@contextmanager
def node_of(comm: MPI.Comm) -> Iterator[MPI.Intracomm]:
    """The ranks of this node. Collective. Where one leaves with an error, the others do not wait for it there."""
    with ranks_of_node(comm) as node:
        try:
            yield node
        except Exception:
            if survivable():
                node.Revoke()
            raise


def places_in(comm: MPI.Comm, parent: MPI.Comm) -> Sequence[int]:
    """The rank in `parent` of each of the ranks of `comm`. Collective over these.

    They tell each other (quirk: translation-of-ranks-is-quadratic, quirk: group-of-a-grid).
    """
    places = np.empty(comm.Get_size(), np.int32)
    MPI.Comm.Allgather(comm, np.array([parent.Get_rank()], np.int32), places)
    return array("i", places.tobytes())
