"""One buffer argument of one call, as a contiguous vector, wherever its memory lies."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from mpi4py import MPI

from .memory import address


def in_place(buffer: object) -> bool:
    """Whether this argument means MPI.IN_PLACE; mpi4py takes None for it too."""
    return buffer is None or buffer is MPI.IN_PLACE


class Operand:
    """One buffer argument of one call, as a contiguous vector.

    nbytes: bytes of its type signature; 0 where only MPI knows. dtype: of its elements, or None (derived datatypes move as
    bytes). datatype: the MPI type of an element, or None (float16). vector: a contiguous 1-d array of `dtype` (or bytes)
    over the caller's own memory, or None: then `pack(work)` copies it into a work array and `unpack(work)` back.
    counts: bytes of each block where the caller gave them. foreign: memory only MPI itself can judge. device: the array in
    device memory, if that is where it lies. module: what reduces it.
    """

    def __init__(self, buffer: Any, datatype: MPI.Datatype | None, dtype: "np.dtype[Any] | None", nbytes: int) -> None:
        self.buffer, self.datatype, self.dtype, self.nbytes = buffer, datatype, dtype, nbytes
        self.module: ModuleType | Any = np
        self.vector: Any = None
        self.counts: list[int] | None = None
        self.device: Any = None
        self.foreign = False
        self.pack: Callable[[Any], None] = _nothing
        self.unpack: Callable[[Any], None] = _nothing
        self.release: Callable[[], object] = _nothing  # frees what packing needed

    @property
    def staged(self) -> bool:
        """Whether the caller's memory has to be packed first."""
        return self.vector is None

    @property
    def key(self) -> tuple[int, int]:
        """Where its memory begins, and how many bytes it has."""
        return address(self.vector), self.nbytes


def _nothing(*_: object) -> None:
    pass
