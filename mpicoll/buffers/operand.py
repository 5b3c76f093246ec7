"""Buffers: what a buffer argument means, and how it becomes contiguous memory and back.

Everything that depends on the kind of memory is here: host or device, contiguous, strided or described by a datatype.
CuPy is imported only when an array with ``__cuda_array_interface__`` arrives.
"""

import numpy as np
from mpi4py import MPI

from ..errors import BufferError
from .device import device_array, gpu_mode, optional_cupy, stage_device, through_host
from .dlpack import dlpack_array
from .layout import Layout, block_bytes, equal_blocks
from .memory import address, at, memory_of
from .ops import mpi_type, numpy_type


def in_place(buffer):
    """Whether this argument means MPI.IN_PLACE; mpi4py takes None for it too."""
    return buffer is None or buffer is MPI.IN_PLACE


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
            stage_device(self, self.device)

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
    return through_host(array, lambda host: _described(host, counts, displs, datatype, blocks, vector, writable))


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
        return device_array(buffer)
    try:
        return np.asarray(memoryview(buffer))
    except TypeError:
        if hasattr(buffer, "__dlpack__"):
            return dlpack_array(buffer)
    raise BufferError(f"expected an array or another buffer, or a list that begins with one, got {type(buffer).__name__}")


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
        result.module, result.device = optional_cupy(), array
    if (array.flags.c_contiguous or array.flags.f_contiguous) and (host or gpu_mode() == "direct"):
        result.vector = array.reshape(-1, order="A")
    elif host:
        result.load = lambda work: np.copyto(work.reshape(array.shape), array)
        result.store = lambda work: np.copyto(array, work.reshape(array.shape))
    else:
        stage_device(result, array)
    if vector:
        result.counts = block_bytes(counts, array.size, blocks, dtype.itemsize)
    return result


def _foreign(buffer, datatype):
    result = Operand(buffer, datatype, None, None)
    result.foreign = True
    return result


def _described(array, counts, displs, datatype, blocks, vector, writable):
    """An operand over memory described by counts, displacements and a datatype."""
    memory = memory_of(array)
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
