"""Blocks: their edges in a vector, and the messages of a range of blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .operations import Part

#: Messages are cut below this many bytes, so that no MPI library overflows an int.
#: quirk: int-counts
MAX_MESSAGE_BYTES = (1 << 30) - 64
#: segments of pipelined algorithms by default
SEGMENT_BYTES = 256 << 10


def segment_count(nbytes: int, segment_bytes: int | None) -> int:
    """The segments of a vector; one where it is not cut.

    >>> segment_count(1000, 300), segment_count(0, 300), segment_count(1000, None)
    (4, 1, 1)
    """
    return max(1, -(-nbytes // segment_bytes)) if segment_bytes else 1


def bounds(count: int, blocks: int) -> list[int]:
    """The edges of the blocks of a vector that is cut evenly; the first are larger by one element.

    Parameters
    ----------
    count : int
        Elements of the vector.
    blocks : int
        How many blocks.

    Returns
    -------
    list of int
        blocks + 1 offsets, in elements; the last is `count`.

    Examples
    --------
    >>> bounds(7, 3)
    [0, 3, 5, 7]
    """
    share, extra = divmod(count, blocks)
    return [block * share + min(block, extra) for block in range(blocks + 1)]


def offsets(counts: Iterable[int]) -> list[int]:
    """Offsets of blocks of the given sizes that lie one after the other.

    >>> offsets([2, 0, 1])
    [0, 2, 2, 3]
    """
    result = [0]
    for count in counts:
        result.append(result[-1] + count)
    return result


def pieces(part: Part, edges: Sequence[int], limit: int | None = None) -> Iterator[tuple[int, int]]:
    """The messages that carry `part`.

    A range that wraps around has two pieces, an empty range none. Both partners of a message
    compute the same pieces, from block numbers alone.

    Parameters
    ----------
    part : Part
        The blocks.
    edges : sequence of int
        Where blocks begin, in elements, as `bounds` gives it.
    limit : int, optional
        Elements of the largest piece; None: whole ranges.

    Yields
    ------
    (int, int)
        From and to: offsets in elements.

    Examples
    --------
    >>> from mpicoll.schedule import Output
    >>> list(pieces(Output(2, 2), [0, 3, 5, 7]))
    [(5, 7), (0, 3)]
    """
    blocks = len(edges) - 1
    last = part.first + part.count
    for low, high in ((part.first, min(last, blocks)), (0, last - blocks)):
        if high > low and edges[high] > edges[low]:
            start, end = edges[low], edges[high]
            step = limit or end - start
            for offset in range(start, end, step):
                yield offset, min(offset + step, end)


def joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges (first, count), ascending, those that follow one another as one.

    >>> joined([(5, 1), (1, 1), (2, 2)])
    [(1, 3), (5, 1)]
    """
    found: list[tuple[int, int]] = []
    for first, count in sorted(ranges):
        if found and sum(found[-1]) == first:
            first, count = found[-1][0], found.pop()[1] + count
        found.append((first, count))
    return found


def power_of_two(size: int) -> int:
    """The largest power of two that is not above `size`."""
    return 1 << (size.bit_length() - 1)
