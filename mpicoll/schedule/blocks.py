"""Blocks: the one place that says where a block begins and how a range of blocks is cut into messages."""

#: Messages are cut below this many bytes, so that no MPI library overflows an int.
MAX_MESSAGE_BYTES = (1 << 30) - 64


def bounds(count, blocks):
    """Offsets of `blocks` blocks, equal up to one element, in a vector of `count` elements: blocks + 1 numbers.

    >>> bounds(7, 3)
    [0, 3, 5, 7]
    """
    share, extra = divmod(count, blocks)
    return [block * share + min(block, extra) for block in range(blocks + 1)]


def offsets(counts):
    """Offsets of blocks of the given sizes that lie one after the other.

    >>> offsets([2, 0, 1])
    [0, 2, 2, 3]
    """
    result = [0]
    for count in counts:
        result.append(result[-1] + count)
    return result


def pieces(part, edges, limit=None):
    """The messages that carry `part`: (from, to) element offsets in the vector whose blocks begin at `edges`.

    A range that wraps around is two pieces, an empty one none, and none has more than `limit` elements. Both partners
    of a message compute this from block numbers alone, so they cut alike wherever their memory lies.

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


def joined(ranges):
    """Ranges (first, count), ascending, those that follow one another as one.

    >>> joined([(5, 1), (1, 1), (2, 2)])
    [(1, 3), (5, 1)]
    """
    found = []
    for first, count in sorted(ranges):
        if found and sum(found[-1]) == first:
            first, count = found[-1][0], found.pop()[1] + count
        found.append((first, count))
    return found


def power_of_two(size):
    """The largest power of two that is not above `size`."""
    return 1 << (size.bit_length() - 1)
