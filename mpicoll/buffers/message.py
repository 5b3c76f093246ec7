"""What a buffer argument means, and how it becomes contiguous memory and back.

Everything that depends on the kind of memory is in this room: host or device, contiguous, strided or described by a
datatype. CuPy is imported only when an array with ``__cuda_array_interface__`` arrives.
"""

import builtins
from math import prod
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from .. import errors
from ..support.arrays import element_type
from .awareness import gpu_mode
from .device import device_array, footprint_of, is_bfloat16, optional_cupy
from .dlpack import dlpack_array, foreign_type
from .fixed_point import Contributions
from .footprint import Described, Strided
from .layout import Layout, block_bytes, equal_blocks
from .memory import address, at, memory_of
from .mirror import mirrored
from .operand import Operand
from .ops import mpi_type, numpy_type
from .streams import caller_stream, device_packing


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
            if len(counts) != 2:
                raise errors.BufferError(f"expected (counts, displacements), got {counts!r}")
            counts, displacements = counts
        if datatype is not None and not isinstance(datatype, MPI.Datatype):
            datatype = _from_code(datatype)
        if datatype == MPI.DATATYPE_NULL:
            raise errors.BufferError("expected an MPI datatype as the last item, got DATATYPE_NULL")
        return cls(buffer, _plain(counts), _plain(displacements), datatype)

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
    if isinstance(spec, Contributions):
        return _contributions(spec, blocks, writable)
    expected = Expected(blocks, vector, writable)
    message = Message.parse(spec, vector)
    array = _as_array(message.buffer)
    result = _operand(array, message, expected)
    if result.device is not None:
        result.caller_stream = caller_stream(message.buffer)
    return result


def _operand(array: Any, message: Message, expected: Expected) -> Operand:
    if expected.writable:
        _check_writable(message.buffer, array)
    if array is None and message.buffer is not None and message.buffer is not MPI.BOTTOM:
        return _through_mpi(message, expected)
    if array is not None:
        _check_array(array)
        if message.covers(array, expected):
            return _whole_array(array, message, expected)
    if array is None or isinstance(array, np.ndarray):
        return _described(array, message, expected)
    return mirrored(array, lambda host: _described(host, message, expected))


def _contributions(spec: Contributions, blocks: int, writable: bool) -> Operand:
    """An operand that is the sum of the rows of an array, none of which is looked at as a whole."""
    array = _as_array(spec.array)
    if writable or array is None or not array.ndim:
        raise errors.BufferError("Contributions: expected an array with a leading axis, as a send buffer")
    _check_array(array)
    rows = [array[number, ...] for number in range(array.shape[0])]  # also a number of one dimension stays an array
    if not all(row.flags.c_contiguous or row.flags.f_contiguous for row in rows):
        raise errors.BufferError("Contributions: expected an array of which each contribution is contiguous")
    like = rows[0] if rows else array.reshape(-1)[:0]
    result = _whole_array(like, Message(spec.array), Expected(0, False, False))
    length = prod(array.shape[1:])
    equal_blocks(length, blocks)
    result.nbytes, result.vector, result.edges = length * array.dtype.itemsize, None, spec.edges
    result.rows = [row.reshape(-1, order="A") for row in rows]
    if isinstance(array, np.ndarray):
        result.footprint = Strided(array)
    else:
        result.device, result.footprint = array, footprint_of(array)
        result.caller_stream = caller_stream(spec.array)
    return result


def _plain(counts: Any) -> Any:
    """A number, where that is what an array of no dimensions holds."""
    return counts.item() if getattr(counts, "ndim", None) == 0 else counts


def _from_code(code: Any) -> MPI.Datatype:
    try:
        return MPI.Datatype.fromcode(code)
    except (KeyError, ValueError, TypeError):
        raise errors.TypeCodeError(
            f"expected an MPI datatype or a type code such as 'd' as the last item, got {code!r}"
        ) from None


def _as_array(buffer: Any) -> Any:
    """The NumPy or CuPy array over any buffer; None for BOTTOM, None, and memory for CuPy where CuPy is missing."""
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


def _check_array(array: Any) -> None:
    if array.dtype.hasobject:
        raise errors.BufferError(
            "arrays of Python objects have no bytes to send: use the lower-case methods (bcast, gather, …)"
        )


def _check_writable(buffer: Any, array: Any) -> None:
    if isinstance(array, np.ndarray):
        read_only = array.size and not array.flags.writeable
    else:
        read_only = hasattr(buffer, "__cuda_array_interface__") and buffer.__cuda_array_interface__["data"][1]
    if read_only:
        raise errors.BufferError("the receive buffer is read-only: pass a writable array")


def _whole_array(array: Any, message: Message, expected: Expected) -> Operand:
    """An operand that is a whole array, host or device, with any strides."""
    host, contiguous = isinstance(array, np.ndarray), array.flags.c_contiguous or array.flags.f_contiguous
    if host and contiguous and not array.flags.aligned:  # mpi4py refuses it, and not every MPI library reduces it
        array = array.reshape(-1, order="A")  # its elements go in the order of memory, all the same
        contiguous = False
    is_plain = host or message.datatype is not None or not is_bfloat16(message.buffer)
    dtype = array.dtype if is_plain else element_type("bfloat16")  # which CuPy has as integers
    if not expected.vector:
        equal_blocks(array.size, expected.blocks)
    result = Operand(array, mpi_type(dtype), dtype, array.nbytes)
    if contiguous:
        result.vector = array.reshape(-1, order="A")
    elif host:
        result.pack_from(Strided(array))
    if not host:
        result.device, result.packs_on, result.footprint = array, optional_cupy(), footprint_of(array)
        result.pack, result.unpack = device_packing(array)
        result.staged = gpu_mode() != "direct"
    if expected.vector:
        result.counts = block_bytes(message.counts, array.size, expected.blocks, dtype.itemsize)
    return result


def _through_mpi(message: Message, expected: Expected) -> Operand:
    """An operand over memory that may be a device's, without CuPy: MPI packs it, so that all ranks choose alike."""
    try:
        memory = MPI.memory(message.buffer)
    except builtins.BufferError as error:
        raise errors.BufferError(f"{error}: without CuPy, device memory must be contiguous") from None
    array = at(memory.address, memory.nbytes, foreign_type(message.buffer, memory))  # tells size and type; is never read
    result = (_whole_array if message.covers(array, expected) else _described)(array, message, expected)
    if not result.packed:
        result.pack_from(Described(Layout(MPI.BYTE, [result.nbytes], [0]), address(result.vector)))
        result.vector = None
    result.buffer = message.buffer
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
    start = memory.address + layout.places[0] if memory is not None and result.nbytes else 0
    if layout.is_contiguous and (dtype is None or start % dtype.alignment == 0):
        result.vector = at(start, result.nbytes, dtype or np.uint8)
    else:
        result.pack_from(Described(layout.owned(), memory.address if memory is not None else 0))
    return result
