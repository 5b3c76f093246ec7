"""Arrays over DLPack objects."""

import ctypes
import math
from typing import Any

import numpy as np
from mpi4py import MPI

from .device import optional_cupy
from .memory import at


class _DLTensor(ctypes.Structure):
    """The start of a DLPack tensor, as far as its shape; mpi4py finds the memory, but does not tell the type."""

    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64))]  # fmt: skip


class _DLVersioned(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32 * 2), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
                ("flags", ctypes.c_uint64), ("tensor", _DLTensor)]  # fmt: skip


def dlpack_array(buffer: Any) -> Any:
    """A host array over a DLPack object in host memory, CuPy's over one on a device; None where CuPy is missing.

    The capsule is only looked at: numpy.from_dlpack would make memory of the older protocol read-only.
    """
    if buffer.__dlpack_device__()[0] != 1:
        return optional_cupy().from_dlpack(buffer) if optional_cupy() else None
    capsule, memory = buffer.__dlpack__(), MPI.memory(buffer)
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    if '"dltensor_versioned"' in repr(capsule):
        tensor = _DLVersioned.from_address(get(capsule, b"dltensor_versioned")).tensor
    else:
        tensor = _DLTensor.from_address(get(capsule, b"dltensor"))
    kind = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}[tensor.code]
    count = math.prod(tensor.shape[: tensor.ndim])
    # older producers write the bits of a complex number's half, and 256 does not fit the field: the size tells
    bits = 8 * memory.nbytes // count if count else tensor.bits
    kind = "complex" if kind == "float" and tensor.lanes == 2 else kind  # how some write a long double complex
    return at(memory.address, memory.nbytes, np.dtype("bool" if kind == "bool" else f"{kind}{bits}"))
