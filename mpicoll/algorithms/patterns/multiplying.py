"""Recursive multiplying: groups of a few ranks in each round, where doubling has pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator


def fitting(radix: int) -> Callable[[int], int]:
    """fitting(radix)(size): the largest product of factors from 2 to `radix` up to `size`.

    >>> [fitting(3)(size) for size in (7, 8, 13)]
    [6, 8, 12]
    """
    return lambda size: next(n for n in range(size, 0, -1) if _factors(n, radix))


def groups(rank: int, size: int, radix: int) -> Iterator[tuple[int, list[int]]]:
    """In each round the distance in the group of `rank`, and the ranks of the group.

    The largest possible groups come first, of neighbours.

    >>> list(groups(5, 12, 4))
    [(1, [4, 5, 6, 7]), (4, [1, 5, 9])]
    """
    distance = 1
    for factor in _factors(size, radix):
        lowest = rank - rank // distance % factor * distance
        yield distance, [lowest + place * distance for place in range(factor)]
        distance *= factor


def _factors(size: int, radix: int) -> list[int]:
    """Factors from `radix` down to 2, as large as possible; [] where there are none ([1] for 1)."""
    factors = []
    rest = size
    for factor in range(radix, 1, -1):
        while rest % factor == 0:
            factors.append(factor)
            rest //= factor
    return factors if rest == 1 and size > 1 else [1] * (size == 1)
