"""Buffers of which each block has its own datatype, count and displacement, as Alltoallw's."""

from collections.abc import Iterator, Sequence
from operator import index
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from .. import errors
from ..gpu import caller_stream
from .footprint import Blocks, Described, Footprint, Patterned, may_share_bytes, touched
from .layout import Layout
from .memory import address, at, memory_of
from .message import array_of_buffer
from .mirror import mirrored
from .operand import Operand
from .patterns import decoded

#: whether blocks share bytes, by their types, counts and displacements
_APART: dict[tuple[object, ...], bool] = {}
_MOST_KEPT = 1024


class TypedSpec(NamedTuple):
    """The items of a buffer argument with a datatype for each block."""

    buffer: Any
    counts: tuple[int, ...]
    #: in bytes
    displacements: tuple[int, ...]
    datatypes: Sequence[MPI.Datatype]

    @classmethod
    def parse(cls, spec: Any, blocks: int) -> "TypedSpec":
        """Parse the forms that mpi4py accepts, for so many blocks."""
        if not isinstance(spec, (list, tuple)) or not 2 <= len(spec) <= 4:
            items = "a list of 2 to 4 items (buffer, counts, displacements, types)"
            raise errors.BufferError(f"expected {items}, got {spec!r}")
        buffer, *numbers, datatypes = spec
        if len(numbers) == 1:
            numbers = numbers[0]
            if not isinstance(numbers, (list, tuple)) or len(numbers) != 2:
                raise errors.BufferError(f"expected (counts, displacements), got {numbers!r}")
        if not numbers and (buffer is None or buffer is MPI.BOTTOM):
            got = "None" if buffer is None else "MPI.BOTTOM"
            raise errors.BufferError(f"expected counts and displacements beside {got}")
        counts, displacements = numbers or ([1] * blocks, [0] * blocks)
        result = cls(
            buffer,
            _integers(counts, blocks, "counts"),
            _integers(displacements, blocks, "displacements in bytes"),
            _checked_types(datatypes, blocks),
        )
        if min(result.counts, default=0) < 0:
            raise errors.BufferError("counts must not be negative")
        return result

    def parts(self, base: int, by_mpi: bool) -> Iterator[tuple[Footprint, int]]:
        """The footprint of each block, from this address on, and its bytes.

        by_mpi: MPI packs all of them.
        """
        for count, place, datatype in zip(self.counts, self.displacements, self.datatypes):
            kind = decoded(datatype)
            pattern = None if by_mpi else kind.block(count, place)
            if pattern is None:
                described = Layout(datatype, [count], [place])
                if count and kind.size:
                    described = described.owned()
                yield Described(described, base), count * kind.size
            else:
                yield Patterned(pattern, base), pattern.nbytes

    @property
    def key(self) -> tuple[object, ...]:
        """All that the places of the bytes depend on."""
        return self.counts, self.displacements, tuple(map(decoded, self.datatypes))


def typed_blocks(spec: Any, blocks: int, *, writable: bool = False) -> Operand:
    """Parse a buffer argument with a datatype for each block; returns an `Operand`.

    Parameters
    ----------
    spec : list or tuple
        `(buffer, types)`, `(buffer, (counts, displacements), types)` or the same as four items.
        Displacements are in bytes.
    blocks : int
        How many there are.
    writable : bool
        It is a receive buffer: its blocks must not share a byte.

    Returns
    -------
    Operand
        With the bytes of each block in `counts`. It is a vector where they lie one after the other.

    Raises
    ------
    BufferError
        Items are missing or wrong, blocks reach beyond the buffer, or blocks of a receive buffer
        overlap.
    """
    message = TypedSpec.parse(spec, blocks)
    array = array_of_buffer(message.buffer, writable)
    if array is None or isinstance(array, np.ndarray):
        return _described(array, message, writable)
    result = mirrored(array, lambda host: _described(host, message, writable))
    result.caller_stream = caller_stream(message.buffer)
    return result


def _described(array: Any, message: TypedSpec, writable: bool) -> Operand:
    memory = memory_of(array)
    by_mpi = False
    if memory is None and message.buffer is not None and message.buffer is not MPI.BOTTOM:
        memory = MPI.memory(message.buffer)  # on a device, without CuPy
        by_mpi = True
    base = 0 if memory is None else memory.address
    parts = list(message.parts(base, by_mpi))
    used = [(part, nbytes) for part, nbytes in parts if nbytes]
    if message.buffer is None and used:
        raise errors.BufferError("the buffer is None, but blocks are not empty")
    if memory is not None:
        low, high = _room(array, memory)
        for number, (part, nbytes) in enumerate(parts):
            start, end = part.span
            if nbytes and (start < low or end > high):
                raise errors.BufferError(
                    f"block {number} reaches bytes {start - base} to {end - base} "
                    f"of a buffer of {memory.nbytes} bytes"
                )
    if writable and not _are_apart(message, used):
        raise errors.BufferError("the types and displacements of the receive buffer overlap")
    counts = [nbytes for _, nbytes in parts]
    result = Operand(message.buffer if array is None else array, None, None, sum(counts))
    result.counts = counts
    result.typed = parts
    if memory is not None:
        result.reaches_out = any(part.span[0] < base for part, _ in used)
    runs = _runs(used)
    if runs is None:
        result.pack_from(Blocks(tuple(used)))
    else:
        result.vector = at(runs, result.nbytes, np.uint8)
    return result


def _room(array: Any, memory: MPI.memory) -> tuple[int, int]:
    """The addresses that blocks may use.

    Negative displacements may reach what lies before a view, in the array that it is a view of.
    """
    start, end = memory.address, memory.address + memory.nbytes
    owner = array
    while isinstance(getattr(owner, "base", None), np.ndarray):
        owner = owner.base
    if isinstance(owner, np.ndarray) and owner is not array and owner.flags.forc:
        start = min(start, address(owner))
    return start, end


def _runs(parts: Sequence[tuple[Footprint, int]]) -> int | None:
    """The address of blocks that lie one after the other; None where they do not."""
    end = start = None
    for part, nbytes in parts:
        if not isinstance(part, Patterned) or not part.pattern.is_contiguous:
            return None
        low, _ = part.span
        if end is not None and low != end:
            return None
        start = low if start is None else start
        end = low + nbytes
    return start or 0


# Overlaps.


def _are_apart(message: TypedSpec, parts: Sequence[tuple[Footprint, int]]) -> bool:
    """Whether no byte belongs to two blocks, or twice to one."""
    key = message.key
    apart = _APART.get(key)
    if apart is None:
        if len(_APART) >= _MOST_KEPT:
            _APART.clear()
        apart = _APART[key] = _are_surely_apart(parts) or _are_marked_once(parts)
    return apart


def _are_surely_apart(parts: Sequence[tuple[Footprint, int]]) -> bool:
    """Whether that is found by comparing arrays; False also where it is not."""
    arrays = []
    for part, _ in sorted(parts, key=lambda entry: entry[0].span):
        if not isinstance(part, Patterned) or not part.pattern.is_surely_apart:
            return False
        arrays.append((*part.span, part.pattern.array(part.base)))
    for number, (_, end, array) in enumerate(arrays):
        for low, _, other in arrays[number + 1 :]:
            if low >= end:
                break
            if may_share_bytes(array, other):
                return False
    return True


def _are_marked_once(parts: Sequence[tuple[Footprint, int]]) -> bool:
    """The same by writing to bytes in the place of the memory."""
    if not parts:
        return True
    nbytes = sum(count for _, count in parts)
    return int(np.count_nonzero(touched(Blocks(tuple(parts)), nbytes))) == nbytes


def _integers(numbers: Any, blocks: int, what: str) -> tuple[int, ...]:
    try:
        result = tuple(map(index, numbers))
    except TypeError:
        raise errors.BufferError(f"expected {blocks} {what}, got {numbers!r}") from None
    if len(result) != blocks:
        raise errors.BufferError(f"expected {blocks} {what}, one per rank, got {len(result)}")
    return result


def _checked_types(datatypes: Any, blocks: int) -> Sequence[MPI.Datatype]:
    if not isinstance(datatypes, (list, tuple)) or len(datatypes) != blocks:
        got = f"{len(datatypes)}" if isinstance(datatypes, (list, tuple)) else repr(datatypes)
        raise errors.BufferError(f"expected a list of {blocks} datatypes, one per rank, got {got}")
    for datatype in datatypes:
        if not isinstance(datatype, MPI.Datatype) or datatype == MPI.DATATYPE_NULL:
            raise errors.BufferError(f"expected an MPI datatype for each block, got {datatype!r}")
    return datatypes
