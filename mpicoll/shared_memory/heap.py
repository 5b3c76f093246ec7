"""The memory of this process that others of its node can map: blocks of one file in memory.

The file has no name (memfd), so that nothing is left behind and a small /dev/shm does not matter. It takes no memory before
it is written, and none after the block it was written in is given back. Others open it as /proc/PID/fd/FD; its beginning is
a table of the segments, the ranges of the file that are in use. A location is an offset in the file. Ranges are never used
again, so that a location says for good which memory is meant.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from math import prod
from operator import index
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import ArgumentError
from ..support.garbage import no_collection
from .mapping import Mapping, punch, words_at

_PAGE = mmap.PAGESIZE
#: bytes of a segment of small blocks; a larger block has a segment of its own, which ends with it
_SEGMENT = 64 << 20
_ALIGN = 128
#: bytes of the table: a token by which a process knows that it has mapped the right file, then (offset, bytes) of each
#: segment, zeros where there is none
TABLE_BYTES = 64 << 10
_ENTRIES = TABLE_BYTES // 16 - 1
#: blocks from this size on give their memory back when they are freed
_LARGE = 1 << 20
#: bytes written at a time
_MOST_WRITTEN = 1 << 30


class Block(NamedTuple):
    """Bytes of the heap. location: as other processes know them; address: where they lie in this one."""

    location: int
    address: int
    nbytes: int


class Table:
    """The segments of a heap, as its owner writes them down and other processes read them. words: of the table."""

    def __init__(self, words: Any) -> None:
        self._words = words

    @property
    def token(self) -> int:
        """By which the file is known."""
        token: int = self._words[0]
        return token

    @token.setter
    def token(self, token: int) -> None:
        self._words[0] = token

    def enter(self, offset: int, nbytes: int) -> None:
        """One more segment. Raises OSError where there is no room."""
        for at in range(1, 1 + 2 * _ENTRIES, 2):
            if not self._words[at + 1]:
                self._words[at] = offset
                self._words[at + 1] = nbytes
                return
        raise OSError(f"{_ENTRIES} segments are in use")

    def remove(self, offset: int) -> None:
        """One less."""
        for at in range(1, 1 + 2 * _ENTRIES, 2):
            if self._words[at + 1] and self._words[at] == offset:
                self._words[at + 1] = 0
                return

    def segments(self) -> dict[int, int]:
        """The bytes of each, by its offset."""
        words = self._words.tolist()
        return {offset: nbytes for offset, nbytes in zip(words[1::2], words[2::2]) if nbytes}


class Heap:
    """All shared memory of this process.

    token: by which others know it. in_use: whether there is an array of a user's in it. epoch: changes whenever an address
    may have got another location. is_inherited: this is a child process, which shares nothing.
    """

    def __init__(self) -> None:
        self.token = int.from_bytes(os.urandom(8), "big") >> 1
        self.in_use = False
        self.epoch = 0
        self.is_inherited = False
        self._descriptor = -1
        self._table = Table(None)
        self._end = 0  # of the file
        self._segments: list[Mapping] = []  # by offset
        self._places: list[tuple[int, int, int]] = []  # address, its end, and what makes it a location; sorted
        self._free: list[tuple[int, int]] = []  # locations that are in no block: from, to; sorted
        self._arrays: dict[int, Block] = {}  # of users, by address
        self._detached: dict[int, list[Mapping]] = {}  # pages that arrays got by `detach`, by address
        self._returned: deque[Block] = deque()  # by finalizers, which may run in the middle of anything
        self._lock = threading.RLock()

    def descriptor(self) -> int:
        """The file."""
        with self._lock:
            if self._descriptor < 0:
                self._create()
            return self._descriptor

    def acquire(self, nbytes: int, align: int = _ALIGN) -> Block:
        """Bytes that begin at a multiple of `align` and share no such piece. Raises OSError where there are no more."""
        if self.is_inherited:
            raise OSError("a child process shares no memory")
        size = max(align, -(-nbytes // align) * align)
        with self._lock, no_collection():  # a finalizer may make an array
            self.descriptor()
            while self._returned:
                self._put_back(self._returned.popleft())
            low = self._taken(size, align)
            if low is None:
                self._add(size)
                low = self._taken(size, align)
            assert low is not None
            segment = self._segment_of(low)
            return Block(low, segment.address + low - segment.offset, size)

    def _taken(self, size: int, align: int) -> int | None:
        """Take the first free bytes that are large enough; their location."""
        for place, (low, high) in enumerate(self._free):
            start = -(-low // align) * align
            if high - start >= size:
                left = [(low, start), (start + size, high)]
                self._free[place : place + 1] = [(one, other) for one, other in left if one < other]
                return start
        return None

    def release(self, block: Block) -> None:
        """Give a block back."""
        self._returned.append(block)

    def array(self, shape: tuple[int, ...], dtype: "np.dtype[Any]") -> "np.ndarray[Any, Any]":
        """An array that gives its memory back with its last view. Raises OSError where there is none.

        It shares no page with anything else, so that it can be detached.
        """
        nbytes = prod(shape) * dtype.itemsize
        block = self.acquire(nbytes, _PAGE)
        # views of an array end up holding what it was made of, however often they are sliced
        memory: Any = (ctypes.c_char * nbytes).from_address(block.address)
        self._arrays[block.address] = block
        weakref.finalize(memory, self.release, block).atexit = False
        self.in_use = True
        return np.ndarray(shape, dtype, memory)

    def location(self, address: int, nbytes: int) -> int | None:
        """Where other processes find these bytes; None for memory that they cannot see."""
        places = self._places
        place = bisect_right(places, (address, 1 << 64, 0)) - 1
        if place < 0:
            return None
        _, end, origin = places[place]
        return address + origin if address + nbytes <= end else None

    def detach(self, address: int, nbytes: int) -> None:
        """Give the arrays there pages of their own: same address, same contents, another location.

        Other processes keep the old pages until the array is forgotten: what a rank writes that is late is lost.
        """
        with self._lock, no_collection():  # a finalizer may make an array
            for block in list(self._arrays.values()):
                if block.address < address + nbytes and address < block.address + block.nbytes:
                    self._detach(block)

    def _detach(self, block: Block) -> None:
        offset = self._grow(block.nbytes)
        memory = memoryview(_bytes_at(block.address, block.nbytes))
        written = 0
        while written < block.nbytes:
            written += os.pwrite(self._descriptor, memory[written : written + _MOST_WRITTEN], offset + written)
        self._table.enter(offset, block.nbytes)
        mapping = Mapping(self._descriptor, offset, block.nbytes, block.address)
        self._cover(block.address, block.nbytes, offset)
        self._detached.setdefault(block.address, []).append(mapping)

    # Segments.

    def _create(self) -> None:
        """Make the file, with its table."""
        descriptor = os.memfd_create("mpicoll")
        try:
            os.ftruncate(descriptor, TABLE_BYTES)
            table = Mapping(descriptor, 0, TABLE_BYTES)
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        self._end = TABLE_BYTES
        self._segments = [table]
        self._table = Table(words_at(table.address, TABLE_BYTES))
        self._table.token = self.token

    def _grow(self, nbytes: int) -> int:
        """The offset of a new range of the file; it touches no other, so that free blocks never join over two ranges."""
        offset = self._end + _PAGE
        os.ftruncate(self._descriptor, offset + nbytes)
        self._end = offset + nbytes
        return offset

    def _add(self, nbytes: int) -> None:
        """Another segment."""
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
        """From now on these addresses are known by other locations; None: they are known to nobody."""
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
        self.epoch += 1

    def _put_back(self, block: Block) -> None:
        """Nobody has it any more."""
        self._arrays.pop(block.address, None)
        detached = self._detached.pop(block.address, None)
        if block.nbytes >= _LARGE or detached:
            punch(self._descriptor, block.location, block.nbytes)
        if detached:
            self._retire_detached(block, detached)
        else:
            self._join(block.location, block.location + block.nbytes)

    def _join(self, low: int, high: int) -> None:
        """Make bytes free, together with those beside them."""
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
        """Nothing is left in a segment, and no other process uses it any more."""
        self._segments.remove(segment)
        self._table.remove(segment.offset)
        self._cover(segment.address, segment.nbytes, None)
        segment.close()

    def _retire_detached(self, block: Block, mappings: list[Mapping]) -> None:
        """An array is forgotten that was detached. Its place in its first segment is not used again: others may be late."""
        for mapping in mappings:
            punch(self._descriptor, mapping.offset, mapping.nbytes)
            self._table.remove(mapping.offset)
            mapping.close(unmap=False)
        self._cover(block.address, block.nbytes, None)
        segment = self._segment_of(block.location)
        if segment.nbytes > _SEGMENT:
            self._retire(segment)

    def leave_to_parent(self) -> None:
        """In a child process: what is the parent's stays as it is."""
        if not self.is_inherited:
            self.is_inherited = True
            self._lock = threading.RLock()  # another thread of the parent's may have had it
            self._places = []
            self.epoch += 1
            Mapping.all_become_private()


def offset_of(mapping: Mapping) -> int:
    """Where the range of the file begins."""
    return mapping.offset


def _bytes_at(address: int, nbytes: int) -> Any:
    return (ctypes.c_char * nbytes).from_address(address)


#: one per process: arrays of it serve calls on all communicators
HEAP = Heap()
os.register_at_fork(after_in_child=HEAP.leave_to_parent)


def shared_array(shape: Any, dtype: Any, shared: bool) -> "np.ndarray[Any, Any]":
    """An array of the heap; shared: whether any other process can read it, else one like all others.

    Raises ArgumentError where shape or dtype make no sense, or there is no such memory.
    """
    try:
        kind = np.dtype(dtype)
        lengths = tuple(map(index, shape if isinstance(shape, Iterable) else (shape,)))
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"no array of shape {shape!r} and dtype {dtype!r}: {error}") from None
    if kind.hasobject or any(length < 0 for length in lengths):
        why = "Python objects cannot be shared" if kind.hasobject else "a length is negative"
        raise ArgumentError(f"no array of shape {shape!r} and dtype {kind}: {why}")
    nbytes, there_is = prod(lengths) * kind.itemsize, memory_of_node()
    if nbytes > there_is:
        raise ArgumentError(f"an array of {nbytes} bytes: this node has {there_is} bytes of memory for this process")
    try:
        if shared and nbytes and not HEAP.is_inherited:
            return HEAP.array(lengths, kind)
        return np.empty(lengths, kind)
    except (OSError, MemoryError, OverflowError, ValueError) as error:
        raise ArgumentError(f"no {nbytes} bytes of memory that ranks can share: {error}") from error


def memory_of_node() -> int:
    """Bytes of memory that this process may have: the node's, or what its control group is given."""
    there_is = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            there_is = min(there_is, int(Path(path).read_text(encoding="ascii")))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return there_is
