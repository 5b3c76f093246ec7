"""Memory of files mapped into this process, and its isolation in a child process.

`mmap.mmap` duplicates the descriptor of each mapping and cannot replace pages at an address, so
this module calls the system's mmap.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

from mpi4py import MPI

_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_MAP_FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_mmap = getattr(_libc, "mmap64", None) or _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_fallocate = getattr(_libc, "fallocate64", None) or _libc.fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
#: FALLOC_FL_PUNCH_HOLE, FALLOC_FL_KEEP_SIZE
_PUNCH_HOLE = 0x02 | 0x01


class Mapping:
    """A range of a file in memory of this process, until `close`.

    Parameters
    ----------
    descriptor : int
        Of the file; stays open as long as the mapping.
    offset, nbytes : int
        The range of the file.
    address : int, optional
        Replace the pages mapped there, atomically: other threads see the old or the new pages.
    """

    #: all mappings of this process in order of creation: a later one may cover part of an earlier
    _mapped: dict[int, Mapping] = {}

    def __init__(
        self, descriptor: int, offset: int, nbytes: int, address: int | None = None
    ) -> None:
        self.offset = offset
        self.nbytes = nbytes
        self._descriptor = descriptor
        self.address = self._map(mmap.MAP_SHARED, address)
        self._mapped[id(self)] = self

    @property
    def end(self) -> int:
        """The end of the range of the file."""
        return self.offset + self.nbytes

    def _map(self, flags: int, address: int | None) -> int:
        if address is not None:
            flags |= _MAP_FIXED
        place: int = _mmap(
            address, self.nbytes, _READ_WRITE, flags, self._descriptor, self.offset
        )
        if place == _FAILED:
            raise _error(f"{self.nbytes} bytes cannot be mapped")
        return place

    def close(self, unmap: bool = True) -> None:
        """Forget the mapping, and unmap it. Not `unmap`: an earlier mapping owns the addresses."""
        del self._mapped[id(self)]
        if unmap:
            _libc.munmap(self.address, self.nbytes)

    @classmethod
    def all_become_private(cls) -> None:
        """In a child process: make all mappings private, so that no other process sees writes."""
        for mapping in list(cls._mapped.values()):
            mapping._map(mmap.MAP_PRIVATE, mapping.address)


def punch(descriptor: int, offset: int, nbytes: int) -> None:
    """Return the memory of a range of a file in memory to the system."""
    if _fallocate(descriptor, _PUNCH_HOLE, offset, nbytes):
        raise _error("memory cannot be given back")


def _error(text: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{text}: {os.strerror(number)}")


def words_at(address: int, nbytes: int) -> "memoryview[int]":
    """Memory as 64-bit words."""
    raw: Any = MPI.memory.fromaddress(address, nbytes)
    return memoryview(raw).cast("B").cast("Q")
