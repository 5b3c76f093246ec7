"""The ranges of a file of shared memory: what is in use, what is free, and where it is mapped."""

from __future__ import annotations

import mmap
from bisect import bisect_right, insort
from typing import NamedTuple

from .mapping import Mapping

PAGE = mmap.PAGESIZE
#: bytes of a segment of small blocks; a larger block has its own segment
SEGMENT = 64 << 20
#: bytes of the table at the begin of the file: a token that identifies the file, then (offset,
#: bytes) of each segment, or 0
TABLE_BYTES = 64 << 10
#: where the last word of the table is: 1 while the process sleeps until another one wakes it
SLEEPS = TABLE_BYTES - 8


def offset_of(mapping: Mapping) -> int:
    """The begin of the range of the file; a sort key."""
    return mapping.offset


class Ranges(NamedTuple):
    """What a heap has. It never changes: a change makes another one, see `heap`."""

    #: the end of the file
    end: int = TABLE_BYTES
    #: sorted by offset
    segments: tuple[Mapping, ...] = ()
    #: (address, its end, location minus address), sorted
    places: tuple[tuple[int, int, int], ...] = ()
    #: (begin, end) of free locations, sorted
    free: tuple[tuple[int, int], ...] = ()

    def segment_of(self, location: int) -> Mapping:
        """The segment of a location."""
        return self.segments[bisect_right(self.segments, location, key=offset_of) - 1]

    # Each of these returns what the heap has then, and a result.

    def taking(self, size: int, align: int) -> tuple[Ranges, int | None]:
        """Take the first free bytes that are large enough: their location, or None."""
        for at, (low, high) in enumerate(self.free):
            start = -(-low // align) * align
            if high - start >= size:
                rest = ((low, start), (start + size, high))
                kept = tuple((begin, end) for begin, end in rest if begin < end)
                free = self.free[:at] + kept + self.free[at + 1 :]
                return self._replace(free=free), start
        return self, None

    def giving_back(self, low: int, high: int) -> tuple[Ranges, Mapping | None]:
        """Make bytes free; of a block with a segment of its own: take the segment instead."""
        free = list(self.free)
        at = bisect_right(free, (low, high))
        if at < len(free) and free[at][0] == high:
            high = free.pop(at)[1]
        if at and free[at - 1][1] == low:
            at -= 1
            low = free.pop(at)[0]
        segment = self.segment_of(low)
        is_whole = segment.nbytes > SEGMENT and (low, high) == (segment.offset, segment.end)
        if not is_whole:
            free.insert(at, (low, high))
        return self._replace(free=tuple(free)), segment if is_whole else None

    def reserving(self, nbytes: int) -> tuple[Ranges, int]:
        """Reserve a range at the end of the file: its offset."""
        offset = self.end + PAGE  # a gap: free blocks of two ranges never join
        return self._replace(end=offset + nbytes), offset

    def leaving(self, offset: int, nbytes: int) -> tuple[Ranges, None]:
        """Leave a range that was reserved, if it is the last one."""
        is_last = self.end == offset + nbytes
        return self._replace(end=offset - PAGE if is_last else self.end), None

    def adding(self, segment: Mapping) -> tuple[Ranges, None]:
        """Add a segment, all of whose bytes are free."""
        segments = [*self.segments]
        insort(segments, segment, key=offset_of)
        free = sorted([*self.free, (segment.offset, segment.end)])
        covered, _ = self.covering(segment.address, segment.nbytes, segment.offset)
        return covered._replace(segments=tuple(segments), free=tuple(free)), None

    def removing(self, segment: Mapping) -> tuple[Ranges, None]:
        """Remove a segment without blocks."""
        segments = tuple(other for other in self.segments if other is not segment)
        covered, _ = self.covering(segment.address, segment.nbytes, None)
        return covered._replace(segments=segments), None

    def covering(self, address: int, nbytes: int, offset: int | None) -> tuple[Ranges, None]:
        """Set the location of addresses to `offset`; None: other processes cannot map them."""
        end = address + nbytes
        places = []
        for low, high, origin in self.places:
            if low < address:
                places.append((low, min(high, address), origin))
            if high > end:
                places.append((max(low, end), high, origin))
        if offset is not None:
            places.append((address, end, offset - address))
        return self._replace(places=tuple(sorted(places))), None
