"""Messages between ranks of a node: the sender publishes a location, the receiver reads it there.

- A message in shared memory is not copied; it is sent once the receiver has read it.
- Any other message is copied to the slots of the pipe, piece by piece; it is sent once it is there.
  The slots of the smallest lie in the entries of the pipe.
- A large message outside of shared memory goes through MPI, which copies it once instead of twice.
- A written message is copied to the location that the receiver has published before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from .. import buffers
from .heap import HEAP
from .neighbours import Neighbour
from .ring import ENTRIES, GIVEN_UP, OPEN, THROUGH_MPI, WRITTEN, Backoff, Pipe, Pipes

#: messages from this size on go through MPI, if they are not in shared memory
LARGE = 1 << 20
#: in place of a location: the writer cannot map that memory
_UNMAPPED = 0
#: entries of a message's cache of arrays over memory of other ranks
_CACHED = 64
_copyto = np.copyto


class Polled:
    """A request that is polled: the base of all requests where memory is shared."""

    __slots__ = ("_backoff",)

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff

    def _is_done(self) -> bool:
        """Take a step, where possible; whether the request is complete."""
        raise NotImplementedError

    def Test(self) -> bool:
        """Whether the request is complete; else let other messages progress."""
        if self._is_done():
            return True
        self._backoff.pause()
        return False

    def withdraw(self) -> MPI.Request | None:
        """Abandon the request: no other process changes its memory from now on.

        Returns the request of MPI that may still use the memory, if any.
        """
        raise NotImplementedError

    def Wait(self) -> None:
        """Wait until the request is complete."""
        if not self._is_done():
            while not self.Test():
                pass
            self._backoff.reset()


class Outgoing(Polled):
    """A message to a rank of the node, prepared except for the tag; a request once it is started.

    pipes: of its kind of calls. address, end: its memory. itemsize: pieces are multiples of it.
    send(tag): sends it through MPI.
    """

    __slots__ = (
        "_pipes", "_address", "_nbytes", "_location", "_epoch", "_bytes", "_itemsize", "_chunk",
        "_slots", "tag", "_pipe", "_sent", "_last", "_send", "_request",
    )  # fmt: skip

    def __init__(
        self,
        pipes: Pipes,
        address: int,
        end: int,
        itemsize: int,
        send: Callable[[int], MPI.Request],
    ) -> None:
        pipe = pipes.pipes[0]
        super().__init__(pipe.backoff)
        self._pipes = pipes
        self._address = address
        self._nbytes = end - address
        self._send = send
        self._locate()
        self._bytes = buffers.at(address, self._nbytes, np.uint8)
        self._itemsize = itemsize
        #: bytes of a piece
        self._chunk = min(self._nbytes, pipe.chunk // itemsize * itemsize)
        #: location and array of each slot, by pipe
        self._slots: dict[Pipe, list[tuple[int, Any]]] = {}

        # of the call under way
        self.tag = 0
        self._pipe = pipe
        #: bytes that are published
        self._sent = 0
        #: the pipe's count after the last entry
        self._last = 0
        self._request: MPI.Request | None = None

    def _locate(self) -> None:
        """Look up the location: an array may get new pages."""
        self._epoch = HEAP.epoch
        self._location = HEAP.location(self._address, self._nbytes)
        if self._location is None and self._nbytes >= LARGE:
            self._location = THROUGH_MPI

    def start(self, tag: int) -> Outgoing:
        """Start to send it; returns itself, as the request."""
        if self._epoch != HEAP.epoch:
            self._locate()
        self.tag = tag
        self._sent = 0
        self._pipe = self._pipes.of(tag)
        self._pipe.send(self)
        return self

    def advance(self) -> bool:
        """Publish as much as the pipe has room for; whether all is published."""
        pipe = self._pipe
        if self._location is not None:
            if pipe.unread >= ENTRIES:
                return False
            pipe.publish(self.tag, self._location, self._nbytes)
            self._last = pipe.published
            self._sent = self._nbytes
            if self._location == THROUGH_MPI:
                self._request = self._send(self.tag)
            return True
        slots = self._slots.get(pipe)
        if slots is None:
            found = pipe.slots(self._chunk, self._itemsize)
            room = found[0].array.size // self._itemsize * self._itemsize
            self._chunk = min(self._chunk, room)
            slots = [(slot.location, slot.array) for slot in found]
            self._slots[pipe] = slots
        while self._sent < self._nbytes:
            if pipe.unread >= len(slots):
                return False
            location, slot = slots[pipe.published % len(slots)]
            piece = self._bytes[self._sent : self._sent + self._chunk]
            _copyto(slot[: piece.size], piece)
            pipe.publish(self.tag, location, piece.size)
            self._sent += piece.size
        return True

    def _is_done(self) -> bool:
        """Whether its memory may be changed."""
        if self._sent < self._nbytes:
            self._pipe.push()
        return self._sent == self._nbytes and self._is_taken()

    def withdraw(self) -> MPI.Request | None:
        """Abandon it: receivers read the published message in the old pages."""
        HEAP.detach(self._address, self._nbytes)
        return self._request

    def _is_taken(self) -> bool:
        """Whether its memory may be changed, once all is published."""
        if self._location is None:
            return True
        if self._location == THROUGH_MPI:
            assert self._request is not None
            return self._request.Test()
        return self._pipe.read >= self._last


class Packing(Outgoing):
    """A message of a typed block, packed when it has its turn, into memory that ranks share.

    part: see `buffers.TypedPart`.
    """

    __slots__ = ("_part", "_is_packed")

    def __init__(self, part: buffers.TypedPart, *outgoing: Any) -> None:
        super().__init__(*outgoing)
        self._part = part
        self._is_packed = False

    def start(self, tag: int) -> Outgoing:
        """Start it; returns itself, as the request."""
        self._is_packed = False
        return super().start(tag)

    def advance(self) -> bool:
        """Pack it, and publish it; whether all is published."""
        if not self._is_packed:
            self._is_packed = True
            self._part.pack(self._bytes, 0, self._nbytes)
        return super().advance()


class Writing(Outgoing):
    """A message that is copied into the receiver's memory, or sent where that is not shared.

    inward: the pipes from the receiver, on which it publishes the location.
    """

    __slots__ = ("_inward", "_peer", "_opened", "_places", "_is_put")

    def __init__(self, inward: Pipes, peer: Neighbour, *outgoing: Any) -> None:
        super().__init__(*outgoing)
        self._inward = inward
        self._peer = peer
        #: arrays by location and bytes
        self._places: dict[tuple[int, int], Any] = {}
        #: location and bytes that the receiver has published in this call
        self._opened: tuple[int, int] | None = None
        #: whether it is copied there, and not sent
        self._is_put = False

    def start(self, tag: int) -> Outgoing:
        """Start it; returns itself, as the request."""
        self._opened = None
        return super().start(tag)

    def advance(self) -> bool:
        """Copy it, or publish as much as the pipe has room for; whether all is done."""
        opened = self._opened
        if opened is None:
            opened = self._opened = self._inward.of(self.tag).opening(self.tag, self._peer)
            if opened is None:
                return False
            self._is_put = opened[0] != _UNMAPPED
        if not self._is_put:
            return super().advance()
        if self._pipe.unread >= ENTRIES:
            return False
        landing = self._places.get(opened)
        if landing is None:
            landing = _place(opened, self._peer, np.uint8, self._places)
        _copyto(landing, self._bytes)
        self._pipe.publish(self.tag, WRITTEN, self._nbytes)
        self._sent = self._nbytes
        return True

    def _is_taken(self) -> bool:
        return self._is_put or super()._is_taken()


class Distant(Polled):
    """An MPI request, to or from another node, that lets messages of this node progress."""

    __slots__ = ("_request",)

    def __init__(self, request: MPI.Request, backoff: Backoff) -> None:
        super().__init__(backoff)
        self._request = request

    def _is_done(self) -> bool:
        return self._request.Test()

    def withdraw(self) -> MPI.Request | None:
        """Abandon it: MPI may still use its memory."""
        return self._request


class Incoming(Polled):
    """A message from a rank of the node, prepared except for the tag; a request once it is started.

    landing: where a message through MPI goes; receive(tag): receives it there.
    take(array): takes the whole message from memory of the sender, or from `landing`.
    take_part(array, start, end): takes its elements `start` to `end`.
    """

    __slots__ = (
        "_pipes", "_peer", "_landing", "_take", "_take_part", "_places", "tag", "_pipe", "_taken",
        "_receive", "_request",
    )  # fmt: skip

    def __init__(
        self,
        pipes: Pipes,
        peer: Neighbour,
        landing: Any,
        receive: Callable[[int], MPI.Request],
        take: Callable[[Any], object],
        take_part: Callable[[Any, int, int], object],
    ) -> None:
        pipe = pipes.pipes[0]
        super().__init__(pipe.backoff)
        self._pipes = pipes
        self._peer = peer
        self._landing = landing
        self._receive = receive
        self._take = take
        self._take_part = take_part
        #: arrays by location and bytes
        self._places: dict[tuple[int, int], Any] = {}

        # of the call under way
        self.tag = 0
        self._pipe = pipe
        #: elements that have been taken
        self._taken = 0
        self._request: MPI.Request | None = None

    def start(self, tag: int) -> Incoming:
        """Expect it; returns itself, as the request."""
        self.tag = tag
        self._taken = 0
        self._pipe = self._pipes.of(tag)
        return self

    def _is_done(self) -> bool:
        """Take the next piece, if there is one; whether the message is complete."""
        if self._request is not None:
            return self._has_landed()
        pipe = self._pipe
        place = pipe.next(self.tag, self._peer)
        if place is None:
            return False
        piece = self._places.get(place)
        if piece is None:
            if place[0] == THROUGH_MPI:
                pipe.acknowledge(self.tag)
                self._request = self._receive(self.tag)
                return self._has_landed()
            if place[0] == WRITTEN:
                pipe.acknowledge(self.tag)
                return True
            piece = _place(place, self._peer, self._landing.dtype, self._places)
        start, whole = self._taken, self._landing.size
        self._taken = end = start + piece.size
        if piece.size == whole:
            self._take(piece)
        else:
            self._take_part(piece, start, end)
        pipe.acknowledge(self.tag)
        return bool(end == whole)

    def withdraw(self) -> MPI.Request | None:
        """Abandon it: only MPI writes into its memory."""
        return self._request

    def _has_landed(self) -> bool:
        assert self._request is not None
        if not self._request.Test():
            return False
        self._request = None
        if self._pipe.words[GIVEN_UP]:  # the sender may have changed its memory before MPI sent it
            self._pipe.backoff.look(surely=True)
        self._take(self._landing)
        return True


class Landing(Incoming):
    """A message that the sender may copy into place itself, from `start` on.

    outward: the pipes to the sender, on which this rank publishes the location.
    """

    __slots__ = ("_outward", "_outlet", "_location", "_epoch")

    def __init__(self, outward: Pipes, *incoming: Any) -> None:
        super().__init__(*incoming)
        self._outward = outward
        #: the pipe of the call under way
        self._outlet = outward.pipes[0]
        self._locate()

    def _locate(self) -> None:
        self._epoch = HEAP.epoch
        address = buffers.address(self._landing)
        self._location = HEAP.location(address, self._landing.nbytes) or _UNMAPPED

    def start(self, tag: int) -> Incoming:
        """Publish the location; returns itself, as the request."""
        super().start(tag)
        if self._epoch != HEAP.epoch:
            self._locate()
        self._outlet = self._outward.of(tag)
        self._outlet.send(self)
        return self

    def withdraw(self) -> MPI.Request | None:
        """Abandon it: the sender writes to the old pages."""
        HEAP.detach(buffers.address(self._landing), self._landing.nbytes)
        return super().withdraw()

    def advance(self) -> bool:
        """Publish the location, if the pipe has room; whether that is done."""
        if self._outlet.unread >= ENTRIES:
            return False
        self._outlet.publish(self.tag, self._location, self._landing.nbytes + OPEN)
        return True


def _place(
    place: tuple[int, int], peer: Neighbour, dtype: Any, cache: dict[tuple[int, int], Any]
) -> Any:
    """An array over memory of another rank, by location and bytes; enters it into the cache."""
    if len(cache) >= _CACHED:
        cache.clear()
    location, nbytes = place
    # below 0: a message that was set aside, by its address in this process
    address = -location if location < 0 else peer.address(location)
    array = cache[place] = buffers.at(address, nbytes, dtype)
    return array
