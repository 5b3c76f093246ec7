"""Messages between ranks of a node: where they lie is told, and the receiver reads or reduces them there.

What lies in memory that is shared is not copied: it is sent when it was read. All else is copied to the pipe's slots, piece
by piece, and is sent when it lies there; where it is large MPI copies it once instead of twice, and the receiver is told.
What is written is put where the receiver wants it, who has said where.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from .. import buffers
from .heap import HEAP
from .neighbours import Neighbour
from .ring import ENTRIES, GIVEN_UP, OPEN, SLOTS, THROUGH_MPI, WRITTEN, Pace, Pipe, Pipes

#: messages from this size on go through MPI, where they lie in memory that is not shared
_LARGE = 1 << 20
#: in place of a location: the writer cannot see that place
_UNSEEN = 0
#: places of other ranks' memory that a message remembers
_REMEMBERED = 64
_copyto = np.copyto


class Polled:
    """A request that is looked at again and again: `Test` and `Wait` of all that is awaited where memory is shared."""

    __slots__ = ("_pace",)

    def __init__(self, pace: Pace) -> None:
        self._pace = pace

    def _is_done(self) -> bool:
        """Take a step, where one can be taken; whether nothing is left."""
        raise NotImplementedError

    def Test(self) -> bool:
        """Whether it is through; if not, what is half sent goes on meanwhile."""
        if self._is_done():
            return True
        self._pace.pause()
        return False

    def withdraw(self) -> MPI.Request | None:
        """The call is given up: no other process changes its memory from now on. What of it MPI may still use, if anything."""
        raise NotImplementedError

    def Wait(self) -> None:
        """Come back when it is."""
        if not self._is_done():
            while not self.Test():
                pass
            self._pace.go()


class Outgoing(Polled):
    """A message to a rank of the node, ready but for the tag: a request once it is started.

    pipes: that calls of its kind use. address, end: where it lies. itemsize: where it may be cut. send(tag): sends it
    through MPI.
    """

    __slots__ = ("_pipes", "_address", "_nbytes", "_location", "_epoch", "_bytes", "_chunk", "_slots", "tag", "_pipe",
                 "_sent", "_last", "_send", "_request")  # fmt: skip

    def __init__(
        self, pipes: Pipes, address: int, end: int, itemsize: int, send: Callable[[int], MPI.Request]
    ) -> None:
        super().__init__(pipes.pipes[0].pace)
        nbytes = end - address
        self._pipes, self._nbytes, self._send = pipes, nbytes, send
        self._request: MPI.Request | None = None
        self._address = address
        self._locate()
        self._bytes = buffers.at(address, nbytes, np.uint8)
        self._chunk = min(nbytes, pipes.pipes[0].chunk // itemsize * itemsize)
        self._slots: dict[Pipe, list[tuple[int, Any]]] = {}
        self.tag = self._sent = self._last = 0
        self._pipe = pipes.pipes[0]

    def _locate(self) -> None:
        """Look up where it lies: an array may get new pages."""
        self._epoch = HEAP.epoch
        self._location = HEAP.location(self._address, self._nbytes)
        if self._location is None and self._nbytes >= _LARGE:
            self._location = THROUGH_MPI

    def start(self, tag: int) -> Outgoing:
        """Begin to send it; returns itself, as the request."""
        if self._epoch != HEAP.epoch:
            self._locate()
        self.tag, self._sent = tag, 0
        self._pipe = self._pipes.of(tag)
        self._pipe.send(self)
        return self

    def advance(self) -> bool:
        """Publish what can be; whether all is."""
        pipe = self._pipe
        if self._location is not None:
            if pipe.unread >= ENTRIES:
                return False
            pipe.publish(self.tag, self._location, self._nbytes)
            self._last, self._sent = pipe.count, self._nbytes
            if self._location == THROUGH_MPI:
                self._request = self._send(self.tag)
            return True
        slots = self._slots.get(pipe)
        if slots is None:
            slots = self._slots[pipe] = [(slot.location, slot.array[: self._chunk]) for slot in pipe.slots(self._chunk)]
        while self._sent < self._nbytes:
            if pipe.unread >= SLOTS:
                return False
            location, slot = slots[pipe.count % SLOTS]
            piece = self._bytes[self._sent : self._sent + self._chunk]
            _copyto(slot[: piece.size], piece)
            pipe.publish(self.tag, location, piece.size)
            self._sent += piece.size
        return True

    def _is_done(self) -> bool:
        """Whether its memory may be used again."""
        if self._sent < self._nbytes:
            self._pipe.push()
        return self._sent == self._nbytes and self._is_taken()

    def withdraw(self) -> MPI.Request | None:
        """Others read what was published in the pages that they know."""
        HEAP.detach(self._address, self._nbytes)
        return self._request

    def _is_taken(self) -> bool:
        """The same, once all is published."""
        if self._location is None:
            return True
        if self._location == THROUGH_MPI:
            assert self._request is not None
            return self._request.Test()
        return self._pipe.read >= self._last


class Writing(Outgoing):
    """A message that is put where the receiver wants it, once that is known; where it cannot be seen, it is sent.

    inward: the pipes from the receiver, which says on them where that is.
    """

    __slots__ = ("_inward", "_peer", "_opened", "_places", "_is_put")

    def __init__(self, inward: Pipes, peer: Neighbour, *outgoing: Any) -> None:
        super().__init__(*outgoing)
        self._inward, self._peer = inward, peer
        self._places: dict[tuple[int, int], Any] = {}
        self._opened: tuple[int, int] | None = None
        self._is_put = False

    def start(self, tag: int) -> Outgoing:
        """Begin; returns itself, as the request."""
        self._opened = None
        return super().start(tag)

    def advance(self) -> bool:
        """Put it there, or publish what can be; whether all is."""
        opened = self._opened
        if opened is None:
            opened = self._opened = self._inward.of(self.tag).opening(self.tag, self._peer)
            if opened is None:
                return False
            self._is_put = opened[0] != _UNSEEN
        if not self._is_put:
            return super().advance()
        if self._pipe.unread >= ENTRIES:
            return False
        landing = self._places.get(opened)
        _copyto(_place(opened, self._peer, np.uint8, self._places) if landing is None else landing, self._bytes)
        self._pipe.publish(self.tag, WRITTEN, self._nbytes)
        self._sent = self._nbytes
        return True

    def _is_taken(self) -> bool:
        return self._is_put or super()._is_taken()


class Distant(Polled):
    """A request of MPI's for a message to or from another node: while it is awaited, what is half sent in this one goes on."""

    __slots__ = ("_request",)

    def __init__(self, request: MPI.Request, pace: Pace) -> None:
        super().__init__(pace)
        self._request = request

    def _is_done(self) -> bool:
        return self._request.Test()

    def withdraw(self) -> MPI.Request | None:
        """MPI alone can."""
        return self._request


class Incoming(Polled):
    """A message from a rank of the node, ready but for the tag: a request once it is started.

    take(theirs): takes what lies in the other rank's memory. take_part(theirs, start, end): elements start to end of
    `landing`, where a message goes that comes through MPI; receive(tag): receives it there, and then it is taken from there.
    """

    __slots__ = ("_pipes", "_peer", "_landing", "_take", "_take_part", "_places", "tag", "_pipe", "_taken", "_receive",
                 "_request")  # fmt: skip

    def __init__(
        self, pipes: Pipes, peer: Neighbour, landing: Any, receive: Callable[[int], MPI.Request],
        take: Callable[[Any], object], take_part: Callable[[Any, int, int], object],
    ) -> None:  # fmt: skip
        super().__init__(pipes.pipes[0].pace)
        self._pipes, self._peer, self._landing, self._receive = pipes, peer, landing, receive
        self._take, self._take_part = take, take_part
        self._request: MPI.Request | None = None
        self._places: dict[tuple[int, int], Any] = {}
        self.tag = self._taken = 0
        self._pipe = pipes.pipes[0]

    def start(self, tag: int) -> Incoming:
        """Expect it; returns itself, as the request."""
        self.tag, self._taken = tag, 0
        self._pipe = self._pipes.of(tag)
        return self

    def _is_done(self) -> bool:
        """Whether it was received; takes what has come."""
        if self._request is not None:
            return self._has_landed()
        pipe = self._pipe
        found = pipe.next(self.tag, self._peer)
        if found is None:
            return False
        theirs = self._places.get(found)
        if theirs is None:
            if found[0] == THROUGH_MPI:
                pipe.acknowledge(self.tag)
                self._request = self._receive(self.tag)
                return self._has_landed()
            if found[0] == WRITTEN:
                pipe.acknowledge(self.tag)
                return True
            theirs = _place(found, self._peer, self._landing.dtype, self._places)
        start, whole = self._taken, self._landing.size
        self._taken = end = start + theirs.size
        if theirs.size == whole:
            self._take(theirs)
        else:
            self._take_part(theirs, start, end)
        pipe.acknowledge(self.tag)
        return bool(end == whole)

    def withdraw(self) -> MPI.Request | None:
        """Nobody else writes where it goes, but MPI."""
        return self._request

    def _has_landed(self) -> bool:
        assert self._request is not None
        if not self._request.Test():
            return False
        self._request = None
        if self._pipe.words[GIVEN_UP]:  # MPI may have sent what the sender has written there since
            self._pipe.pace.look(surely=True)
        self._take(self._landing)
        return True


class Landing(Incoming):
    """A message that the sender may put into place itself, from the start on.

    outward: the pipes to the sender, which is told on them where that is.
    """

    __slots__ = ("_outward", "_outlet", "_location", "_epoch")

    def __init__(self, outward: Pipes, *incoming: Any) -> None:
        super().__init__(*incoming)
        self._outward, self._outlet = outward, outward.pipes[0]
        self._locate()

    def _locate(self) -> None:
        self._epoch = HEAP.epoch
        self._location = HEAP.location(buffers.address(self._landing), self._landing.nbytes) or _UNSEEN

    def start(self, tag: int) -> Incoming:
        """Let the sender in; returns itself, as the request."""
        super().start(tag)
        if self._epoch != HEAP.epoch:
            self._locate()
        self._outlet = self._outward.of(tag)
        self._outlet.send(self)
        return self

    def withdraw(self) -> MPI.Request | None:
        """The sender writes to the pages that it knows."""
        HEAP.detach(buffers.address(self._landing), self._landing.nbytes)
        return super().withdraw()

    def advance(self) -> bool:
        """Tell the sender, where there is room for it; whether that is done."""
        if self._outlet.unread >= ENTRIES:
            return False
        self._outlet.publish(self.tag, self._location, self._landing.nbytes + OPEN)
        return True


def _place(found: tuple[int, int], peer: Neighbour, dtype: Any, known: dict[tuple[int, int], Any]) -> Any:
    """Memory of another rank, by location and bytes, as an array; entered where it is known from then on."""
    if len(known) >= _REMEMBERED:
        known.clear()
    address = -found[0] if found[0] < 0 else peer.address(found[0])  # a message that was kept aside lies here
    known[found] = theirs = buffers.at(address, found[1], dtype)
    return theirs
