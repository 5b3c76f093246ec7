"""Buffers: what a buffer argument means, and how it becomes contiguous memory and back.

Everything that depends on the kind of memory is here: host or device, contiguous, strided or described by a datatype.
CuPy is imported only when an array with ``__cuda_array_interface__`` arrives.
"""

import ctypes
import importlib
import importlib.util
import math
import os
from functools import lru_cache

import numpy as np
from mpi4py import MPI

from .errors import ArgumentError, BufferError
from .layout import Layout, block_bytes, equal_blocks
from .ops import mpi_type, numpy_type


def in_place(buffer):
    """Whether this argument means MPI.IN_PLACE; mpi4py takes None for it too."""
    return buffer is None or buffer is MPI.IN_PLACE


# Device memory.


@lru_cache(maxsize=None)
def _cupy():
    """CuPy, or None where it is not installed."""
    return importlib.import_module("cupy") if importlib.util.find_spec("cupy") else None


def gpu_mode():
    """How device memory travels: "direct" (its pointers go to MPI) or "staged" through host memory (the default)."""
    mode = os.environ.get("MPICOLL_GPU", "auto")
    if mode not in ("auto", "direct", "staged"):
        raise ArgumentError(f"MPICOLL_GPU={mode}: expected auto, direct or staged")
    return "direct" if mode == "direct" else "staged"


def _device_array(buffer):
    """The CuPy array over a buffer with __cuda_array_interface__; None where it is host memory or CuPy is missing."""
    cupy = _cupy()
    if cupy is None:
        return None
    pointer = buffer.__cuda_array_interface__["data"][0]
    if pointer and cupy.cuda.runtime.pointerGetAttributes(pointer).type < 2:  # unregistered or page-locked host memory
        return None
    return cupy.asarray(buffer)


def address(array):
    """Where an array's memory begins."""
    return array.__array_interface__["data"][0] if isinstance(array, np.ndarray) else array.data.ptr


def at(location, nbytes, dtype):
    """A 1-d host array over memory at an address, which it does not keep alive."""
    return np.frombuffer(MPI.memory.fromaddress(location, nbytes), dtype) if nbytes else np.empty(0, dtype)


# One buffer argument.


class Operand:
    """One buffer argument of one call, as a contiguous vector.

    nbytes: bytes of its type signature. dtype: of its elements, or None (derived datatypes move as bytes).
    datatype: the MPI type of an element, or None (float16). vector: a contiguous 1-d array of `dtype` (or bytes) over the
    caller's own memory, or None: then `load(work)` packs and `store(work)` writes back through a work array.
    counts: bytes of each block where the caller gave them. foreign: memory only MPI itself can judge. device: the array in
    device memory, if that is where it lies. module: what reduces it.
    """

    module = np
    counts = None
    vector = None
    device = None
    foreign = False
    load = store = None

    def __init__(self, buffer, datatype, dtype, nbytes):
        self.buffer, self.datatype, self.dtype, self.nbytes = buffer, datatype, dtype, nbytes

    def release(self):
        """Free what packing needed."""

    @property
    def staged(self):
        """Whether the caller's memory has to be packed first."""
        return self.vector is None

    def stage(self):
        """Let device memory that MPI could read pass through the host all the same: the other buffer must."""
        if not self.staged:
            self.vector = None
            _stage_device(self, self.device)

    @property
    def key(self):
        """Identifies the memory in the plan cache."""
        return address(self.vector), self.nbytes


def operand(spec, blocks=0, *, vector=False, writable=False):
    """Understand one buffer argument as mpi4py does; returns an `Operand`.

    blocks: how many equal blocks the buffer holds (gather, scatter). vector: counts and displacements per block.
    Raises BufferError for what no collective can use: object arrays, read-only output, counts beyond the buffer.
    """
    buffer, counts, displs, datatype = _unpack(spec, vector)
    if datatype is not None and not isinstance(datatype, MPI.Datatype):
        datatype = _from_code(datatype)
    array = _as_array(buffer)
    if array is None and buffer is not None and buffer is not MPI.BOTTOM:
        return _foreign(buffer, datatype)
    if array is not None:
        _check_array(array, writable)
        if displs is None and _covers(array, counts, datatype, blocks, vector):
            return _whole_array(array, counts, blocks, vector)
    if array is None or isinstance(array, np.ndarray):
        return _described(array, counts, displs, datatype, blocks, vector, writable)
    return _through_host(array, lambda host: _described(host, counts, displs, datatype, blocks, vector, writable))


def _from_code(code):
    try:
        return MPI.Datatype.fromcode(code)
    except (KeyError, ValueError, TypeError):
        raise BufferError(f"expected an MPI datatype or a type code such as 'd' as the last item, got {code!r}") from None


def _as_array(buffer):
    """The NumPy or CuPy array over any buffer; None for BOTTOM, None, and device memory that only MPI can judge."""
    if isinstance(buffer, np.ndarray):
        return buffer
    if buffer is None or buffer is MPI.BOTTOM:
        return None
    if hasattr(buffer, "__cuda_array_interface__"):
        return _device_array(buffer)
    try:
        return np.asarray(memoryview(buffer))
    except TypeError:
        if hasattr(buffer, "__dlpack__"):
            return _dlpack_array(buffer)
    raise BufferError(f"expected an array or another buffer, or a list that begins with one, got {type(buffer).__name__}")


class _DLTensor(ctypes.Structure):
    """The start of a DLPack tensor, as far as its shape; mpi4py finds the memory, but does not tell the type."""

    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64))]  # fmt: skip


class _DLVersioned(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32 * 2), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
                ("flags", ctypes.c_uint64), ("tensor", _DLTensor)]  # fmt: skip


def _dlpack_array(buffer):
    """A host array over a DLPack object in host memory, CuPy's over one on a device; None where CuPy is missing.

    The capsule is only looked at: numpy.from_dlpack would make memory of the older protocol read-only.
    """
    if buffer.__dlpack_device__()[0] != 1:
        return _cupy().from_dlpack(buffer) if _cupy() else None
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


def _covers(array, counts, datatype, blocks, vector):
    """Whether counts and type, where given, say no more than the array itself: all its elements, of its type."""
    if datatype is not None and datatype != mpi_type(array.dtype):
        return False
    if counts is None:
        return True
    return (sum(counts) if hasattr(counts, "__len__") else counts * max(1, blocks)) == array.size


def _unpack(spec, vector):
    """The (buffer, counts, displacements, datatype) of mpi4py's ways to write a message."""
    if not isinstance(spec, (list, tuple)):
        return spec, None, None, None
    if not 2 <= len(spec) <= 4:
        raise BufferError(f"expected a buffer or a list of 2 to 4 items (buffer, counts, displacements, type), got {spec!r}")
    buffer, *rest = spec
    datatype = rest.pop() if len(spec) > 2 or isinstance(rest[0], (MPI.Datatype, str)) else None
    counts, displs = [*rest, None, None][:2]
    if isinstance(counts, tuple) or (isinstance(counts, list) and not vector):
        counts, displs = counts
    return buffer, counts, displs, datatype


def _check_array(array, writable):
    if array.dtype.hasobject:
        raise BufferError("arrays of Python objects have no bytes to send: use the lower-case methods (bcast, gather, …)")
    if writable and isinstance(array, np.ndarray) and not array.flags.writeable and array.size:
        raise BufferError("the receive buffer is read-only: pass a writable array")


def _whole_array(array, counts, blocks, vector):
    """An operand that is a whole array, host or device, with any strides."""
    dtype = array.dtype
    if not vector:
        equal_blocks(array.size, blocks)
    result = Operand(array, mpi_type(dtype), dtype, array.nbytes)
    host = isinstance(array, np.ndarray)
    if not host:
        result.module, result.device = _cupy(), array
    if (array.flags.c_contiguous or array.flags.f_contiguous) and (host or gpu_mode() == "direct"):
        result.vector = array.reshape(-1, order="A")
    elif host:
        result.load = lambda work: np.copyto(work.reshape(array.shape), array)
        result.store = lambda work: np.copyto(array, work.reshape(array.shape))
    else:
        _stage_device(result, array)
    if vector:
        result.counts = block_bytes(counts, array.size, blocks, dtype.itemsize)
    return result


def _stage_device(result, array):
    """Copies between device and host, ordered after the work already in the current stream."""
    cupy, order = _cupy(), "C" if array.flags.c_contiguous or not array.flags.f_contiguous else "F"
    result.module = np  # what arrives is reduced on the host

    def load(work):
        cupy.asnumpy(array.ravel(order=order), out=work)

    def store(work):
        array[...] = cupy.asarray(work).reshape(array.shape, order=order)
        synchronize()  # the work array goes back to the pool

    result.load, result.store = load, store


def _through_host(array, describe):
    """Device memory that displacements or another type describe: the whole array passes through the host, gaps too."""
    cupy = _cupy()
    _check_contiguous(array)
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
    return _cupy().cuda.Device()


def synchronize():
    """Wait for the work in the current stream of the device."""
    _cupy().cuda.get_current_stream().synchronize()


def _foreign(buffer, datatype):
    result = Operand(buffer, datatype, None, None)
    result.foreign = True
    return result


def _described(array, counts, displs, datatype, blocks, vector, writable):
    """An operand over memory described by counts, displacements and a datatype."""
    memory = _memory(array)
    if datatype is None:
        datatype = MPI.BYTE if array is None else mpi_type(array.dtype)
        if datatype is None:
            raise BufferError(f"MPI has no datatype for {array.dtype}: pass the array alone, without counts")
    length = memory.nbytes if memory is not None else 0
    layout = (Layout.blockwise if vector else Layout.whole)(length, counts, displs, datatype, blocks)
    layout.check_reach(memory, writable and vector)
    dtype = numpy_type(datatype.handle) if datatype.is_predefined else None
    result = Operand(array, datatype, dtype, sum(layout.nbytes))
    if vector:
        result.counts = layout.nbytes
    if layout.is_contiguous:
        start = memory.address + layout.places[0] if result.nbytes else 0
        result.vector = at(start, result.nbytes, dtype or np.uint8)
    else:
        result.load, result.store, result.release = layout.packing(memory)
    return result


def _memory(array):
    """The array's memory as bytes."""
    if array is None:
        return None
    _check_contiguous(array)
    return MPI.memory.fromaddress(address(array), array.nbytes)


def _check_contiguous(array):
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        raise BufferError("a non-contiguous array cannot be described by displacements or another type: pass it alone")
