"""Trees of rooted collectives: whose parent is whose, and the ranks below each.

The ranks of a subtree follow one another (cyclic), so that a subtree is one range of blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias


class Subtree(NamedTuple):
    """A rank and those below it: `count` ranks from `first` on, cyclic."""

    rank: int
    first: int
    count: int  # type: ignore[assignment]  # hides tuple.count


class Place(NamedTuple):
    """The place of a rank in a tree."""

    #: of the rank itself at the root
    parent: int
    own: Subtree
    #: the largest first
    children: list[Subtree]


#: tree(rank, size, root)
Tree: TypeAlias = Callable[[int, int, int], Place]


def binomial_tree(rank: int, size: int, root: int) -> Place:
    """In ranks relative to the root, the parent has the lowest set bit cleared.

    >>> [child.rank for child in binomial_tree(2, 7, 2).children]
    [6, 4, 3]
    """
    relative = (rank - root) % size
    width = relative & -relative or size
    count = min(width, size - relative)
    children = []
    distance = 1 << (count - 1).bit_length()
    while distance := distance >> 1:
        if relative + distance < size:
            child = (rank + distance) % size
            children.append(Subtree(child, child, min(distance, size - relative - distance)))
    parent = (rank - (width if relative else 0)) % size
    return Place(parent, Subtree(rank, rank, count), children)


def bine_tree(rank: int, size: int, root: int) -> Place:
    """Halve the range of ranks; the other half goes to the mirror image of its holder.

    The holder of a range is a third from one end, and so are the holders of its halves: a message
    goes a third of the range, where that of a binomial tree goes half of it.

    >>> [child.rank for child in bine_tree(0, 8, 0).children]
    [3, 7, 1]
    """
    low = root - size // 3
    rank = low + (rank - low) % size
    holder = parent = root
    own = range(low, low + size)
    left = own
    children: list[tuple[int, range]] = []
    while len(left) > 1:
        other = left[0] + left[-1] - holder
        below = (len(left) + (holder < other)) // 2  # at odd lengths the holder's half is larger
        halves = left[:below], left[below:]
        if other == holder:
            other = halves[1][0] if holder in halves[0] else halves[0][-1]
        left, given = halves if holder in halves[0] else halves[::-1]
        if rank in given:
            parent, holder, own, left = holder, other, given, given
            children = []
        else:
            children.append((other, given))
    found = [Subtree(child % size, given[0] % size, len(given)) for child, given in children]
    return Place(parent % size, Subtree(rank % size, own[0] % size, len(own)), found)
