"""The memory of this process that others of its node can map: blocks of a few large segments.

A segment is a file in memory without a name (memfd), so that nothing is left behind and a small /dev/shm does not matter.
It takes no memory before it is written, and none after the block it was written in is given back. Others find it as
/proc/PID/fd/FD: the first segment begins with a table of all.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets
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
from mpi4py import MPI

from ..errors import ArgumentError

#: a location is the number of a segment and an offset in it
OFFSET_BITS = 44
_SEGMENT, _PAGE, _ALIGN = 64 << 20, mmap.PAGESIZE, 128
#: the table: a token by which a process knows that it has mapped the right memory, then (descriptor, bytes) of each segment
_TABLE, _MOST = 16 << 10, 1000
#: blocks from this size on give their memory back when they are freed
_LARGE = 1 << 20


class Block(NamedTuple):
    """Bytes of the heap. location: as other processes know them; address: where they lie in this one."""

    location: int
    address: int
    nbytes: int


class Segment:
    """A file in memory, mapped into this process. descriptor: of the file, as /proc shows it or as it was opened."""

    def __init__(self, descriptor: int, nbytes: int) -> None:
        self.memory = mmap.mmap(descriptor, nbytes)
        self.nbytes = nbytes
        self.address: int = MPI.Get_address(np.frombuffer(self.memory, np.uint8))
        self.words = memoryview(self.memory).cast("Q")


def words_at(address: int, nbytes: int) -> "memoryview[int]":
    """Memory as 64-bit words."""
    raw: Any = MPI.memory.fromaddress(address, nbytes)
    return memoryview(raw).cast("B").cast("Q")


class Heap:
    """All segments of this process. token: by which others know them."""

    def __init__(self) -> None:
        self.token = secrets.randbits(63)
        self.in_use = False  # whether there is an array of a user's in it
        self._segments: list[Segment] = []
        self._descriptors: list[int] = []
        self._places: list[tuple[int, int, int]] = []  # of segments: address, its end, number; sorted
        self._free: list[tuple[int, int, int]] = []  # what nobody has: segment, from, to; sorted
        self._returned: deque[Block] = deque()  # by finalizers, which may run in the middle of anything
        self._lock = threading.RLock()

    def descriptor(self) -> int:
        """The file that others map first."""
        with self._lock:
            if not self._segments:
                self._add(_SEGMENT)
            return self._descriptors[0]

    def acquire(self, nbytes: int) -> Block:
        """Bytes that begin at a multiple of 128. Raises OSError where there are no more."""
        size = max(_ALIGN, -(-nbytes // _ALIGN) * _ALIGN)
        with self._lock:
            while self._returned:
                self._put_back(self._returned.popleft())
            place = next((place for place, (_, low, high) in enumerate(self._free) if high - low >= size), None)
            if place is None:
                self._add(size)
                place = len(self._free) - 1
            number, low, high = self._free[place]
            self._free[place : place + 1] = [(number, low + size, high)] if low + size < high else []
        return Block(number << OFFSET_BITS | low, self._segments[number].address + low, size)

    def release(self, block: Block) -> None:
        """Give a block back."""
        self._returned.append(block)

    def array(self, shape: tuple[int, ...], dtype: "np.dtype[Any]") -> "np.ndarray[Any, Any]":
        """An array that gives its memory back when nobody holds it or a view of it any more. OSError where there is none."""
        nbytes = prod(shape) * dtype.itemsize
        block = self.acquire(nbytes)
        # views of an array end up holding what it was made of, however often they are sliced
        memory: Any = (ctypes.c_char * nbytes).from_address(block.address)
        weakref.finalize(memory, self.release, block).atexit = False
        self.in_use = True
        return np.ndarray(shape, dtype, memory)

    def location(self, address: int, nbytes: int) -> int | None:
        """Where other processes find these bytes; None for memory that they cannot see."""
        place = bisect_right(self._places, (address, 1 << 64, 0)) - 1
        if place < 0:
            return None
        start, end, number = self._places[place]
        return number << OFFSET_BITS | address - start if address + nbytes <= end else None

    def _add(self, nbytes: int) -> None:
        """Another segment."""
        number = len(self._segments)
        if number == _MOST:
            raise OSError(f"{_MOST} segments are in use")
        head = 0 if number else _TABLE
        size = max(_SEGMENT, -(-(nbytes + head) // _PAGE) * _PAGE)
        descriptor = os.memfd_create("mpicoll")
        try:
            os.ftruncate(descriptor, size)
            segment = Segment(descriptor, size)
        except (OSError, ValueError, OverflowError):
            os.close(descriptor)
            raise
        self._segments.append(segment)
        self._descriptors.append(descriptor)
        self._places = sorted([*self._places, (segment.address, segment.address + size, number)])
        self._free.append((number, head, size))
        table = self._segments[0].words
        table[1 + 2 * number], table[2 + 2 * number] = descriptor, size
        table[0] = self.token

    def _put_back(self, block: Block) -> None:
        number, low = divmod(block.location, 1 << OFFSET_BITS)
        high = low + block.nbytes
        if block.nbytes >= _LARGE:
            self._forget(self._segments[number], low, high)
        place = bisect_right(self._free, (number, low, high))
        if place < len(self._free) and self._free[place][:2] == (number, high):
            high = self._free.pop(place)[2]
        if place and self._free[place - 1][0] == number and self._free[place - 1][2] == low:
            place -= 1
            low = self._free.pop(place)[1]
        self._free.insert(place, (number, low, high))

    def _forget(self, segment: Segment, low: int, high: int) -> None:
        """Let the system have the memory of whole pages."""
        low, high = -(-low // _PAGE) * _PAGE, high // _PAGE * _PAGE
        if high > low:
            segment.memory.madvise(mmap.MADV_REMOVE, low, high - low)


#: one per process: arrays of it serve calls on all communicators
HEAP = Heap()


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
        return HEAP.array(lengths, kind) if shared and nbytes else np.empty(lengths, kind)
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
