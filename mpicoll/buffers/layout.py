"""Where the blocks of a buffer lie that counts, displacements and an MPI datatype describe."""

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
#: tags of messages to myself: those of two threads, or of what interrupts one, could be taken for each other
_TAGS = itertools.count()
_MOST_TAGS = 1 << 15


class _Owned(MPI.Datatype):
    """A datatype that is freed when nobody has it any more."""

    def __del__(self) -> None:
        # a cycle is collected by any thread: rather a leak than MPI called by one that may not
        if not MPI.Is_finalized() and (MPI.Is_thread_main() or MPI.Query_thread() == MPI.THREAD_MULTIPLE):
            self.Free()


class Layout(NamedTuple):
    """Blocks in memory. datatype: of their elements. counts: elements of each. places: byte offset of each."""

    datatype: MPI.Datatype
    counts: list[int]
    places: list[int]

    @classmethod
    def blockwise(cls, length: int, counts: Any, displs: Any, datatype: MPI.Datatype, blocks: int) -> "Layout":
        """A count and a displacement per block, as given, or as mpi4py finds them in a buffer of `length` bytes."""
        size, extent = max(datatype.Get_size(), 1), datatype.Get_extent()[1]
        entries = 0 if counts is not None else _infer(length, extent, 1)
        counts = [nbytes // size for nbytes in block_bytes(counts, entries, blocks, size)]
        return cls(datatype, counts, _places(displs, counts, extent))

    @classmethod
    def whole(cls, length: int, count: Any, displacement: Any, datatype: MPI.Datatype, blocks: int) -> "Layout":
        """All blocks in a row: `count` elements each, or what a buffer of `length` bytes holds after the displacement."""
        extent = datatype.Get_extent()[1]
        start = int(displacement or 0) * extent
        entries = _infer(length - start, extent, blocks) if count is None else index(count) * max(1, blocks)
        if start < 0 or entries < 0:
            each = entries // max(1, blocks)
            raise errors.BufferError(f"count and displacement must not be negative, got {each} and {displacement}")
        return cls(datatype, [entries], [start])

    @property
    def nbytes(self) -> list[int]:
        """Bytes of each block's type signature."""
        size = self.datatype.Get_size()
        return [size * count for count in self.counts]

    @property
    def is_contiguous(self) -> bool:
        """Whether the blocks are plain elements, one after the other."""
        size, extent = self.datatype.Get_size(), self.datatype.Get_extent()[1]
        ends = (place + count * extent for place, count in zip(self.places, self.counts))
        return self.datatype.is_predefined and size == extent and all(map(int.__eq__, ends, self.places[1:]))

    def check_reach(self, memory: MPI.memory | None, exclusive: bool) -> None:
        """Blocks must lie in the buffer; those of a receive side must not overlap."""
        extent = self.datatype.Get_extent()[1]
        if memory is None or extent < 0 or not self.datatype.is_predefined:
            if memory is None and any(self.counts) and self.datatype.is_predefined:
                raise errors.BufferError("the buffer is None or BOTTOM, but the count is not 0")
            return
        used = sorted((place, place + count * extent) for place, count in zip(self.places, self.counts) if count)
        if used and (used[0][0] < 0 or max(end for _, end in used) > memory.nbytes):
            raise errors.BufferError(
                f"counts and displacements reach bytes {used[0][0]} to {max(end for _, end in used)} "
                f"of a buffer of {memory.nbytes} bytes"
            )
        if exclusive and any(end > start for (_, end), (start, _) in zip(used, used[1:])):
            raise errors.BufferError("counts and displacements of the receive buffer overlap")

    @property
    def reach(self) -> tuple[int, int]:
        """Where its first byte lies, and where its last ends."""
        (first, length), step = self.datatype.Get_true_extent(), self.datatype.Get_extent()[1]
        starts = [place + last * step for place, count in zip(self.places, self.counts) if count for last in (0, count - 1)]
        return min(starts, default=0) + first, max(starts, default=0) + first + length

    def owned(self) -> "Layout":
        """The same with a datatype of its own: the caller may free theirs before a plan is done."""
        return self if self.datatype.is_predefined else self._replace(datatype=_Owned(self.datatype.Dup()))

    def packing(self, base: int) -> tuple[Packing, Packing]:
        """(pack, unpack) between the blocks from address `base` on and a work array, through MPI's own knowledge."""
        size, extent = self.datatype.Get_size(), self.datatype.Get_extent()[1]

        def blocks(work: Any) -> Iterator[tuple[list[Any], list[Any]]]:
            raw, offset = work.view(np.uint8), 0
            for count, place in zip(self.counts, self.places):
                if count and size:
                    mine = [_raw(base + place, count * extent), count, self.datatype]
                    yield mine, [raw[offset : offset + count * size], MPI.PACKED]
                offset += count * size

        def pack(work: Any) -> None:
            for mine, packed in blocks(work):
                _exchange(mine, packed)

        def unpack(work: Any) -> None:
            for mine, packed in blocks(work):
                _exchange(packed, mine)

        return pack, unpack


def equal_blocks(entries: int, blocks: int) -> None:
    """Raise BufferError where so many elements are not so many equal blocks."""
    if blocks > 1 and entries % blocks:
        raise errors.BufferError(f"a buffer of {entries} elements cannot be cut into {blocks} equal blocks")


def block_bytes(counts: Any, entries: int, blocks: int, itemsize: int) -> list[int]:
    """Bytes per block: as given, one number for all, or the whole buffer divided as evenly as mpi4py does."""
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
        raise errors.BufferError(f"cannot infer a count for a datatype of extent {extent}: give one")
    if length % extent:
        raise errors.BufferError(f"a buffer of {length} bytes is no whole number of elements of {extent} bytes: give a count")
    equal_blocks(length // extent, blocks)
    return length // extent


def _places(displs: Any, counts: Sequence[int], extent: int) -> list[int]:
    """Byte offset of each block."""
    if displs is None:
        return [extent * place for place in offsets(counts)[:-1]]
    if not hasattr(displs, "__len__"):
        return [index(displs) * block * extent for block in range(len(counts))]
    if len(displs) != len(counts):
        raise errors.BufferError(f"expected {len(counts)} displacements, one per rank, got {len(displs)}")
    return [index(displacement) * extent for displacement in displs]


def _raw(location: int, nbytes: int) -> Any:
    return MPI.memory.fromaddress(location, max(1, nbytes)) if location else MPI.BOTTOM


def _exchange(source: list[Any], target: list[Any]) -> None:
    """Copy between two memory layouts: a message to myself, which MPI packs and unpacks."""
    tag = next(_TAGS) % _MOST_TAGS
    _self().Sendrecv(source, 0, tag, target, 0, tag)


def packed(buffer: Any) -> bytearray:
    """What mpi4py would send of a buffer argument, as MPI packs it: to be sent as MPI.PACKED."""
    status, tag = MPI.Status(), next(_TAGS) % _MOST_TAGS
    sent = _self().Isend(buffer, 0, tag)
    _self().Probe(0, tag, status)
    found = bytearray(status.Get_count(MPI.PACKED))
    _self().Recv([found, MPI.PACKED], 0, tag)
    sent.Wait()
    return found


@lru_cache(maxsize=None)
def _self() -> MPI.Intracomm:
    return MPI.COMM_SELF.Dup()
