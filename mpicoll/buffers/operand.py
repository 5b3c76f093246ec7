"""One buffer argument of one call, as a contiguous vector, wherever its memory lies."""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from mpi4py import MPI

from .footprint import Footprint
from .memory import address


def in_place(buffer: object) -> bool:
    """Whether this argument means MPI.IN_PLACE; mpi4py takes None for it too."""
    return buffer is None or buffer is MPI.IN_PLACE


class Operand:
    """One buffer argument of one call, as a contiguous vector.

    nbytes: bytes of its type signature. dtype: of its elements, or None (derived datatypes move as
    bytes). datatype: the MPI type of an element, or None (float16). vector: a contiguous 1-d array of `dtype` (or bytes)
    over the caller's own memory, or None: then `pack(work)` copies it into a work array and `unpack(work)` back.
    footprint: the bytes of memory that it touches, where a vector of the host does not tell. counts: bytes of each block
    where the caller gave them.

    device: the array in device memory, if that is where it lies; `caller_stream()` is then the stream that the caller's
    own work is in, `begun` an event in it where a call may be served later, by another thread. packs_on: the module of the
    work array. staged: MPI never gets a pointer to it, copies of it in host memory travel. mirror: where device memory is
    described, a host array that stands for it, once `fetch()` has filled it and until `put()` brings it back.

    rows, edges: where it is the sum of several contributions, these, as vectors, and what `Contributions` says of parts.
    """

    def __init__(self, buffer: Any, datatype: MPI.Datatype | None, dtype: "np.dtype[Any] | None", nbytes: int) -> None:
        self.buffer, self.datatype, self.dtype, self.nbytes = buffer, datatype, dtype, nbytes
        self.vector: Any = None
        self.footprint: Footprint | None = None
        self.counts: list[int] | None = None
        self.rows: list[Any] | None = None
        self.edges: Sequence[int] | None = None
        self.device: Any = None
        self.caller_stream: Callable[[], Any] = _nothing
        self.begun: Any = None
        self.packs_on: ModuleType | Any = np
        self.staged = False
        self.mirror: Any = None
        self.fetch: Callable[[], object] = _nothing
        self.put: Callable[[], object] = _nothing
        self.pack: Callable[[Any], object] = _nothing
        self.unpack: Callable[[Any], object] = _nothing

    def pack_from(self, footprint: Footprint) -> None:
        """It lies so in host memory, and has to be packed."""
        self.footprint = footprint
        self.pack, self.unpack = footprint.copies()

    @property
    def packed(self) -> bool:
        """Whether the caller's memory has to be packed first."""
        return self.vector is None

    @property
    def on_device(self) -> bool:
        """Whether it travels, and is reduced, where it lies on a device."""
        return self.device is not None and self.mirror is None and not self.staged

    @property
    def key(self) -> tuple[int, int]:
        """Where its memory begins, and how many bytes it has."""
        return address(self.vector), self.nbytes


def _nothing(*_: object) -> Any:
    pass
