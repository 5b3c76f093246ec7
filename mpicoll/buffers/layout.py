"""Layouts: the blocks of a buffer that counts, displacements and an MPI datatype describe."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from operator import index
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from .. import errors
from ..schedule import bounds, offsets

Packing = Callable[[Any], None]
#: tags of messages to self: distinct, as threads and signal handlers may send at the same time
_TAGS = itertools.count()
_MOST_TAGS = 1 << 15


class _Owned(MPI.Datatype):
    """A datatype that is freed with its last reference."""

    def __del__(self) -> None:
        # any thread may collect a cycle; where it must not call MPI, the datatype leaks
        if MPI is None or MPI.Is_finalized():  # None: the interpreter ends
            return
        if MPI.Is_thread_main() or MPI.Query_thread() == MPI.THREAD_MULTIPLE:
            self.Free()


def owned_type(datatype: MPI.Datatype) -> MPI.Datatype:
    """A duplicate of a caller's datatype, which the caller may then free; MPI's own as they are."""
    if datatype.is_predefined:
        return datatype
    # a duplicate has the class of the original, and another owned object would free it
    return _Owned(MPI.Datatype(datatype).Dup())


class Layout(NamedTuple):
    """Blocks in memory."""

    #: of the elements
    datatype: MPI.Datatype
    #: elements of each block
    counts: list[int]
    #: byte offset of each block
    places: list[int]

    @classmethod
    def blockwise(
        cls, length: int, counts: Any, displs: Any, datatype: MPI.Datatype, blocks: int
    ) -> "Layout":
        """Counts and displacements per block, by default as mpi4py divides `length` bytes."""
        size = max(datatype.Get_size(), 1)
        extent = datatype.Get_extent()[1]
        entries = 0 if counts is not None else _infer(length, extent, 1)
        counts = [nbytes // size for nbytes in block_bytes(counts, entries, blocks, size)]
        return cls(datatype, counts, _places(displs, counts, extent))

    @classmethod
    def whole(
        cls, length: int, count: Any, displacement: Any, datatype: MPI.Datatype, blocks: int
    ) -> "Layout":
        """All blocks in a row, of `count` elements each, by default all of `length` bytes."""
        extent = datatype.Get_extent()[1]
        start = int(displacement or 0) * extent
        if start > length:  # as mpi4py, even where the count is 0
            raise errors.BufferError(
                f"displacement {displacement} reaches byte {start} of a buffer of {length} bytes"
            )
        if count is None:
            entries = _infer(length - start, extent, blocks)
        else:
            entries = index(count) * max(1, blocks)
        if start < 0 or entries < 0:
            got = f"{entries // max(1, blocks)} and {displacement}"
            raise errors.BufferError(f"count and displacement must not be negative, got {got}")
        return cls(datatype, [entries], [start])

    @property
    def nbytes(self) -> list[int]:
        """Bytes of each block's type signature."""
        size = self.datatype.Get_size()
        return [size * count for count in self.counts]

    @property
    def is_contiguous(self) -> bool:
        """Whether the blocks are plain elements, one after the other."""
        size = self.datatype.Get_size()
        extent = self.datatype.Get_extent()[1]
        if not self.datatype.is_predefined or size != extent:
            return False
        ends = (place + count * extent for place, count in zip(self.places, self.counts))
        return all(end == start for end, start in zip(ends, self.places[1:]))

    def check_reach(self, memory: MPI.memory | None, exclusive: bool) -> None:
        """Raise BufferError for blocks beyond the buffer; exclusive: also for overlaps."""
        if memory is None or not self.datatype.is_predefined:
            return
        extent = self.datatype.Get_extent()[1]
        if extent < 0:
            return
        blocks = zip(self.places, self.counts)
        used = sorted((place, place + count * extent) for place, count in blocks if count)
        if not used:
            return
        low, high = used[0][0], max(end for _, end in used)
        if low < 0 or high > memory.nbytes:
            raise errors.BufferError(
                f"counts and displacements reach bytes {low} to {high} "
                f"of a buffer of {memory.nbytes} bytes"
            )
        if exclusive and any(end > start for (_, end), (start, _) in pairwise(used)):
            raise errors.BufferError("counts and displacements of the receive buffer overlap")

    @property
    def reach(self) -> tuple[int, int]:
        """Offsets of the first byte, and behind the last byte."""
        first, length = self.datatype.Get_true_extent()
        step = self.datatype.Get_extent()[1]
        blocks = [(place, count) for place, count in zip(self.places, self.counts) if count]
        starts = [place for place, _ in blocks]
        starts += [place + (count - 1) * step for place, count in blocks]
        return min(starts, default=0) + first, max(starts, default=0) + first + length

    def owned(self) -> "Layout":
        """The same layout with its own datatype: the caller may free the original during a plan."""
        return self._replace(datatype=owned_type(self.datatype))

    def packing(self, base: int) -> tuple[Packing, Packing]:
        """(pack, unpack) between the blocks from address `base` on and a work array, by MPI."""
        size = self.datatype.Get_size()
        extent = self.datatype.Get_extent()[1]

        def blocks(work: Any) -> Iterator[tuple[list[Any], list[Any]]]:
            raw = work.view(np.uint8)
            offset = 0
            for count, place in zip(self.counts, self.places):
                if count and size:
                    block = [_raw(base + place, count * extent), count, self.datatype]
                    yield block, [raw[offset : offset + count * size], MPI.PACKED]
                offset += count * size

        def pack(work: Any) -> None:
            for block, packed in blocks(work):
                _exchange(block, packed)

        def unpack(work: Any) -> None:
            for block, packed in blocks(work):
                _exchange(packed, block)

        return pack, unpack


def equal_blocks(entries: int, blocks: int) -> None:
    """Raise BufferError where `entries` elements cannot be divided into equal blocks."""
    if blocks > 1 and entries % blocks:
        what = f"a buffer of {entries} elements"
        raise errors.BufferError(f"{what} cannot be cut into {blocks} equal blocks")


def block_bytes(counts: Any, entries: int, blocks: int, itemsize: int) -> list[int]:
    """Bytes of each block. counts: of each or of all; None: divides `entries` as mpi4py does."""
    if counts is None:
        counts = [end - start for start, end in pairwise(bounds(entries, blocks))]
    elif not hasattr(counts, "__len__"):
        counts = [counts] * blocks
    if len(counts) != blocks:
        raise errors.BufferError(f"expected {blocks} counts, one per rank, got {len(counts)}")
    nbytes = [index(count) * itemsize for count in counts]
    if min(nbytes, default=0) < 0:
        raise errors.BufferError("counts must not be negative")
    return nbytes


def _infer(length: int, extent: int, blocks: int) -> int:
    if extent <= 0:
        if not length:
            return 0
        what = f"a count for a datatype of extent {extent}"
        raise errors.BufferError(f"cannot infer {what}: give one")
    if length % extent:
        elements = f"elements of {extent} bytes"
        raise errors.BufferError(
            f"a buffer of {length} bytes is no whole number of {elements}: give a count"
        )
    equal_blocks(length // extent, blocks)
    return length // extent


def _places(displs: Any, counts: Sequence[int], extent: int) -> list[int]:
    """Byte offset of each block."""
    if displs is None:
        return [extent * place for place in offsets(counts)[:-1]]
    if not hasattr(displs, "__len__"):
        return [index(displs) * block * extent for block in range(len(counts))]
    if len(displs) != len(counts):
        expected = f"{len(counts)} displacements, one per rank"
        raise errors.BufferError(f"expected {expected}, got {len(displs)}")
    return [index(displacement) * extent for displacement in displs]


def _raw(location: int, nbytes: int) -> Any:
    return MPI.memory.fromaddress(location, max(1, nbytes)) if location else MPI.BOTTOM


def _exchange(source: list[Any], target: list[Any]) -> None:
    """Copy between two memory layouts by a message to self, which MPI packs and unpacks."""
    tag = next(_TAGS) % _MOST_TAGS
    _self().Sendrecv(source, 0, tag, target, 0, tag)


def packed(buffer: Any) -> bytearray:
    """A buffer argument of mpi4py as MPI packs it, to be sent as MPI.PACKED."""
    tag = next(_TAGS) % _MOST_TAGS
    status = MPI.Status()
    request = _self().Isend(buffer, 0, tag)
    _self().Probe(0, tag, status)
    result = bytearray(status.Get_count(MPI.PACKED))
    _self().Recv([result, MPI.PACKED], 0, tag)
    request.Wait()
    return result


@lru_cache(maxsize=None)
def _self() -> MPI.Intracomm:
    return MPI.COMM_SELF.Dup()
