"""What a buffer argument means, and how it becomes contiguous memory and back.

Everything that depends on the kind of memory is in this room: host or device, contiguous, strided or described by a
datatype. CuPy is imported only when an array with ``__cuda_array_interface__`` arrives.
"""

from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from .. import errors
from .device import device_array, gpu_mode, optional_cupy, stage_device, through_host
from .dlpack import dlpack_array
from .layout import Layout, block_bytes, equal_blocks
from .memory import at, memory_of
from .operand import Operand
from .ops import mpi_type, numpy_type


class Expected(NamedTuple):
    """What a call wants of a buffer. blocks: how many equal blocks it holds (gather, scatter); 0: it is not cut.

    vector: counts and displacements per block. writable: it receives.
    """

    blocks: int
    vector: bool
    writable: bool


class Message(NamedTuple):
    """A buffer argument, taken apart. counts and displacements: a number, or one for each block; None where not given."""

    buffer: Any
    counts: Any = None
    displacements: Any = None
    datatype: MPI.Datatype | None = None

    @classmethod
    def parse(cls, spec: Any, vector: bool) -> "Message":
        """Understand mpi4py's ways to write a message."""
        if not isinstance(spec, (list, tuple)):
            return cls(spec)
        if not 2 <= len(spec) <= 4:
            raise errors.BufferError(
                f"expected a buffer or a list of 2 to 4 items (buffer, counts, displacements, type), got {spec!r}"
            )
        buffer, *rest = spec
        datatype = rest.pop() if len(spec) > 2 or isinstance(rest[0], (MPI.Datatype, str)) else None
        counts, displacements = [*rest, None, None][:2]
        if isinstance(counts, tuple) or (isinstance(counts, list) and not vector):
            counts, displacements = counts
        if datatype is not None and not isinstance(datatype, MPI.Datatype):
            datatype = _from_code(datatype)
        return cls(buffer, counts, displacements, datatype)

    def covers(self, array: Any, expected: Expected) -> bool:
        """Whether counts and type, where given, say no more than the array itself: all its elements, of its type."""
        if self.displacements is not None or (self.datatype is not None and self.datatype != mpi_type(array.dtype)):
            return False
        if self.counts is None:
            return True
        given = sum(self.counts) if hasattr(self.counts, "__len__") else self.counts * max(1, expected.blocks)
        return bool(given == array.size)


def operand(spec: Any, blocks: int = 0, *, vector: bool = False, writable: bool = False) -> Operand:
    """Understand one buffer argument as mpi4py does; returns an `Operand`.

    blocks, vector, writable: see `Expected`. Raises BufferError for what no collective can use: object arrays, read-only
    output, counts beyond the buffer.
    """
    expected = Expected(blocks, vector, writable)
    message = Message.parse(spec, vector)
    array = _as_array(message.buffer)
    if array is None and message.buffer is not None and message.buffer is not MPI.BOTTOM:
        return _foreign(message)
    if array is not None:
        _check_array(array, writable)
        if message.covers(array, expected):
            return _whole_array(array, message.counts, expected)
    if array is None or isinstance(array, np.ndarray):
        return _described(array, message, expected)
    return through_host(array, lambda host: _described(host, message, expected))


def _from_code(code: Any) -> MPI.Datatype:
    try:
        return MPI.Datatype.fromcode(code)
    except (KeyError, ValueError, TypeError):
        raise errors.BufferError(
            f"expected an MPI datatype or a type code such as 'd' as the last item, got {code!r}"
        ) from None


def _as_array(buffer: Any) -> Any:
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
    got = type(buffer).__name__
    raise errors.BufferError(f"expected an array or another buffer, or a list that begins with one, got {got}")


def _check_array(array: Any, writable: bool) -> None:
    if array.dtype.hasobject:
        raise errors.BufferError(
            "arrays of Python objects have no bytes to send: use the lower-case methods (bcast, gather, …)"
        )
    if writable and isinstance(array, np.ndarray) and not array.flags.writeable and array.size:
        raise errors.BufferError("the receive buffer is read-only: pass a writable array")


def _whole_array(array: Any, counts: Any, expected: Expected) -> Operand:
    """An operand that is a whole array, host or device, with any strides."""
    dtype = array.dtype
    if not expected.vector:
        equal_blocks(array.size, expected.blocks)
    result = Operand(array, mpi_type(dtype), dtype, array.nbytes)
    host = isinstance(array, np.ndarray)
    if not host:
        result.module, result.device = optional_cupy(), array
    if (array.flags.c_contiguous or array.flags.f_contiguous) and (host or gpu_mode() == "direct"):
        result.vector = array.reshape(-1, order="A")
    elif host:
        result.pack = lambda work: np.copyto(work.reshape(array.shape), array)
        result.unpack = lambda work: np.copyto(array, work.reshape(array.shape))
    else:
        stage_device(result, array)
    if expected.vector:
        result.counts = block_bytes(counts, array.size, expected.blocks, dtype.itemsize)
    return result


def _foreign(message: Message) -> Operand:
    result = Operand(message.buffer, message.datatype, None, 0)
    result.foreign = True
    return result


def _described(array: Any, message: Message, expected: Expected) -> Operand:
    """An operand over memory described by counts, displacements and a datatype."""
    memory, datatype = memory_of(array), message.datatype
    if datatype is None:
        datatype = MPI.BYTE if array is None else mpi_type(array.dtype)
        if datatype is None:
            raise errors.BufferError(f"MPI has no datatype for {array.dtype}: pass the array alone, without counts")
    length = memory.nbytes if memory is not None else 0
    describe = Layout.blockwise if expected.vector else Layout.whole
    layout = describe(length, message.counts, message.displacements, datatype, expected.blocks)
    layout.check_reach(memory, expected.writable and expected.vector)
    dtype = numpy_type(datatype.handle) if datatype.is_predefined else None
    result = Operand(array, datatype, dtype, sum(layout.nbytes))
    if expected.vector:
        result.counts = layout.nbytes
    if layout.is_contiguous:
        start = memory.address + layout.places[0] if memory is not None and result.nbytes else 0
        result.vector = at(start, result.nbytes, dtype or np.uint8)
    else:
        result.pack, result.unpack, result.release = layout.packing(memory)
    return result
