"""The memory of this process that other processes of the node can map: blocks of a file in memory.

The file has no name (memfd): a crash leaves no file, and the size of /dev/shm does not matter. A
page takes memory from its first write until its block is released. Other processes open the file as
/proc/PID/fd/FD; it begins with a table of the segments, the ranges of the file in use. A location
is an offset in the file. Ranges are never reused, so a location identifies its memory for ever.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from math import prod
from operator import index
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from ..errors import ArgumentError
from ..support.forks import lock_for_forks
from ..support.garbage import without_collection
from .limits import explained, memory_of_node
from .mapping import Mapping, punch, words_at

_PAGE = mmap.PAGESIZE
#: bytes of a segment of small blocks; a larger block has its own segment
_SEGMENT = 64 << 20
_ALIGN = 128
#: bytes of the table: a token that identifies the file, then (offset, bytes) of each segment, or 0
TABLE_BYTES = 64 << 10
_ENTRIES = TABLE_BYTES // 16 - 1
#: blocks from this size on return their memory to the system when they are released
_LARGE = 1 << 20
#: bytes of one write
_MOST_WRITTEN = 1 << 30


class Block(NamedTuple):
    """Bytes of the heap."""

    #: in all processes
    location: int
    #: in this process
    address: int
    nbytes: int


class SegmentTable:
    """The table of the segments of a heap: its owner writes it, other processes read it."""

    def __init__(self, words: Any) -> None:
        self._words = words

    @property
    def token(self) -> int:
        """The number that identifies the file."""
        token: int = self._words[0]
        return token

    @token.setter
    def token(self, token: int) -> None:
        self._words[0] = token

    def enter(self, offset: int, nbytes: int) -> None:
        """Add a segment. Raises OSError where the table is full."""
        for at in range(1, 1 + 2 * _ENTRIES, 2):
            if not self._words[at + 1]:
                self._words[at] = offset
                self._words[at + 1] = nbytes
                return
        raise OSError(f"{_ENTRIES} segments are in use")

    def remove(self, offset: int) -> None:
        """Remove the segment at an offset."""
        for at in range(1, 1 + 2 * _ENTRIES, 2):
            if self._words[at + 1] and self._words[at] == offset:
                self._words[at + 1] = 0
                return

    def segments(self) -> dict[int, int]:
        """The bytes of each segment, by its offset."""
        words = self._words.tolist()
        return {offset: nbytes for offset, nbytes in zip(words[1::2], words[2::2]) if nbytes}


class Heap:
    """All shared memory of this process."""

    def __init__(self) -> None:
        #: identifies the file
        self.token = int.from_bytes(os.urandom(8), "big") >> 1
        #: whether the user has made an array in it
        self.in_use = False
        #: changes whenever an address may have a new location; in memory that the extension knows
        self._epoch = array("Q", [0])
        #: this is a child process, which shares nothing
        self.is_inherited = False
        self._descriptor = -1
        self._table = SegmentTable(None)
        #: the end of the file
        self._end = 0
        #: sorted by offset
        self._segments: list[Mapping] = []
        #: (address, its end, location minus address), sorted
        self._places: list[tuple[int, int, int]] = []
        #: (begin, end) of free locations, sorted
        self._free: list[tuple[int, int]] = []
        #: arrays of the user, by address
        self._arrays: dict[int, Block] = {}
        #: new pages of arrays by `detach`, by address
        self._detached: dict[int, list[Mapping]] = {}
        #: blocks that finalizers returned; a finalizer may interrupt any statement
        self._returned: deque[Block] = deque()
        self._lock = lock_for_forks()

    @property
    def epoch(self) -> int:
        """A number that changes whenever an address may have a new location."""
        return self._epoch[0]

    @property
    def epoch_at(self) -> int:
        """The address of the epoch."""
        return self._epoch.buffer_info()[0]

    def descriptor(self) -> int:
        """The descriptor of the file."""
        with self._lock, explained("which shares none so far"):
            if self._descriptor < 0:
                self._create()
            return self._descriptor

    def acquire(self, nbytes: int, align: int = _ALIGN) -> Block:
        """A block, padded to a multiple of `align`. Raises SharedMemoryError without memory."""
        size = max(align, -(-nbytes // align) * align)
        purpose = f"which shares {self._end} bytes and asked for {size} more"
        with self._lock, explained(purpose):  # a finalizer may make an array
            if self.is_inherited:
                raise OSError("a child process shares none")
            return without_collection(self._acquire, size, align)

    def _acquire(self, size: int, align: int) -> Block:
        self.descriptor()
        while self._returned:
            self._put_back(self._returned.popleft())
        location = self._first_fit(size, align)
        if location is None:
            self._add(size)
            location = self._first_fit(size, align)
        assert location is not None
        segment = self._segment_of(location)
        return Block(location, segment.address + location - segment.offset, size)

    def _first_fit(self, size: int, align: int) -> int | None:
        """Take the first free bytes that are large enough; returns their location."""
        for place, (low, high) in enumerate(self._free):
            start = -(-low // align) * align
            if high - start >= size:
                rest = [(low, start), (start + size, high)]
                self._free[place : place + 1] = [(begin, end) for begin, end in rest if begin < end]
                return start
        return None

    def release(self, block: Block) -> None:
        """Return a block to the heap; it becomes free at the next `acquire`."""
        self._returned.append(block)

    def array(
        self, shape: tuple[int, ...], dtype: "np.dtype[Any]", is_scratch: bool = False
    ) -> "np.ndarray[Any, Any]":
        """An array that releases its memory with its last view.

        Raises SharedMemoryError without memory.

        It shares no page with other blocks, so that it can be detached. is_scratch: it is not the
        user's.
        """
        nbytes = prod(shape) * dtype.itemsize
        block = self.acquire(nbytes, _PAGE)
        # each view of an array, and each view of a view, refers to this object
        memory: Any = (ctypes.c_char * nbytes).from_address(block.address)
        self._arrays[block.address] = block
        weakref.finalize(memory, self.release, block).atexit = False
        if not self.in_use and not is_scratch:
            self.in_use = True
            self._epoch[0] += 1  # from now on it matters where arrays lie
        return np.ndarray(shape, dtype, memory)

    def location(self, address: int, nbytes: int) -> int | None:
        """The location of these bytes; None for memory that other processes cannot map."""
        places = self._places
        place = bisect_right(places, (address, 1 << 64, 0)) - 1
        if place < 0:
            return None
        _, end, origin = places[place]
        return address + origin if address + nbytes <= end else None

    def detach(self, address: int, nbytes: int) -> None:
        """Give the arrays there new pages: same address, same contents, another location.

        Other processes keep the old pages until the array is released; their late writes are lost.
        Without memory for new pages the array keeps its own.
        """
        with self._lock, suppress(OSError):  # a finalizer may make an array
            without_collection(self._detach_all, address, address + nbytes)

    def _detach_all(self, begin: int, end: int) -> None:
        for block in list(self._arrays.values()):
            if block.address < end and begin < block.address + block.nbytes:
                self._detach(block)

    def _detach(self, block: Block) -> None:
        offset = self._grow(block.nbytes)
        memory = memoryview((ctypes.c_char * block.nbytes).from_address(block.address))
        written = 0
        while written < block.nbytes:
            piece = memory[written : written + _MOST_WRITTEN]
            written += os.pwrite(self._descriptor, piece, offset + written)
        self._table.enter(offset, block.nbytes)
        mapping = Mapping(self._descriptor, offset, block.nbytes, block.address)
        self._cover(block.address, block.nbytes, offset)
        self._detached.setdefault(block.address, []).append(mapping)

    # Segments.

    def _create(self) -> None:
        """Create the file and its table."""
        descriptor = os.memfd_create("mpicoll")
        try:
            os.ftruncate(descriptor, TABLE_BYTES)
            table = Mapping(descriptor, 0, TABLE_BYTES)
        except OSError:
            os.close(descriptor)
            raise
        self._end = TABLE_BYTES
        self._segments = [table]
        self._table = SegmentTable(words_at(table.address, TABLE_BYTES))
        self._table.token = self.token
        self._descriptor = descriptor

    def _grow(self, nbytes: int) -> int:
        """The offset of a new range of the file."""
        offset = self._end + _PAGE  # a gap: free blocks of two ranges never join
        os.ftruncate(self._descriptor, offset + nbytes)
        self._end = offset + nbytes
        return offset

    def _add(self, nbytes: int) -> None:
        """Add a segment with room for a block of `nbytes`."""
        size = max(_SEGMENT, -(-nbytes // _PAGE) * _PAGE)
        segment = Mapping(self._descriptor, self._grow(size), size)
        try:
            self._table.enter(segment.offset, size)
        except OSError:
            segment.close()
            raise
        self._segments.append(segment)
        self._free.append((segment.offset, segment.end))
        self._cover(segment.address, size, segment.offset)

    def _segment_of(self, location: int) -> Mapping:
        return self._segments[bisect_right(self._segments, location, key=offset_of) - 1]

    def _cover(self, address: int, nbytes: int, offset: int | None) -> None:
        """Set the location of addresses to `offset`; None: other processes cannot map them."""
        end = address + nbytes
        places = []
        for low, high, origin in self._places:
            if low < address:
                places.append((low, min(high, address), origin))
            if high > end:
                places.append((max(low, end), high, origin))
        if offset is not None:
            places.append((address, end, offset - address))
        self._places = sorted(places)
        self._epoch[0] += 1

    def _put_back(self, block: Block) -> None:
        """Make a returned block free."""
        self._arrays.pop(block.address, None)
        detached = self._detached.pop(block.address, None)
        if block.nbytes >= _LARGE or detached:
            punch(self._descriptor, block.location, block.nbytes)
        if detached:
            self._retire_detached(block, detached)
        else:
            self._join(block.location, block.location + block.nbytes)

    def _join(self, low: int, high: int) -> None:
        """Make bytes free, joined with adjacent free bytes."""
        place = bisect_right(self._free, (low, high))
        if place < len(self._free) and self._free[place][0] == high:
            high = self._free.pop(place)[1]
        if place and self._free[place - 1][1] == low:
            place -= 1
            low = self._free.pop(place)[0]
        self._free.insert(place, (low, high))
        segment = self._segment_of(low)
        if segment.nbytes > _SEGMENT and (low, high) == (segment.offset, segment.end):
            del self._free[place]
            self._retire(segment)

    def _retire(self, segment: Mapping) -> None:
        """Remove a segment without blocks, which no other process uses any more."""
        self._segments.remove(segment)
        self._table.remove(segment.offset)
        self._cover(segment.address, segment.nbytes, None)
        segment.close()

    def _retire_detached(self, block: Block, mappings: list[Mapping]) -> None:
        """Release a detached array.

        Its place in its first segment is not reused: other processes may write there late.
        """
        for mapping in mappings:
            punch(self._descriptor, mapping.offset, mapping.nbytes)
            self._table.remove(mapping.offset)
            mapping.close(unmap=False)
        self._cover(block.address, block.nbytes, None)
        segment = self._segment_of(block.location)
        if segment.nbytes > _SEGMENT:
            self._retire(segment)

    def leave_to_parent(self) -> None:
        """In a child process: stop sharing, and leave the parent's memory unchanged."""
        if not self.is_inherited:
            self.is_inherited = True
            self._places = []
            self._epoch[0] += 1
            Mapping.all_become_private()


def offset_of(mapping: Mapping) -> int:
    """The begin of the range of the file; a sort key."""
    return mapping.offset


#: the heap of this process, for all communicators
HEAP = Heap()
os.register_at_fork(after_in_child=HEAP.leave_to_parent)


def shared_array(shape: Any, dtype: Any, shared: bool) -> "np.ndarray[Any, Any]":
    """An array of the heap, or, where it is not shared with any process, a usual array.

    Raises ArgumentError where shape or dtype are invalid, or memory is missing.
    """
    try:
        kind = np.dtype(dtype)
        lengths = tuple(map(index, shape if isinstance(shape, Iterable) else (shape,)))
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"no array of shape {shape!r} and dtype {dtype!r}: {error}") from None
    if kind.hasobject or any(length < 0 for length in lengths):
        why = "Python objects cannot be shared" if kind.hasobject else "a length is negative"
        raise ArgumentError(f"no array of shape {shape!r} and dtype {kind}: {why}")
    nbytes = prod(lengths) * kind.itemsize
    limit = memory_of_node()
    if nbytes > limit:
        available = f"this node has {limit} bytes of memory for this process"
        raise ArgumentError(f"an array of {nbytes} bytes: {available}")
    try:
        if shared and nbytes and not HEAP.is_inherited:
            return HEAP.array(lengths, kind)
        return np.empty(lengths, kind)
    except (OSError, MemoryError, OverflowError, ValueError) as error:
        raise ArgumentError(f"no {nbytes} bytes of memory that ranks can share: {error}") from error


def scratch(nbytes: int, dtype: Any) -> "np.ndarray[Any, Any]":
    """A vector that other ranks of the node can read, or a usual one without such memory."""
    kind = np.dtype(dtype)
    try:
        return HEAP.array((nbytes // kind.itemsize,), kind, is_scratch=True)
    except OSError:
        return np.empty(nbytes // kind.itemsize, kind)


#: in place of NumPy, for a pool of memory that ranks of the node share
SHARED = SimpleNamespace(empty=scratch)
