"""Arrays over DLPack objects."""

import ctypes
import math
from typing import Any

import numpy as np
from mpi4py import MPI

from ..gpu import is_bfloat16, optional_cupy, require_current
from ..support.arrays import element_type
from .memory import at

#: DLPack's device types in host memory: plain, and page-locked for CUDA and for ROCm
_HOST = (1, 3, 11)


class _DLTensor(ctypes.Structure):
    """The head of a DLPack tensor up to its shape; mpi4py finds the memory, but not the type."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
    ]


class _DLVersioned(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32 * 2),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    ]


def dlpack_array(buffer: Any) -> Any:
    """The array over a DLPack object: NumPy's on the host, CuPy's on a device, None without CuPy.

    The capsule is not consumed: numpy.from_dlpack makes memory of the older protocol read-only.
    """
    kind, device = buffer.__dlpack_device__()
    if kind not in _HOST:
        if optional_cupy() is None:
            return None
        require_current(device)
        return optional_cupy().from_dlpack(buffer)
    memory = MPI.memory(buffer)
    return at(memory.address, memory.nbytes, foreign_type(buffer, memory))


def foreign_type(buffer: Any, memory: MPI.memory) -> "np.dtype[Any]":
    """The element type of an object with __cuda_array_interface__ or DLPack, in this memory."""
    if is_bfloat16(buffer):
        return element_type("bfloat16")
    if hasattr(buffer, "__cuda_array_interface__"):
        typestr: str = buffer.__cuda_array_interface__["typestr"]
        return np.dtype(typestr)
    capsule = buffer.__dlpack__()
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype = ctypes.c_void_p
    get.argtypes = [ctypes.py_object, ctypes.c_char_p]
    if '"dltensor_versioned"' in repr(capsule):
        tensor = _DLVersioned.from_address(get(capsule, b"dltensor_versioned")).tensor
    else:
        tensor = _DLTensor.from_address(get(capsule, b"dltensor"))
    kind = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}[tensor.code]
    if kind == "float" and tensor.lanes == 2:  # a long double complex of some producers
        kind = "complex"
    # `bits` is unreliable: of half a complex number in older producers, and too narrow for 256
    count = math.prod(tensor.shape[: tensor.ndim])
    bits = 8 * memory.nbytes // count if count else tensor.bits
    return np.dtype("bool" if kind == "bool" else f"{kind}{bits}")
