"""One buffer argument of one call, as a contiguous vector, wherever its memory lies."""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from mpi4py import MPI

from ..gpu import at_device
from .footprint import Footprint, Strided
from .memory import address, at


def in_place(buffer: object) -> bool:
    """Whether this argument means MPI.IN_PLACE; mpi4py takes None for it too."""
    return buffer is None or buffer is MPI.IN_PLACE


class Operand:
    """One buffer argument of one call, as a contiguous vector.

    It is either `vector`, or has to be packed: `pack(work)` copies it into a work array,
    `unpack(work)` back.
    """

    def __init__(
        self,
        buffer: Any,
        datatype: MPI.Datatype | None,
        dtype: "np.dtype[Any] | None",
        nbytes: int,
    ) -> None:
        #: the caller's argument
        self.buffer = buffer
        #: the MPI type of an element, or None (float16)
        self.datatype = datatype
        #: the NumPy type of an element, or None (derived datatypes move as bytes)
        self.dtype = dtype
        #: bytes of the type signature
        self.nbytes = nbytes
        #: a contiguous 1-d array of `dtype` (or bytes) over the caller's memory, or None: packed
        self.vector: Any = None
        #: the bytes of memory that it touches, where a vector of the host does not tell
        self.footprint: Footprint | None = None
        #: bytes of each block, where the caller's counts tell
        self.counts: list[int] | None = None
        #: the footprint and the bytes of each block, where they have types of their own
        self.typed: Sequence[tuple[Footprint, int]] | None = None
        #: whether blocks lie beyond the caller's argument, in the array that it is a view of
        self.reaches_out = False
        #: the contributions as vectors, where it is the sum of several
        self.rows: list[Any] | None = None
        #: the edges of `Contributions`
        self.edges: Sequence[int] | None = None
        #: the room for sums of `KeptSums`
        self.sums: Operand | None = None

        #: the array in device memory, where it lies there
        self.device: Any = None
        #: returns the stream of the caller's work on a device
        self.caller_stream: Callable[[], Any] = _nothing
        #: an event in that stream, where another thread may serve the call later
        self.begun: Any = None
        #: the module of the work array
        self.packs_on: ModuleType | Any = np
        #: copies in host memory travel, MPI gets no device pointer
        self.staged = False
        #: a host array that stands for described device memory, between `fetch()` and `put()`
        self.mirror: Any = None
        self.fetch: Callable[[], object] = _nothing
        self.put: Callable[[], object] = _nothing
        self.pack: Callable[[Any], object] = _nothing
        self.unpack: Callable[[Any], object] = _nothing

    def caller_event(self) -> Any:
        """An event in the caller's stream after the work on this operand until now, or `begun`."""
        return self.begun or self.caller_stream().record()

    def lie_with(self, other: "Operand") -> None:
        """It lies in the same kind of memory as the other one, and travels as that does."""
        self.device = other.device
        self.caller_stream = other.caller_stream
        self.packs_on = other.packs_on
        self.staged = other.staged
        self.mirror = other.mirror

    def pack_from(self, footprint: Footprint) -> None:
        """Pack these bytes of host memory."""
        self.footprint = footprint
        self.pack, self.unpack = footprint.copies()

    def leave_as_it_is(self) -> None:
        """Never write to it: a schedule may bring the root of a Bcast its own data.

        Memory that cannot be written, as a map of a file, is packed.
        """
        array = self.buffer
        if self.vector is not None and isinstance(array, np.ndarray) and not array.flags.writeable:
            self.pack_from(Strided(self.vector))
            self.vector = None
        self.unpack = _nothing

    @property
    def packed(self) -> bool:
        """Whether the caller's memory has to be packed first."""
        return self.vector is None

    @property
    def on_device(self) -> bool:
        """Whether it travels and is reduced in device memory."""
        return self.device is not None and self.mirror is None and not self.staged

    @property
    def key(self) -> tuple[int, int]:
        """Where its memory begins, and how many bytes it has."""
        return address(self.vector), self.nbytes


def room_of(operand: Operand) -> Any:
    """An operand's bytes, or room for them where they have to be packed."""
    if operand.packed:
        return operand.packs_on.empty(operand.nbytes, np.uint8)
    return bytes_of(operand)


def bytes_of(operand: Operand) -> Any:
    """An array of an operand's bytes that does not keep its memory alive."""
    place = at if operand.packs_on is np else at_device
    return place(address(operand.vector), operand.nbytes, np.uint8)


def _nothing(*_: object) -> Any:
    pass
