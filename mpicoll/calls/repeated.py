"""The key of a call, by which later calls like it are recognised."""

from array import array
from collections.abc import Iterable
from mmap import mmap
from operator import index
from typing import Any

import numpy as np
from mpi4py import MPI

from ..buffers import OWN_TYPES, decoded
from ..execute import Key
from ..gpu import device_key
from ..shared_memory import HEAP

_ndarray = np.ndarray
_Datatype = MPI.Datatype
_NULL = MPI.DATATYPE_NULL
_Op = MPI.Op
_IN_PLACE = MPI.IN_PLACE
_address = MPI.Get_address
#: bytes, at least the alignment of each type: what is not aligned is packed
_ALIGN = 16
#: exporters of host memory other than NumPy arrays
_BUFFERS = {bytearray, bytes, memoryview, mmap, array, MPI.buffer}


def key_of(
    parse: object, args: Iterable[Any], algorithm: str | None, segment_bytes: int | None
) -> Key | None:
    """The key of a call, with any form of mpi4py's arguments; None where they need full parsing.

    parse: the function that would parse the arguments.

    A key has addresses instead of arrays, so that no plan keeps a caller's array alive. An array
    that takes the place of another one of the same type and size uses the same plan. Written for
    speed: a repeated call does little else in Python.
    """
    shape: list[Any] = [parse, algorithm, segment_bytes]
    memory: list[tuple[int, int]] = []
    for argument in args:
        kind = argument.__class__
        is_list = kind is list or kind is tuple
        if is_list:
            if not (argument and _add_message(argument, shape)):
                return None
            argument = argument[0]
            kind = argument.__class__
        if kind is _ndarray:
            flags = argument.flags.num
            if not flags & 3:  # neither C- nor F-contiguous
                return None
            nbytes = argument.nbytes
            dtype = argument.dtype
            # the number, too: long and long long are equal dtypes, but differ for mpi4py
            shape += flags, nbytes, dtype, dtype.num
            address = _address(argument)
            if is_list:  # of another type than the array, whose flags tell of its own alignment
                shape.append(address % _ALIGN)
            memory.append((address, nbytes))
        elif kind is _Op:
            shape.append(argument.handle)
        elif argument is _IN_PLACE or argument is None or kind is int:
            shape.append(argument)
        elif kind in _BUFFERS:
            view = memoryview(argument)
            if not view.c_contiguous:
                return None
            address = _address(argument)
            shape += kind, view.nbytes, view.format, view.readonly, address % _ALIGN
            memory.append((address, view.nbytes))
        elif (device_part := device_key(argument)) is not None:
            shape += kind, *device_part
        else:
            return None
    if HEAP.in_use:  # binding depends on which buffers other ranks can read
        shape += (HEAP.location(*place) is not None for place in memory)
    if len(memory) == 2:
        (send, send_bytes), (recv, recv_bytes) = memory
        if send == recv:
            shape.append(_IN_PLACE)
        elif send < recv + recv_bytes and recv < send + send_bytes:  # parsing checks them
            return None
    return tuple(shape), tuple(memory)


def _add_message(message: Any, shape: list[Any]) -> bool:
    """Add the items of a list but for its buffer: counts, displacements and the datatype.

    False where that is impossible. MPI reuses the handles of derived datatypes that were freed: in
    their place it has what they are decoded to.
    """
    shape += list, len(message)
    for item in message[1:]:
        kind = item.__class__
        if kind is int or kind is str or item is None:
            shape.append(item)
        elif kind is _Datatype:
            if item.handle in OWN_TYPES:
                shape += kind, item.handle
            elif item == _NULL:
                return False
            else:
                shape += kind, decoded(item)
        elif kind is list or kind is tuple:
            if not _add_message((None, *item), shape):
                return False
            shape.append(kind)
        elif kind is _ndarray and item.dtype.kind in "iu":
            shape += item.dtype, item.shape, item.tobytes()
        elif kind is array:
            shape += item.typecode, item.tobytes()
        else:
            try:
                shape.append(index(item))
            except TypeError:
                return False
    return True
