"""The memory of this process that other processes of the node can map: blocks of a file in memory.

The file has no name (memfd): a crash leaves no file, and the size of /dev/shm does not matter. A
page takes memory from its first write until its block is released. Other processes open the file as
/proc/PID/fd/FD; it begins with a table of the segments, the ranges of the file in use. A location
is an offset in the file. Ranges are never reused, so a location identifies its memory for ever.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from errno import EBADF
from itertools import count
from math import prod
from operator import index
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ..errors import ArgumentError
from ..support.files import identity, is_still
from ..support.forks import lock_for_forks
from ..support.turn import drained
from .limits import explained, memory_of_node
from .mapping import Mapping, punch, words_at
from .ranges import PAGE, SEGMENT, SLEEPS, TABLE_BYTES, Ranges

_ALIGN = 128
_ENTRIES = TABLE_BYTES // 16 - 1
#: blocks from this size on return their memory to the system when they are released
_LARGE = 1 << 20
#: bytes of one write
_MOST_WRITTEN = 1 << 30

Result = TypeVar("Result")


class HeapBlock(NamedTuple):
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
        # of its owner: entries not used so far, and those of segments that are gone. Each is taken
        # in one call of C, which no signal handler interrupts
        self._fresh = iter(range(1, 1 + 2 * _ENTRIES, 2))
        self._unused: list[int] = []

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
        try:
            at = self._unused.pop()
        except IndexError:
            at = next(self._fresh, 0)
        if not at:
            raise OSError(f"{_ENTRIES} segments are in use")
        self._words[at] = offset
        self._words[at + 1] = nbytes

    def remove(self, offset: int) -> None:
        """Remove the segment at an offset."""
        for at in range(1, 1 + 2 * _ENTRIES, 2):
            if self._words[at + 1] and self._words[at] == offset:
                self._words[at + 1] = 0
                self._unused.append(at)
                return

    def segments(self) -> dict[int, int]:
        """The bytes of each segment, by its offset."""
        words = self._words.tolist()
        return {offset: nbytes for offset, nbytes in zip(words[1::2], words[2::2]) if nbytes}


class _File(NamedTuple):
    """The file of a heap."""

    descriptor: int
    #: what the descriptor is of, until the program closes it
    identity: tuple[int, int]
    #: where its table is mapped
    mapping: Mapping
    table: SegmentTable

    @classmethod
    def new(cls, token: int) -> _File:
        """A file that has only its table, which tells the token."""
        descriptor = os.memfd_create("mpicoll")
        try:
            os.ftruncate(descriptor, TABLE_BYTES)
            mapping = Mapping(descriptor, 0, TABLE_BYTES)
        except OSError:
            os.close(descriptor)
            raise
        table = SegmentTable(words_at(mapping.address, TABLE_BYTES))
        table.token = token
        return cls(descriptor, identity(descriptor), mapping, table)

    @property
    def is_open(self) -> bool:
        """Whether the program has not closed it."""
        return is_still(self.descriptor, self.identity)

    def grow(self, end: int) -> None:
        """Make it at least so long: not by `ftruncate`, as it may be longer by now."""
        if not self.is_open:
            raise OSError(EBADF, "the program has closed the descriptor of shared memory")
        os.pwrite(self.descriptor, b"\0", end - 1)
        with suppress(OSError):  # the page stays, empty
            punch(self.descriptor, end - PAGE, PAGE)

    def give_back(self, offset: int, nbytes: int) -> None:
        """Return the memory of a range to the system, while the file can be told from others."""
        if self.is_open:
            punch(self.descriptor, offset, nbytes)

    def close(self) -> None:
        """Nobody has seen it."""
        self.mapping.close()
        os.close(self.descriptor)


class _Version:
    """What a heap had at some time, and the version that followed, once there is one."""

    def __init__(self, ranges: Ranges) -> None:
        self.ranges = ranges
        self.followers: dict[int, _Version] = {}


class Heap:
    """All shared memory of this process.

    A thread, a finalizer or a signal handler may allocate and release in the middle of everything
    here.
    """

    def __init__(self) -> None:
        #: identifies the file
        self.token = int.from_bytes(os.urandom(8), "big") >> 1
        #: whether the user has made an array in it
        self.in_use = False
        #: changes whenever an address may have a new location; in memory that the extension knows
        self._epoch = array("Q", [0])
        self._epochs = count(1)
        #: this is a child process, which shares nothing
        self.is_inherited = False
        #: its file, by 0, from the first use on
        self._files: dict[int, _File] = {}
        #: the last one, or one before it
        self._version = _Version(Ranges())
        #: arrays of the user, by address
        self._arrays: dict[int, HeapBlock] = {}
        #: new pages of arrays by `detach`, by address
        self._detached: dict[int, list[Mapping]] = {}
        #: blocks that finalizers returned
        self._returned: deque[HeapBlock] = deque()
        self._lock = lock_for_forks()

    @property
    def epoch(self) -> int:
        """A number that changes whenever an address may have a new location."""
        return self._epoch[0]

    @property
    def epoch_at(self) -> int:
        """The address of the epoch."""
        return self._epoch.buffer_info()[0]

    @property
    def takes_arrays(self) -> bool:
        """Whether new arrays of the user can lie in it."""
        return not self.is_inherited and all(file.is_open for file in self._files.values())

    def _begin_epoch(self) -> None:
        self._epoch[0] = next(self._epochs)

    def descriptor(self) -> int:
        """The descriptor of the file."""
        with explained("which shares none so far"):
            return self._file().descriptor

    @property
    def sleeps_at(self) -> int:
        """The address of the word by which this process says that it sleeps."""
        return self._file().mapping.address + SLEEPS

    def _file(self) -> _File:
        found = self._files.get(0)
        if found is None:
            new = _File.new(self.token)
            found = self._files.setdefault(0, new)
            if found is not new:
                new.close()
        return found

    # What it has.

    def _last_version(self) -> _Version:
        version = self._version
        while version.followers:
            version = version.followers[0]
        self._version = version
        return version

    @property
    def ranges(self) -> Ranges:
        """What it has now."""
        return self._last_version().ranges

    def _change(self, change: Callable[..., tuple[Ranges, Result]], *arguments: Any) -> Result:
        """Change what it has by a method of that; returns the result.

        Again, where somebody else has changed it meanwhile: one call of C decides who is first.
        """
        while True:
            version = self._last_version()
            ranges, result = change(version.ranges, *arguments)
            following = _Version(ranges)
            if version.followers.setdefault(0, following) is following:
                return result

    # Blocks.

    def acquire(self, nbytes: int, align: int = _ALIGN) -> HeapBlock:
        """A block, padded to a multiple of `align`. Raises SharedMemoryError without memory."""
        size = max(align, -(-nbytes // align) * align)
        with explained(f"which shares {self.ranges.end} bytes and asked for {size} more"):
            if self.is_inherited:
                raise OSError("a child process shares none")
            self._take_back()
            while (location := self._change(Ranges.taking, size, align)) is None:
                self._add(size)
            segment = self.ranges.segment_of(location)
            return HeapBlock(location, segment.address + location - segment.offset, size)

    def release(self, block: HeapBlock) -> None:
        """Return a block to the heap; it becomes free at the next `acquire`."""
        self._returned.append(block)

    def _take_back(self) -> None:
        """Make returned blocks free."""
        for block in drained(self._returned):
            self._put_back(block)

    def array(
        self, shape: tuple[int, ...], dtype: "np.dtype[Any]", is_scratch: bool = False
    ) -> "np.ndarray[Any, Any]":
        """An array that releases its memory with its last view.

        Raises SharedMemoryError without memory.

        It shares no page with other blocks, so that it can be detached. is_scratch: it is not the
        user's.
        """
        nbytes = prod(shape) * dtype.itemsize
        block = self.acquire(nbytes, PAGE)
        # each view of an array, and each view of a view, refers to this object
        memory: Any = (ctypes.c_char * nbytes).from_address(block.address)
        self._arrays[block.address] = block
        weakref.finalize(memory, self.release, block).atexit = False
        if not self.in_use and not is_scratch:
            self.in_use = True
            self._begin_epoch()  # from now on it matters where arrays lie
        return np.ndarray(shape, dtype, memory)

    def location(self, address: int, nbytes: int) -> int | None:
        """The location of these bytes; None for memory that other processes cannot map."""
        places = self.ranges.places
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
        end = address + nbytes
        with self._lock, suppress(OSError):
            for block in list(self._arrays.values()):
                if block.address < end and address < block.address + block.nbytes:
                    self._detach(block)

    def _detach(self, block: HeapBlock) -> None:
        file = self._file()
        offset = self._grow(block.nbytes)
        memory = memoryview((ctypes.c_char * block.nbytes).from_address(block.address))
        written = 0
        while written < block.nbytes:
            piece = memory[written : written + _MOST_WRITTEN]
            written += os.pwrite(file.descriptor, piece, offset + written)
        file.table.enter(offset, block.nbytes)
        mapping = Mapping(file.descriptor, offset, block.nbytes, block.address)
        self._change(Ranges.covering, block.address, block.nbytes, offset)
        self._begin_epoch()
        self._detached.setdefault(block.address, []).append(mapping)

    # Segments.

    def _grow(self, nbytes: int) -> int:
        """The offset of a new range of the file."""
        offset = self._change(Ranges.reserving, nbytes)
        try:
            self._file().grow(offset + nbytes)
        except OSError:
            self._change(Ranges.leaving, offset, nbytes)
            raise
        return offset

    def _add(self, nbytes: int) -> None:
        """Add a segment with room for a block of `nbytes`."""
        size = max(SEGMENT, -(-nbytes // PAGE) * PAGE)
        file = self._file()
        segment = Mapping(file.descriptor, self._grow(size), size)
        try:
            file.table.enter(segment.offset, size)
        except OSError:
            segment.close()
            raise
        self._change(Ranges.adding, segment)
        self._begin_epoch()

    def _put_back(self, block: HeapBlock) -> None:
        """Make a returned block free."""
        self._arrays.pop(block.address, None)
        detached = self._detached.pop(block.address, None)
        if block.nbytes >= _LARGE or detached:
            self._file().give_back(block.location, block.nbytes)
        if detached:
            return self._retire_detached(block, detached)
        low, high = block.location, block.location + block.nbytes
        segment = self._change(Ranges.giving_back, low, high)
        if segment is not None:
            self._retire(segment)

    def _retire(self, segment: Mapping) -> None:
        """Remove a segment without blocks, which no other process uses any more."""
        self._change(Ranges.removing, segment)
        self._begin_epoch()
        self._file().table.remove(segment.offset)
        segment.close()

    def _retire_detached(self, block: HeapBlock, mappings: list[Mapping]) -> None:
        """Release a detached array.

        Its place in its first segment is not reused: other processes may write there late.
        """
        file = self._file()
        for mapping in mappings:
            file.give_back(mapping.offset, mapping.nbytes)
            file.table.remove(mapping.offset)
            mapping.close(unmap=False)
        self._change(Ranges.covering, block.address, block.nbytes, None)
        self._begin_epoch()
        segment = self.ranges.segment_of(block.location)
        if segment.nbytes > SEGMENT:
            self._retire(segment)

    def leave_to_parent(self) -> None:
        """In a child process: stop sharing, and leave the parent's memory unchanged."""
        if not self.is_inherited:
            self.is_inherited = True
            self._version = _Version(Ranges())
            self._begin_epoch()
            Mapping.all_become_private()


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
        if shared and nbytes and HEAP.takes_arrays:
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
