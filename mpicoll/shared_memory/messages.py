"""Messages between ranks of a node: where they lie is told, and the receiver reads or reduces them there.

What lies in memory that is shared is not copied: it is sent when it was read. All else is copied to the lane's slots, piece
by piece, and is sent when it lies there; where it is large MPI copies it once instead of twice, and the receiver is told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from .. import buffers
from .heap import HEAP
from .neighbours import Neighbour
from .ring import ENTRIES, SLOTS, Lane, Pace, lane_of

#: messages from this size on go through MPI, where they lie in memory that is not shared; what the receiver is told of them
_LARGE, _THROUGH_MPI = 1 << 20, 0
#: places of other ranks' memory that a message remembers
_REMEMBERED = 64
_copyto = np.copyto


class _Polled:
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

    def Wait(self) -> None:
        """Come back when it is."""
        if not self._is_done():
            while not self.Test():
                pass
            self._pace.go()


class Outgoing(_Polled):
    """A message to a rank of the node, ready but for the tag: a request once it is started.

    lanes: that calls of its kind use. address, end: where it lies. itemsize: where it may be cut. send(tag): sends it
    through MPI.
    """

    __slots__ = ("_lanes", "_nbytes", "_location", "_bytes", "_chunk", "_slots", "_tag", "_lane", "_sent", "_last", "_send",
                 "_request")  # fmt: skip

    def __init__(
        self, lanes: list[Lane], address: int, end: int, itemsize: int, send: Callable[[int], MPI.Request]
    ) -> None:
        super().__init__(lanes[0].pace)
        nbytes = end - address
        self._lanes, self._nbytes, self._send = lanes, nbytes, send
        self._location = HEAP.location(address, nbytes)
        self._request: MPI.Request | None = None
        if self._location is None and nbytes >= _LARGE:
            self._location = _THROUGH_MPI
        self._bytes = buffers.at(address, nbytes, np.uint8)
        self._chunk = min(nbytes, lanes[0].chunk // itemsize * itemsize)
        self._slots: dict[Lane, list[tuple[int, Any]]] = {}
        self._tag = self._sent = self._last = 0
        self._lane = lanes[0]

    def start(self, tag: int) -> Outgoing:
        """Begin to send it; returns itself, as the request."""
        self._tag, self._sent = tag, 0
        self._lane = lane = lane_of(self._lanes, tag)
        if lane.waiting or not self.advance():
            lane.waiting.append(self)
            if lane not in self._pace.unfinished:
                self._pace.unfinished.append(lane)
        return self

    def advance(self) -> bool:
        """Publish what can be; whether all is."""
        lane = self._lane
        if self._location is not None:
            if lane.unread >= ENTRIES:
                return False
            lane.publish(self._tag, self._location, self._nbytes)
            self._last, self._sent = lane.count, self._nbytes
            if self._location == _THROUGH_MPI:
                self._request = self._send(self._tag)
            return True
        slots = self._slots.get(lane)
        if slots is None:
            slots = self._slots[lane] = [(slot.location, slot.array[: self._chunk]) for slot in lane.slots(self._chunk)]
        while self._sent < self._nbytes:
            if lane.unread >= SLOTS:
                return False
            location, slot = slots[lane.count % SLOTS]
            piece = self._bytes[self._sent : self._sent + self._chunk]
            _copyto(slot[: piece.size], piece)
            lane.publish(self._tag, location, piece.size)
            self._sent += piece.size
        return True

    def _is_done(self) -> bool:
        """Whether its memory may be used again."""
        if self._sent < self._nbytes:
            self._lane.push()
        if self._sent < self._nbytes:
            return False
        if self._location is None:
            return True
        if self._location == _THROUGH_MPI:
            assert self._request is not None
            return self._request.Test()
        return self._lane.read >= self._last


class Distant(_Polled):
    """A request of MPI's for a message to or from another node: while it is awaited, what is half sent in this one goes on."""

    __slots__ = ("_request",)

    def __init__(self, request: MPI.Request, pace: Pace) -> None:
        super().__init__(pace)
        self._request = request

    def _is_done(self) -> bool:
        return self._request.Test()


class Incoming(_Polled):
    """A message from a rank of the node, ready but for the tag: a request once it is started.

    take(theirs): takes what lies in the other rank's memory. take_part(theirs, start, end): elements start to end of
    `landing`, where a message goes that comes through MPI; receive(tag): receives it there, and then it is taken from there.
    """

    __slots__ = ("_lanes", "_peer", "_landing", "_take", "_take_part", "_places", "_tag", "_lane", "_taken", "_receive",
                 "_request")  # fmt: skip

    def __init__(
        self, lanes: list[Lane], peer: Neighbour, landing: Any, receive: Callable[[int], MPI.Request],
        take: Callable[[Any], object], take_part: Callable[[Any, int, int], object],
    ) -> None:  # fmt: skip
        super().__init__(lanes[0].pace)
        self._lanes, self._peer, self._landing, self._receive = lanes, peer, landing, receive
        self._take, self._take_part = take, take_part
        self._request: MPI.Request | None = None
        self._places: dict[tuple[int, int], Any] = {}
        self._tag = self._taken = 0
        self._lane = lanes[0]

    def start(self, tag: int) -> Incoming:
        """Expect it; returns itself, as the request."""
        self._tag, self._taken = tag, 0
        self._lane = lane_of(self._lanes, tag)
        return self

    def _is_done(self) -> bool:
        """Whether it was received; takes what has come."""
        if self._request is not None:
            return self._has_landed()
        lane = self._lane
        found = lane.next(self._tag)
        if found is None:
            return False
        theirs = self._places.get(found)
        if theirs is None:
            if found[0] == _THROUGH_MPI:
                lane.acknowledge()
                self._request = self._receive(self._tag)
                return self._has_landed()
            theirs = self._found(*found)
        start, whole = self._taken, self._landing.size
        self._taken = end = start + theirs.size
        if theirs.size == whole:
            self._take(theirs)
        else:
            self._take_part(theirs, start, end)
        lane.acknowledge()
        return bool(end == whole)

    def _has_landed(self) -> bool:
        assert self._request is not None
        if not self._request.Test():
            return False
        self._request = None
        self._take(self._landing)
        return True

    def _found(self, location: int, nbytes: int) -> Any:
        if len(self._places) >= _REMEMBERED:
            self._places.clear()
        theirs = buffers.at(self._peer.address(location), nbytes, self._landing.dtype)
        self._places[location, nbytes] = theirs
        return theirs
