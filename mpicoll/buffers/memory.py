"""Where an array's memory lies, and arrays over memory at an address."""

import numpy as np
from mpi4py import MPI

from ..errors import BufferError


def address(array):
    """Where an array's memory begins."""
    return array.__array_interface__["data"][0] if isinstance(array, np.ndarray) else array.data.ptr


def at(location, nbytes, dtype):
    """A 1-d host array over memory at an address, which it does not keep alive."""
    return np.frombuffer(MPI.memory.fromaddress(location, nbytes), dtype) if nbytes else np.empty(0, dtype)


def memory_of(array):
    """The array's memory as bytes."""
    if array is None:
        return None
    check_contiguous(array)
    return MPI.memory.fromaddress(address(array), array.nbytes)


def check_contiguous(array):
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        raise BufferError("a non-contiguous array cannot be described by displacements or another type: pass it alone")
