"""Whether two operands share bytes, and whether they are the same bytes in the same order."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from .footprint import Footprint, Strided
from .memory import address
from .operand import Operand

#: effort that NumPy may spend on telling two arrays apart: more than arrays of every day need, still microseconds
_EFFORT = 1000


def overlap(one: Operand, other: Operand) -> bool:
    """Whether two operands touch a byte that both have; one may well lie in the gaps of the other."""
    if not one.nbytes or not other.nbytes:
        return False
    if not one.packed and not other.packed:
        (a, n), (b, m) = one.key, other.key
        return a < b + m and b < a + n
    mine, yours = _footprint(one), _footprint(other)
    if mine is None or yours is None:
        return one.buffer is other.buffer
    if mine.key == yours.key:
        return True
    if mine.span[0] >= yours.span[1] or yours.span[0] >= mine.span[1]:
        return False
    if isinstance(mine, Strided) and isinstance(yours, Strided):
        # NumPy's types know two efforts, its code knows all; True where it gave up
        if not np.may_share_memory(mine.array, yours.array, max_work=_EFFORT):  # type: ignore[arg-type]
            return False
    return bool(_seen(mine, np.ones(one.nbytes, np.uint8), yours, other.nbytes).any())


def coincide(one: Operand, other: Operand) -> bool:
    """Whether two operands that overlap are the same bytes in the same order."""
    if one.nbytes != other.nbytes:
        return False
    if not one.packed and not other.packed:
        return one.key == other.key
    mine, yours = _footprint(one), _footprint(other)
    if mine is None or yours is None or mine.key == yours.key:
        return True
    # with what it finds itself: MPI may leave the padding of long doubles out
    return all(
        np.array_equal(_seen(mine, row, yours, row.size), _seen(mine, row, mine, row.size))
        for row in _numbered(one.nbytes)
    )


def _footprint(one: Operand) -> Footprint | None:
    return Strided(one.vector) if isinstance(one.vector, np.ndarray) else one.footprint


def _seen(mine: Footprint, written: Any, yours: Footprint, nbytes: int) -> Any:
    """What one footprint finds where the other was written to, in a stand-in for the memory around them, of zeros."""
    low, high = min(mine.span[0], yours.span[0]), max(mine.span[1], yours.span[1])
    room, found = np.zeros(high - low, np.uint8), np.zeros(nbytes, np.uint8)
    shift = address(room) - low
    mine.copies(shift)[1](written)
    yours.copies(shift)[0](found)
    return found


def _numbered(nbytes: int) -> Iterator[Any]:
    """The numbers of so many bytes, as rows: the lowest eight bits of all, the next …"""
    places = np.arange(nbytes)
    for bits in range(0, nbytes.bit_length(), 8):
        yield (places >> bits).astype(np.uint8)
