"""What a repeated call is recognised by."""

from array import array
from collections.abc import Iterable
from mmap import mmap
from operator import index
from typing import Any

import numpy as np
from mpi4py import MPI

from ..buffers import OWN_TYPES, device_key
from ..shared_memory import HEAP

_ndarray, _Datatype, _Op, _IN_PLACE, _address = np.ndarray, MPI.Datatype, MPI.Op, MPI.IN_PLACE, MPI.Get_address
#: exporters of host memory beside arrays
_BUFFERS = {bytearray, bytes, memoryview, mmap, array, MPI.buffer}


#: shape: all that a call's checks, its choice and its plan depend on, but for where memory lies; and (address, bytes) of each
#: buffer in host memory
Key = tuple[tuple[Any, ...], tuple[tuple[int, int], ...]]


def repeated(understand: object, given: Iterable[Any], algorithm: str | None, segment_bytes: int | None) -> Key | None:
    """What a call is recognised by, in any of mpi4py's spellings; None where that takes more than a look.

    Memory is known by address, so that no plan keeps a caller's array alive; an array that takes the place of another
    of the same type and size is served by the same plan. Written for speed: a repeated call does little else in Python.
    """
    shape: list[Any] = [understand, algorithm, segment_bytes]
    memory: list[tuple[int, int]] = []
    for argument in given:
        kind = argument.__class__
        if kind is list or kind is tuple:
            if not (argument and _tells(argument, shape)):
                return None
            argument = argument[0]
            kind = argument.__class__
        if kind is _ndarray:
            flags = argument.flags.num
            if not flags & 3:  # neither C- nor F-contiguous
                return None
            nbytes, dtype = argument.nbytes, argument.dtype
            shape += flags, nbytes, dtype, dtype.num  # long and long long are equal, but not for mpi4py
            memory.append((_address(argument), nbytes))
        elif kind is _Op:
            shape.append(argument.handle)
        elif argument is _IN_PLACE or argument is None or kind is int:
            shape.append(argument)
        elif kind in _BUFFERS:
            view = memoryview(argument)
            if not view.c_contiguous:
                return None
            shape += kind, view.nbytes, view.format, view.readonly
            memory.append((_address(argument), view.nbytes))
        elif (described := device_key(argument)) is not None:
            shape += kind, *described
        else:
            return None
    if HEAP.in_use:  # how a plan is bound depends on it
        shape += (HEAP.location(*place) is not None for place in memory)
    if len(memory) == 2:
        (one, size), (other, room) = memory
        if one == other:
            shape.append(_IN_PLACE)
        elif one < other + room and other < one + size:
            return None
    return tuple(shape), tuple(memory)


def _tells(message: Any, shape: list[Any]) -> bool:
    """Enter what a list says beside its buffer, the contents of counts and displacements among it.

    False where that is not told: handles of derived datatypes are used again once these are freed.
    """
    shape += list, len(message)
    for item in message[1:]:
        kind = item.__class__
        if kind is int or kind is str or item is None:
            shape.append(item)
        elif kind is _Datatype:
            if item.handle not in OWN_TYPES:
                return False
            shape += kind, item.handle
        elif kind is list or kind is tuple:
            if not _tells((None, *item), shape):
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
