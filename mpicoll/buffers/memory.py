"""Where an array's memory lies, and arrays over memory at an address."""

from typing import Any

import numpy as np
from mpi4py import MPI

from .. import errors


def address(array: Any) -> int:
    """Where an array's memory begins."""
    if not isinstance(array, np.ndarray):
        location: int = array.data.ptr
        return location
    if array.flags.forc:  # ten times faster than __array_interface__
        return MPI.Get_address(array)
    location = array.__array_interface__["data"][0]
    return location


def span(array: Any) -> tuple[int, int]:
    """Where a contiguous array's memory begins and ends."""
    start = address(array)
    return start, start + array.nbytes


def at(location: int, nbytes: int, dtype: Any) -> "np.ndarray[Any, Any]":
    """A 1-d host array over memory at an address, which it does not keep alive."""
    if not nbytes:
        return np.empty(0, dtype)
    raw: Any = MPI.memory.fromaddress(location, nbytes)
    return np.frombuffer(raw, dtype)


def bytes_at(start: int, end: int) -> MPI.memory:
    """Memory between two addresses."""
    return MPI.memory.fromaddress(start, end - start)


def memory_of(array: Any) -> MPI.memory | None:
    """The array's memory as bytes."""
    if array is None:
        return None
    check_contiguous(array)
    return MPI.memory.fromaddress(address(array), array.nbytes)


def check_contiguous(array: Any) -> None:
    """Raise BufferError for an array with gaps."""
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        described = "described by displacements or another type"
        raise errors.BufferError(f"a non-contiguous array cannot be {described}: pass it alone")
