"""The binomial tree of rooted collectives.

In ranks relative to the root, the parent has the lowest set bit cleared.
"""

from collections.abc import Iterator


def parent(rank: int, size: int, root: int) -> tuple[int, int]:
    """The parent of `rank` (itself at the root), and the number of ranks in its subtree."""
    relative = (rank - root) % size
    width = relative & -relative or size
    return (rank - (width if relative else 0)) % size, min(width, size - relative)


def children(rank: int, size: int, root: int) -> Iterator[tuple[int, int]]:
    """The children of `rank`, largest subtree first, each with the number of ranks in its subtree.

    >>> list(children(2, 7, 2))
    [(6, 3), (4, 2), (3, 1)]
    """
    relative = (rank - root) % size
    _, count = parent(rank, size, root)
    distance = 1 << (count - 1).bit_length()
    while distance := distance >> 1:
        if relative + distance < size:
            yield (rank + distance) % size, min(distance, size - relative - distance)
