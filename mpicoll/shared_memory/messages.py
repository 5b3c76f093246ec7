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
from .ring import ENTRIES, PLACES, PUBLISHED, READ, SLOTS, Lane, Pace, lane_of

#: messages from this size on go through MPI, where they lie in memory that is not shared; what the receiver is told of them
_LARGE, _THROUGH_MPI = 1 << 20, 0
#: places of other ranks' memory that a message remembers
_REMEMBERED = 64
_copyto = np.copyto


class Outgoing:
    """A message to a rank of the node, ready but for the tag: a request once it is started.

    lanes: that calls of its kind use. address, end: where it lies. itemsize: where it may be cut. send(tag): sends it
    through MPI.
    """

    __slots__ = ("lanes", "nbytes", "_location", "_bytes", "_chunk", "_slots", "_tag", "_lane", "_sent", "_last", "_send",
                 "_request")  # fmt: skip

    def __init__(
        self, lanes: list[Lane], address: int, end: int, itemsize: int, send: Callable[[int], MPI.Request]
    ) -> None:
        nbytes = end - address
        self.lanes, self.nbytes, self._send = lanes, nbytes, send
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
        lanes = self.lanes
        self._lane = lane = lanes[0] if len(lanes) == 1 else lane_of(lanes, tag)
        if lane.waiting or not self.advance():
            lane.waiting.append(self)
            if lane not in lane.pace.unfinished:
                lane.pace.unfinished.append(lane)
        return self

    def advance(self) -> bool:
        """Publish what can be; whether all is."""
        lane, words = self._lane, self._lane.words
        count = lane.count
        if self._location is not None:
            if count - words[READ] >= ENTRIES:
                return False
            place = PLACES[count % ENTRIES]
            words[place], words[place + 1], words[place + 2] = self._tag, self._location, self.nbytes
            lane.count = self._last = words[PUBLISHED] = count + 1
            self._sent = self.nbytes
            if self._location == _THROUGH_MPI:
                self._request = self._send(self._tag)
            return True
        slots = self._slots.get(lane)
        if slots is None:
            slots = self._slots[lane] = [(slot.location, slot.array[: self._chunk]) for slot in lane.slots(self._chunk)]
        while self._sent < self.nbytes:
            if count - words[READ] >= SLOTS:
                return False
            location, slot = slots[count % SLOTS]
            nbytes = self._chunk
            if nbytes == self.nbytes:
                _copyto(slot, self._bytes)
            else:
                rest = self._bytes[self._sent : self._sent + nbytes]
                nbytes = rest.size
                _copyto(slot[:nbytes], rest)
            place = PLACES[count % ENTRIES]
            words[place], words[place + 1], words[place + 2] = self._tag, location, nbytes
            lane.count = count = words[PUBLISHED] = count + 1
            self._sent += nbytes
        return True

    def Test(self) -> bool:
        """Whether its memory may be used again."""
        lane = self._lane
        if self._sent < self.nbytes:
            lane.push()
            if self._sent < self.nbytes:
                lane.pace.pause()
                return False
        if self._location is None:
            return True
        if self._location == _THROUGH_MPI:
            assert self._request is not None
            if self._request.Test():
                return True
            lane.pace.pause()
            return False
        if lane.words[READ] >= self._last:
            return True
        lane.pace.pause()
        return False

    def Wait(self) -> None:
        """Come back when it may."""
        if not self.Test():
            while not self.Test():
                pass
            self._lane.pace.go()


class Distant:
    """A request of MPI's for a message to or from another node: while it is awaited, what is half sent in this one goes on."""

    __slots__ = ("_request", "_pace")

    def __init__(self, request: MPI.Request, pace: Pace) -> None:
        self._request, self._pace = request, pace

    def Test(self) -> bool:
        """Whether it is through."""
        if self._request.Test():
            return True
        self._pace.pause()
        return False

    def Wait(self) -> None:
        """Come back when it is."""
        if not self.Test():
            while not self.Test():
                pass
            self._pace.go()


class Incoming:
    """A message from a rank of the node, ready but for the tag: a request once it is started.

    take(theirs): takes what lies in the other rank's memory. take_part(theirs, start, end): elements start to end of
    `landing`, where a message goes that comes through MPI; receive(tag): receives it there, and then it is taken from there.
    """

    __slots__ = ("lanes", "_peer", "_landing", "_take", "_take_part", "_places", "_tag", "_lane", "_read", "_receive",
                 "_request")  # fmt: skip

    def __init__(
        self, lanes: list[Lane], peer: Neighbour, landing: Any, receive: Callable[[int], MPI.Request],
        take: Callable[[Any], object], take_part: Callable[[Any, int, int], object],
    ) -> None:  # fmt: skip
        self.lanes, self._peer, self._landing, self._receive = lanes, peer, landing, receive
        self._take, self._take_part = take, take_part
        self._request: MPI.Request | None = None
        self._places: dict[tuple[int, int], Any] = {}
        self._tag = self._read = 0
        self._lane = lanes[0]

    def start(self, tag: int) -> Incoming:
        """Expect it; returns itself, as the request."""
        self._tag, self._read = tag, 0
        lanes = self.lanes
        self._lane = lanes[0] if len(lanes) == 1 else lane_of(lanes, tag)
        return self

    def Test(self) -> bool:
        """Whether it was received; takes what has come."""
        if self._request is not None:
            return self._has_landed()
        lane = self._lane
        words, count = lane.words, lane.count
        if words[PUBLISHED] <= count:
            lane.pace.pause()
            return False
        place = PLACES[count % ENTRIES]
        if words[place] != self._tag:  # of a call that this rank will come to later
            lane.pace.pause()
            return False
        found = words[place + 1], words[place + 2]
        theirs = self._places.get(found)
        count += 1
        if theirs is None:
            if not found[0]:
                lane.count = words[READ] = count
                self._request = self._receive(self._tag)
                return self._has_landed()
            theirs = self._found(*found)
        if theirs.size == self._landing.size:
            self._take(theirs)
            lane.count = words[READ] = count
            return True
        start = self._read
        self._read = end = start + theirs.size
        self._take_part(theirs, start, end)
        lane.count = words[READ] = count
        return bool(end == self._landing.size)

    def _has_landed(self) -> bool:
        assert self._request is not None
        if not self._request.Test():
            self._lane.pace.pause()
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

    def Wait(self) -> None:
        """Come back when it was."""
        if not self.Test():
            while not self.Test():
                pass
            self._lane.pace.go()
