"""The private communicators that messages travel on, and the tags by which those of one call are told from all others.

A `Wire` is a duplicate that the user never sees, made when a communicator is wrapped. Communicators made from one that
has all the ranks of its wire share that wire: MPI grants a few thousand contexts at most. Each has a `Channel` on it: a
range of tags, laid out as

    channel | kind of message (2 bits) | number of the call | fingerprint of the call

so that no message of one call is ever received by another, whatever a faulty program does: by the number if a rank has
left out a call, by the fingerprint if ranks make different calls. Both are cut to the bits that there are.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from ..errors import MpicollError

#: kinds of messages: of single calls, of persistent plans, of the comparison of calls, between watchers
CALL, PLAN, COMPARE, WATCH = range(4)
#: bits of a channel's tags, where MPI grants more than that
_CHANNEL_BITS = 24


def tag_bits() -> int:
    """How many bits of a tag may be used; MPI grants at least 15."""
    limit = int(MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 32767)
    return (limit + 1).bit_length() - 1


class Wire:
    """A private duplicate of a communicator. Collective."""

    def __init__(self, comm: MPI.Comm) -> None:
        try:
            self.comm = MPI.Intracomm(MPI.Comm.Dup(comm))  # plain: `Dup` gives the class of `comm`
        except MPI.Exception as error:
            raise MpicollError(
                f"MPI cannot make the private communicator that schedules need ({error}): "
                "free communicators that are no longer used"
            ) from error
        self.size = self.comm.Get_size()
        self.world_ranks = ranks_within(self.comm, MPI.COMM_WORLD)
        name = np.array(secrets.randbits(24), np.int64)
        MPI.Comm.Bcast(comm, name)
        self.name = f"{int(name):06x}"  # by which reports of all ranks know it
        self.bits = min(_CHANNEL_BITS, tag_bits())
        self._channels, self._most = 0, 1 << (tag_bits() - self.bits)
        self._users = 0
        self._lock = threading.Lock()

    def take(self) -> int:
        """The number of a channel that nobody has; -1: there is none left."""
        with self._lock:
            self._channels += 1
            return self._channels - 1 if self._channels <= self._most else -1

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
            self.comm.Free()


class Share(NamedTuple):
    """A number on a wire, for communicators of some ranks of another. ranks: where that one's ranks are on the wire."""

    wire: Wire
    number: int
    ranks: Sequence[int]


class Channel:
    """One communicator's messages on a wire. ranks: the number on the wire of each of its ranks; rank: this one's."""

    def __init__(self, wire: Wire, number: int, ranks: Sequence[int], rank: int) -> None:
        self.wire, self.ranks, self.rank = wire, ranks, rank
        self._spare: Wire | None = None
        self.name = f"{wire.name}.{number}"
        self.open, self.lock = True, threading.RLock()  # for the watcher, a thread that may not use what is being freed
        self._first, self._half = number << wire.bits, (wire.bits - 2) // 2
        self._mask = (1 << self._half) - 1
        wire.use()

    @classmethod
    def of_its_own(cls, comm: MPI.Comm) -> Channel:
        """The first channel of a new wire. Collective."""
        wire = Wire(comm)
        return cls(wire, wire.take(), range(wire.size), comm.Get_rank())

    def share(self, parent: MPI.Comm) -> Share | None:
        """What communicators of some ranks of `parent`, whose channel this is, may travel on. Collective.

        None: a part of the wire's ranks shares nothing. One rank of a wire gives all its numbers away, so that threads may
        make communicators at the same time.
        """
        if len(self.ranks) < self.wire.size:
            return None
        number = _number_of(self.wire, parent, self.ranks.index(0))
        if number >= 0:
            return Share(self.wire, number, self.ranks)
        number = _number_of(self._spare, parent, 0) if self._spare is not None else -1
        if number < 0:
            self._replace_spare(Wire(parent))
            number = _number_of(self._spare, parent, 0)
        assert self._spare is not None
        return Share(self._spare, number, range(self._spare.size))

    def _replace_spare(self, wire: Wire | None) -> None:
        """Another wire for communicators made from this one, where this one's has no numbers left."""
        if self._spare is not None:
            self._spare.leave()
        if wire is not None:
            wire.use()
        self._spare = wire

    @staticmethod
    def of_part(share: Share | None, comm: MPI.Comm, parent: MPI.Comm) -> Channel:
        """The channel of a communicator of some ranks of `parent`. Local, unless it shares nothing."""
        if share is None:
            return Channel.of_its_own(comm)
        ranks = [share.ranks[rank] for rank in ranks_within(comm, parent)]
        return Channel(share.wire, share.number, ranks, comm.Get_rank())

    @property
    def world_ranks(self) -> list[int]:
        """The rank in the world of each of its ranks."""
        return [self.wire.world_ranks[rank] for rank in self.ranks]

    def shut(self) -> None:
        """No other thread uses it any more. Before MPI's Comm_free, in which MPICH lets no other thread in."""
        with self.lock:
            self.open = False

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

    def numbered(self, tag: int, number: int) -> int:
        """The tag of a call from that of call 0 of the same fingerprint."""
        return tag | (number & self._mask) << self._half

    def plan_tag(self, number: int) -> int:
        """The tag of a persistent plan, which may live for long: all bits are for its number."""
        return self._first | PLAN << (2 * self._half) | number & ((1 << 2 * self._half) - 1)

    def sender(self, memory: Any, peer: int) -> Callable[[int], MPI.Request]:
        """A function that begins to send the memory to a rank, with the tag that it is given."""
        return partial(self.wire.comm.Isend, (memory, memory.nbytes, MPI.BYTE), self.ranks[peer])

    def receiver(self, memory: Any, peer: int) -> Callable[[int], MPI.Request]:
        """A function that begins to receive into the memory from a rank, with the tag that it is given."""
        return partial(self.wire.comm.Irecv, (memory, memory.nbytes, MPI.BYTE), self.ranks[peer])

    def probe(self, tag: int, status: MPI.Status) -> bool:
        """Whether a message with this tag has come, from any rank. The caller has the lock."""
        return self.open and self.wire.comm.Iprobe(MPI.ANY_SOURCE, tag, status)


def _number_of(wire: Wire | None, parent: MPI.Comm, giver: int) -> int:
    """A number of the wire that nobody has, the same on all ranks of `parent`; -1: there is none left."""
    assert wire is not None
    number = np.array(wire.take() if parent.Get_rank() == giver else 0, np.int64)
    MPI.Comm.Bcast(parent, number, giver)
    return int(number)


def ranks_within(comm: MPI.Comm, parent: MPI.Comm) -> list[int]:
    """The ranks in `parent` of the ranks of `comm`. Local."""
    ours, theirs = comm.Get_group(), parent.Get_group()
    try:
        return list(ours.Translate_ranks(None, theirs))
    finally:
        ours.Free()
        theirs.Free()
