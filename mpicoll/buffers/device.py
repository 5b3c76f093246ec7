"""Device memory: CuPy arrays, how they travel, and whether MPI takes their pointers."""

import ctypes
import importlib
import importlib.util
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

import numpy as np
from mpi4py import MPI

from ..errors import ArgumentError
from ..support.arrays import synchronize
from .memory import check_contiguous
from .operand import Operand

#: how MPICH's MPIX_GPU_query_support numbers CUDA
_MPICH_CUDA = 0


@lru_cache(maxsize=None)
def optional_cupy() -> Any:
    """CuPy, or None where it is not installed."""
    return importlib.import_module("cupy") if importlib.util.find_spec("cupy") else None


def gpu_mode() -> str:
    """How device memory travels: "direct" (its pointers go to MPI) or "staged" through host memory (the default)."""
    mode = os.environ.get("MPICOLL_GPU", "auto")
    if mode not in ("auto", "direct", "staged"):
        raise ArgumentError(f"MPICOLL_GPU={mode}: expected auto, direct or staged")
    return "direct" if mode == "direct" else "staged"


def device_array(buffer: Any) -> Any:
    """The CuPy array over a buffer with __cuda_array_interface__; None where it is host memory or CuPy is missing."""
    cupy = optional_cupy()
    if cupy is None:
        return None
    pointer = buffer.__cuda_array_interface__["data"][0]
    if pointer and cupy.cuda.runtime.pointerGetAttributes(pointer).type < 2:  # unregistered or page-locked host memory
        return None
    return cupy.asarray(buffer)


def device_of(operands: Iterable[Operand]) -> AbstractContextManager[object] | None:
    """A context manager under which another thread uses the GPU that this thread uses (CuPy keeps one per thread).

    None where no operand is on a device. What the device still computes for them is waited for.
    """
    if all(one.device is None for one in operands):
        return None
    cupy = optional_cupy()
    synchronize(cupy)
    current: AbstractContextManager[object] = cupy.cuda.Device()
    return current


def stage_device(result: Operand, array: Any) -> None:
    """Copies between device and host, ordered after the work already in the current stream."""
    cupy, order = optional_cupy(), "C" if array.flags.c_contiguous or not array.flags.f_contiguous else "F"
    result.module = np  # what arrives is reduced on the host

    def pack(work: Any) -> None:
        cupy.asnumpy(array.ravel(order=order), out=work)

    def unpack(work: Any) -> None:
        array[...] = cupy.asarray(work).reshape(array.shape, order=order)
        synchronize(cupy)  # the work array goes back to the pool

    result.pack, result.unpack = pack, unpack


def stage(one: Operand) -> None:
    """Let device memory that MPI could read pass through the host all the same: the other buffer must."""
    if not one.staged:
        one.vector = None
        stage_device(one, one.device)


def through_host(array: Any, describe: Callable[[Any], Operand]) -> Operand:
    """Device memory that displacements or another type describe: the whole array passes through the host, gaps too."""
    cupy = optional_cupy()
    check_contiguous(array)
    flat, host = array.reshape(-1, order="A"), np.empty(array.size, array.dtype)
    result = describe(host)
    vector, pack_host, unpack_host = result.vector, result.pack, result.unpack
    result.vector, result.device = None, array

    def pack(work: Any) -> None:
        cupy.asnumpy(flat, out=host)
        pack_host(work) if vector is None else np.copyto(work.view(vector.dtype), vector)

    def unpack(work: Any) -> None:
        unpack_host(work) if vector is None else np.copyto(vector, work.view(vector.dtype))
        flat[...] = cupy.asarray(host)
        synchronize(cupy)

    result.pack, result.unpack = pack, unpack
    return result


def cuda_awareness() -> tuple[bool | None, str]:
    """(answer, how it was found): whether the loaded MPI library says that it takes CUDA device pointers.

    None where the library offers no way to ask. What is asked is the library, never an option or a file name.
    """
    handle = ctypes.CDLL(MPI.__file__)  # a symbol is looked up in the MPI library it is linked to as well
    if hasattr(handle, "MPIX_Query_cuda_support"):
        return bool(handle.MPIX_Query_cuda_support()), "MPIX_Query_cuda_support"
    if hasattr(handle, "MPIX_GPU_query_support"):
        answer = ctypes.c_int(0)
        if handle.MPIX_GPU_query_support(_MPICH_CUDA, ctypes.byref(answer)) == 0:
            return bool(answer.value), "MPIX_GPU_query_support"
        return None, "MPIX_GPU_query_support failed"
    return None, "not offered: the library has neither MPIX_Query_cuda_support nor MPIX_GPU_query_support"
