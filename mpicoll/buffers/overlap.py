"""Whether two operands share bytes, and whether they are the same bytes in the same order."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from .footprint import Footprint, Strided, may_share_bytes
from .memory import address
from .operand import Operand


def overlap(left: Operand, right: Operand) -> bool:
    """Whether two operands share a byte; an operand in the gaps of the other does not."""
    if not left.nbytes or not right.nbytes:
        return False
    if not left.packed and not right.packed:
        (a, n), (b, m) = left.key, right.key
        return a < b + m and b < a + n
    a_bytes, b_bytes = _footprint(left), _footprint(right)
    if a_bytes is None or b_bytes is None:
        return left.buffer is right.buffer
    if a_bytes.key == b_bytes.key:
        return True
    if a_bytes.span[0] >= b_bytes.span[1] or b_bytes.span[0] >= a_bytes.span[1]:
        return False
    if isinstance(a_bytes, Strided) and isinstance(b_bytes, Strided):
        if not may_share_bytes(a_bytes.array, b_bytes.array):
            return False
    ones = np.ones(left.nbytes, np.uint8)
    return bool(_read_after_write(a_bytes, ones, b_bytes, right.nbytes).any())


def coincide(left: Operand, right: Operand) -> bool:
    """Whether two operands that overlap are the same bytes in the same order."""
    if left.nbytes != right.nbytes:
        return False
    if not left.packed and not right.packed:
        return left.key == right.key
    a_bytes, b_bytes = _footprint(left), _footprint(right)
    if a_bytes is None or b_bytes is None or a_bytes.key == b_bytes.key:
        return True
    for row in _position_rows(left.nbytes):
        # compared with what `a_bytes` reads itself: MPI may skip the padding of long doubles
        seen_by_a = _read_after_write(a_bytes, row, a_bytes, row.size)
        seen_by_b = _read_after_write(a_bytes, row, b_bytes, row.size)
        if not np.array_equal(seen_by_a, seen_by_b):
            return False
    return True


def _footprint(operand: Operand) -> Footprint | None:
    return Strided(operand.vector) if isinstance(operand.vector, np.ndarray) else operand.footprint


def _read_after_write(target: Footprint, values: Any, source: Footprint, nbytes: int) -> Any:
    """Write values to a footprint and read another, in zeroed memory in place of both spans."""
    low = min(target.span[0], source.span[0])
    high = max(target.span[1], source.span[1])
    room = np.zeros(high - low, np.uint8)
    result = np.zeros(nbytes, np.uint8)
    shift = address(room) - low
    _, unpack = target.copies(shift)
    unpack(values)
    pack, _ = source.copies(shift)
    pack(result)
    return result


def _position_rows(nbytes: int) -> Iterator[Any]:
    """The positions of all bytes as rows of eight bits: the lowest bits first."""
    places = np.arange(nbytes)
    for bits in range(0, nbytes.bit_length(), 8):
        yield (places >> bits).astype(np.uint8)
