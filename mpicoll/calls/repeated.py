"""What a repeated call is recognised by."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from mpi4py import MPI

_ndarray, _Op, _IN_PLACE, _address = np.ndarray, MPI.Op, MPI.IN_PLACE, MPI.Get_address


def repeated(
    understand: object, given: Iterable[Any], algorithm: str | None, segment_bytes: int | None
) -> tuple[Any, ...] | None:
    """What a call on plain arrays is recognised by: all that its checks, its choice and its plan depend on; else None.

    Memory is known by address, so that no plan keeps a caller's array alive; an array that takes the place of another
    of the same type and size is served by the same plan. Written for speed: a repeated call does nothing else in Python.
    """
    key: list[Any] = [understand, algorithm, segment_bytes]
    for argument in given:
        kind = type(argument)
        if kind is _ndarray:
            flags = argument.flags.num
            if not flags & 3:  # neither C- nor F-contiguous
                return None
            key += flags, _address(argument), argument.nbytes, argument.dtype
        elif kind is _Op:
            key.append(argument.handle)
        elif argument is _IN_PLACE or kind is int or argument is None:
            key.append(argument)
        else:
            return None
    return tuple(key)
