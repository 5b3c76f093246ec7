"""The extension `mpicoll._engine`, and the functions of MPI that it calls."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from ..shared_memory import HEAP
from ..support import settings
from ..support.extension import load
from .lowering import Code, Packed

_FUNCTIONS = ("MPI_Isend", "MPI_Irecv", "MPI_Test", "MPI_Iprobe")


class Status(NamedTuple):
    """The extension, or None, and why."""

    extension: Any
    reason: str


def status() -> Status:
    """Whether programs run in C, and why."""
    if settings.engine() == settings.PYTHON:
        return Status(None, f"{settings.ENGINE}={settings.PYTHON}")
    return _loaded()


def require() -> None:
    """Raise ImportError where MPICOLL_ENGINE asks for the extension, and it cannot be used."""
    if settings.engine() == settings.C and (found := status()).extension is None:
        raise ImportError(f"{settings.ENGINE}={settings.C}: {found.reason}")


@lru_cache(maxsize=None)
def _loaded() -> Status:
    try:
        extension = load()
        addresses = [address_of(name) for name in _FUNCTIONS]
    except (ImportError, AttributeError) as error:
        return Status(None, f"mpicoll._engine cannot be used ({error})")
    byte = MPI._handleof(MPI.BYTE)
    extension.setup(*addresses, byte, MPI.ANY_SOURCE, MPI._sizeof(MPI.Request))
    extension.setup_doors(np.ndarray, HEAP.epoch_at)
    if not _delivers(extension):
        return Status(None, "mpicoll._engine did not deliver a message to this rank itself")
    return Status(extension, "mpicoll._engine")


@lru_cache(maxsize=None)
def _finds_fields() -> bool:
    """Whether the extension finds the fields of NumPy's arrays where it reads them."""
    extension = _loaded().extension
    matrix = np.arange(12, dtype="f4").reshape(3, 4)
    return extension is not None and all(
        extension.array_fields(x) == (x.ctypes.data, x.size, id(x.dtype), x.flags.num)
        for x in (matrix, matrix[1:, ::2], matrix.T, np.zeros(0, "i8"), np.array(1j))
    )


def has_doors() -> bool:
    """Whether repeated calls can pass through doors, see `execute.doors`."""
    return status().extension is not None and _finds_fields()


@lru_cache(maxsize=None)
def address_of(name: str) -> int:
    """The function that mpi4py's own calls are bound to.

    The global scope comes first, as for the linker: tools that were preloaded see the calls.
    """
    for library in (ctypes.CDLL(None), ctypes.CDLL(MPI.__file__)):
        if hasattr(library, name):
            address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
            assert address is not None
            return address
    raise AttributeError(f"{name} is no exported function of the MPI library")


def _delivers(extension: Any) -> bool:
    """Whether a message of this rank to itself arrives."""
    received = np.zeros(8, np.uint8)
    sent = np.arange(1, 9, dtype=np.uint8)
    comm = MPI.COMM_SELF.Dup()
    code = [
        Packed(Code.RECV, 0, 0, places=((0, received.ctypes.data),), size=8),
        Packed(Code.SEND, 0, 1, places=((0, sent.ctypes.data),), size=8),
        Packed(Code.WAIT, request=0),
        Packed(Code.WAIT, request=1),
    ]
    packed = b"".join(map(bytes, code))
    program = extension.program(packed, 2, MPI._handleof(comm), 0, b"", 0, -1, -1)
    extension.start(program, 0, ())
    error, reached = extension.advance(program, 1.0)
    comm.Free()
    return error == 0 and reached == len(code) and bool(np.array_equal(received, sent))
