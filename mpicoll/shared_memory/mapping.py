"""Memory of files mapped into this process, and what becomes of it in a child process.

`mmap.mmap` duplicates the descriptor of each mapping and cannot replace pages at an address: this calls the system's mmap.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

from mpi4py import MPI

_PRIVATE, _SHARED = mmap.MAP_PRIVATE, mmap.MAP_SHARED
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_MAP_FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_mmap = getattr(_libc, "mmap64", None) or _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
)  # fmt: skip
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
        Replace what is mapped there: in one step, so that other threads see the old pages or the new ones.
    """

    #: all of this process, in the order in which they were made: a later one may lie on a part of an earlier one
    _mapped: dict[int, Mapping] = {}

    def __init__(self, descriptor: int, offset: int, nbytes: int, address: int | None = None) -> None:
        self.offset = offset
        self.nbytes = nbytes
        self._descriptor = descriptor
        self.address = self._map(_SHARED, address)
        self._mapped[id(self)] = self

    @property
    def end(self) -> int:
        """Where the range of the file ends."""
        return self.offset + self.nbytes

    def _map(self, sharing: int, address: int | None) -> int:
        fixed = 0 if address is None else _MAP_FIXED
        place: int = _mmap(address, self.nbytes, _READ_WRITE, sharing | fixed, self._descriptor, self.offset)
        if place == _FAILED:
            raise _error(f"{self.nbytes} bytes cannot be mapped")
        return place

    def close(self, unmap: bool = True) -> None:
        """Unmap it: nothing uses its addresses any more. Not `unmap`: they belong to a mapping below it."""
        del self._mapped[id(self)]
        if unmap:
            _libc.munmap(self.address, self.nbytes)

    @classmethod
    def all_become_private(cls) -> None:
        """In a child process: what it writes stays with it, and no other process sees it."""
        for mapping in list(cls._mapped.values()):
            mapping._map(_PRIVATE, mapping.address)


def punch(descriptor: int, offset: int, nbytes: int) -> None:
    """Give the memory of a range of a file in memory back to the system."""
    if _fallocate(descriptor, _PUNCH_HOLE, offset, nbytes):
        raise _error("memory cannot be given back")


def _error(text: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{text}: {os.strerror(number)}")


def words_at(address: int, nbytes: int) -> "memoryview[int]":
    """Memory as 64-bit words."""
    raw: Any = MPI.memory.fromaddress(address, nbytes)
    return memoryview(raw).cast("B").cast("Q")
