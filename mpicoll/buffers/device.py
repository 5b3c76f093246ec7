"""Device memory: CuPy arrays, how they travel, and whether MPI takes their pointers."""

import ctypes
import importlib
import importlib.util
import os
from functools import lru_cache

import numpy as np
from mpi4py import MPI

from ..errors import ArgumentError
from .memory import check_contiguous


@lru_cache(maxsize=None)
def optional_cupy():
    """CuPy, or None where it is not installed."""
    return importlib.import_module("cupy") if importlib.util.find_spec("cupy") else None


def gpu_mode():
    """How device memory travels: "direct" (its pointers go to MPI) or "staged" through host memory (the default)."""
    mode = os.environ.get("MPICOLL_GPU", "auto")
    if mode not in ("auto", "direct", "staged"):
        raise ArgumentError(f"MPICOLL_GPU={mode}: expected auto, direct or staged")
    return "direct" if mode == "direct" else "staged"


def device_array(buffer):
    """The CuPy array over a buffer with __cuda_array_interface__; None where it is host memory or CuPy is missing."""
    cupy = optional_cupy()
    if cupy is None:
        return None
    pointer = buffer.__cuda_array_interface__["data"][0]
    if pointer and cupy.cuda.runtime.pointerGetAttributes(pointer).type < 2:  # unregistered or page-locked host memory
        return None
    return cupy.asarray(buffer)


def stage_device(result, array):
    """Copies between device and host, ordered after the work already in the current stream."""
    cupy, order = optional_cupy(), "C" if array.flags.c_contiguous or not array.flags.f_contiguous else "F"
    result.module = np  # what arrives is reduced on the host

    def load(work):
        cupy.asnumpy(array.ravel(order=order), out=work)

    def store(work):
        array[...] = cupy.asarray(work).reshape(array.shape, order=order)
        synchronize()  # the work array goes back to the pool

    result.load, result.store = load, store


def through_host(array, describe):
    """Device memory that displacements or another type describe: the whole array passes through the host, gaps too."""
    cupy = optional_cupy()
    check_contiguous(array)
    flat, host = array.reshape(-1, order="A"), np.empty(array.size, array.dtype)
    result = describe(host)
    vector, unpack, pack = result.vector, result.load, result.store
    result.vector, result.device = None, array

    def load(work):
        cupy.asnumpy(flat, out=host)
        unpack(work) if vector is None else np.copyto(work.view(vector.dtype), vector)

    def store(work):
        pack(work) if vector is None else np.copyto(vector, work.view(vector.dtype))
        flat[...] = cupy.asarray(host)
        synchronize()

    result.load, result.store = load, store
    return result


def current_device():
    """A context manager under which another thread uses the GPU that this thread uses: CuPy keeps one per thread."""
    return optional_cupy().cuda.Device()


def synchronize():
    """Wait for the work in the current stream of the device."""
    optional_cupy().cuda.get_current_stream().synchronize()


#: how MPICH's MPIX_GPU_query_support numbers CUDA
_MPICH_CUDA = 0


def cuda_awareness():
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
