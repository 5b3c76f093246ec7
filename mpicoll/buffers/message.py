"""Parsing of a buffer argument into an `Operand`.

Everything that depends on the kind of memory is in this room: host or device, contiguous, strided
or described by a datatype. CuPy is imported only for an array with ``__cuda_array_interface__``.
"""

import builtins
from array import array as NumberArray
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from .. import errors
from ..gpu import caller_stream, device_array, device_packing, gpu_mode, is_bfloat16, optional_cupy
from ..support.arrays import element_type
from .device import footprint_of
from .dlpack import dlpack_array, foreign_type
from .fixed_point import Contributions
from .footprint import Described, Strided
from .layout import Layout, block_bytes, equal_blocks, owned_type
from .memory import address, at, memory_of
from .mirror import mirrored
from .operand import Operand
from .ops import mpi_type, numpy_type


class Expected(NamedTuple):
    """What a call expects of a buffer."""

    #: how many equal blocks it holds (gather, scatter); 0: it is not cut
    blocks: int
    #: counts and displacements are per block
    vector: bool
    #: a receive buffer
    writable: bool


class ParsedSpec(NamedTuple):
    """The items of a buffer argument; None where the caller omits them."""

    buffer: Any
    #: a number, or a number for each block
    counts: Any = None
    displacements: Any = None
    datatype: MPI.Datatype | None = None

    @classmethod
    def parse(cls, spec: Any, vector: bool) -> "ParsedSpec":
        """Parse the forms of a message that mpi4py accepts."""
        if not isinstance(spec, (list, tuple)):
            return cls(spec)
        if not 2 <= len(spec) <= 4:
            items = "a list of 2 to 4 items (buffer, counts, displacements, type)"
            raise errors.BufferError(f"expected a buffer or {items}, got {spec!r}")
        buffer, *rest = spec
        has_type = len(spec) > 2 or isinstance(rest[0], (MPI.Datatype, str))
        datatype = rest.pop() if has_type else None
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
        """Whether counts and type describe the whole array: all its elements, of its type."""
        if self.displacements is not None:
            return False
        if self.datatype is not None and self.datatype != mpi_type(array.dtype):
            return False
        counts = self.counts
        if counts is None:
            return True
        total = sum(counts) if hasattr(counts, "__len__") else counts * max(1, expected.blocks)
        return bool(total == array.size)


def frozen(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments of a call that goes on after its method has returned, with lists of their own.

    The caller may use its lists for the next call by then, and free its datatypes. The buffers are
    the caller's, and are kept alive.
    """
    return tuple(
        argument.__class__([*argument[:1], *map(_frozen_item, argument[1:])])
        if argument.__class__ in (list, tuple) else argument
        for argument in arguments
    )  # fmt: skip


def _frozen_item(item: Any) -> Any:
    """A copy of counts, displacements or datatypes."""
    if item.__class__ in (list, tuple):
        return item.__class__(map(_frozen_item, item))
    if isinstance(item, MPI.Datatype):
        return owned_type(item)
    return copy(item) if isinstance(item, (np.ndarray, NumberArray)) else item


@dataclass(frozen=True)
class KeptSums:
    """A receive buffer of a compressed allreduce, and room for what its codes are made of.

    Error feedback needs both. array: the receive buffer. sums: is written, the block of sums that
    this rank makes, before it is coded.
    """

    array: Any
    sums: Any


def operand(spec: Any, blocks: int = 0, *, vector: bool = False, writable: bool = False) -> Operand:
    """Parse a buffer argument as mpi4py does; returns an `Operand`.

    blocks, vector, writable: see `Expected`. Raises BufferError for buffers that no collective can
    use: object arrays, read-only output, counts beyond the buffer.
    """
    if isinstance(spec, Contributions):
        return _contributions(spec, blocks, writable)
    if isinstance(spec, KeptSums):
        result = operand(spec.array, writable=True)
        result.sums = operand(spec.sums, writable=True)
        return result
    expected = Expected(blocks, vector, writable)
    message = ParsedSpec.parse(spec, vector)
    array = array_of_buffer(message.buffer, writable)
    result = _operand(array, message, expected)
    if result.device is not None:
        result.caller_stream = caller_stream(message.buffer)
    return result


def _operand(array: Any, message: ParsedSpec, expected: Expected) -> Operand:
    if array is None and message.buffer is not None and message.buffer is not MPI.BOTTOM:
        return _through_mpi(message, expected)
    if array is not None and message.covers(array, expected):
        return _whole_array(array, message, expected)
    if array is None or isinstance(array, np.ndarray):
        return _described(array, message, expected)
    return mirrored(array, lambda host: _described(host, message, expected))


def _contributions(spec: Contributions, blocks: int, writable: bool) -> Operand:
    """An operand that is the sum of the rows of an array; the array itself may have gaps."""
    array = _as_array(spec.array)
    if writable or array is None or not array.ndim:
        expected = "an array with a leading axis, as a send buffer"
        raise errors.BufferError(f"Contributions: expected {expected}")
    _check_array(array)
    rows = [array[number, ...] for number in range(array.shape[0])]  # `...`: never a scalar
    if not all(row.flags.c_contiguous or row.flags.f_contiguous for row in rows):
        expected = "an array of which each contribution is contiguous"
        raise errors.BufferError(f"Contributions: expected {expected}")
    like = rows[0] if rows else array.reshape(-1)[:0]
    result = _whole_array(like, ParsedSpec(spec.array), Expected(0, False, False))
    length = prod(array.shape[1:])
    equal_blocks(length, blocks)
    result.nbytes = length * array.dtype.itemsize
    result.vector = None
    result.rows = [row.reshape(-1, order="A") for row in rows]
    result.edges = spec.edges
    if isinstance(array, np.ndarray):
        result.footprint = Strided(array)
    else:
        result.device = array
        result.footprint = footprint_of(array)
        result.caller_stream = caller_stream(spec.array)
    return result


def _plain(counts: Any) -> Any:
    """The number in an array of no dimensions, or the counts as they are."""
    return counts.item() if getattr(counts, "ndim", None) == 0 else counts


def _from_code(code: Any) -> MPI.Datatype:
    try:
        return MPI.Datatype.fromcode(code)
    except (KeyError, ValueError, TypeError):
        expected = "an MPI datatype or a type code such as 'd' as the last item"
        raise errors.TypeCodeError(f"expected {expected}, got {code!r}") from None


def array_of_buffer(buffer: Any, writable: bool) -> Any:
    """The NumPy or CuPy array over a buffer, which must be `writable` and of plain elements.

    None for BOTTOM, for None, and for device memory where CuPy is missing.
    """
    array = _as_array(buffer)
    if writable:
        _check_writable(buffer, array)
    if array is not None:
        _check_array(array)
    return array


def _as_array(buffer: Any) -> Any:
    """The NumPy or CuPy array over a buffer.

    None for BOTTOM, for None, and for device memory where CuPy is missing.
    """
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
    expected = "an array or another buffer, or a list that begins with one"
    raise errors.BufferError(f"expected {expected}, got {type(buffer).__name__}")


def _check_array(array: Any) -> None:
    if array.dtype.hasobject:
        instead = "use the lower-case methods (bcast, gather, …)"
        raise errors.BufferError(f"arrays of Python objects have no bytes to send: {instead}")


def _check_writable(buffer: Any, array: Any) -> None:
    if isinstance(array, np.ndarray):
        read_only = array.size and not array.flags.writeable
    else:
        interface = getattr(buffer, "__cuda_array_interface__", None)
        read_only = interface is not None and interface["data"][1]
    if read_only:
        raise errors.BufferError("the receive buffer is read-only: pass a writable array")


def _whole_array(array: Any, message: ParsedSpec, expected: Expected) -> Operand:
    """An operand that is a whole array, host or device, with any strides."""
    host = isinstance(array, np.ndarray)
    contiguous = array.flags.c_contiguous or array.flags.f_contiguous
    if host and contiguous and not array.flags.aligned:
        # mpi4py rejects it, and not every MPI library reduces it: packed, in the order of memory
        array = array.reshape(-1, order="A")
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
        result.device = array
        result.packs_on = optional_cupy()
        result.footprint = footprint_of(array)
        result.pack, result.unpack = device_packing(array)
        result.staged = gpu_mode() != "direct"
    if expected.vector:
        result.counts = block_bytes(message.counts, array.size, expected.blocks, dtype.itemsize)
    return result


def _through_mpi(message: ParsedSpec, expected: Expected) -> Operand:
    """An operand over memory that may be on a device, without CuPy.

    MPI packs it, so that all ranks choose the same algorithm.
    """
    try:
        memory = MPI.memory(message.buffer)
    except builtins.BufferError as error:
        reason = "without CuPy, device memory must be contiguous"
        raise errors.BufferError(f"{error}: {reason}") from None
    # the array tells size and type; it is never read
    array = at(memory.address, memory.nbytes, foreign_type(message.buffer, memory))
    operand_of = _whole_array if message.covers(array, expected) else _described
    result = operand_of(array, message, expected)
    if not result.packed:
        result.pack_from(Described(Layout(MPI.BYTE, [result.nbytes], [0]), address(result.vector)))
        result.vector = None
    result.buffer = message.buffer
    return result


def _described(array: Any, message: ParsedSpec, expected: Expected) -> Operand:
    """An operand over memory described by counts, displacements and a datatype."""
    memory = memory_of(array)
    datatype = message.datatype
    if datatype is None:
        if array is None:
            got = "None" if message.buffer is None else "MPI.BOTTOM"
            raise errors.TypeCodeError(
                f"expected an array, or a list with a datatype, as [None, 0, MPI.BYTE] for no "
                f"data, got {got} without a datatype"
            )
        datatype = mpi_type(array.dtype)
        if datatype is None:
            instead = "pass the array alone, without counts"
            raise errors.BufferError(f"MPI has no datatype for {array.dtype}: {instead}")
    length = memory.nbytes if memory is not None else 0
    describe = Layout.blockwise if expected.vector else Layout.whole
    layout = describe(length, message.counts, message.displacements, datatype, expected.blocks)
    # a derived type may have the addresses of its elements
    if any(layout.counts) and (message.buffer is None or memory is None and datatype.is_predefined):
        raise errors.BufferError("the buffer is None or BOTTOM, but the count is not 0")
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
