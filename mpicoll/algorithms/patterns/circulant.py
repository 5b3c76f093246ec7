"""The blocks that the circulant broadcast moves in each round (Traeff, arXiv 2407.18004)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache


def broadcast_blocks(rank: int, size: int, blocks: int) -> Iterator[tuple[int, int, int]]:
    """Yield (skip, block to send to rank + skip, block to receive from rank - skip) for each round.

    `rank` is relative to the root. A negative number means no block; numbers are capped at the last
    block, which may therefore arrive more than once.
    """
    skips = [near for near, _ in circulant_steps(size)]
    phase = len(skips)
    idle = -(blocks - 1) % phase  # rounds left out at the start, so that the last phase is full
    receives, last = receive_schedule(rank, size), blocks - 1
    for i in range(idle, blocks - 1 + phase + idle):
        k, shift = i % phase, phase * (i // phase) - idle
        sends = receive_schedule((rank + skips[k]) % size, size)
        yield skips[k], min(sends[k] + shift, last), min(receives[k] + shift, last)


@lru_cache(maxsize=4096)
def receive_schedule(rank: int, size: int) -> tuple[int, ...]:
    """The block to receive in each of the ceil(log2 size) rounds of a phase.

    Relative to the first block of the phase. This is a depth-first search over the skips, in a
    linked list from the largest down; a skip that is found leaves the list.
    """
    skips = [near for near, _ in circulant_steps(size)] + [size]
    top = len(skips) - 1
    # the linked list: its head is top + 1, its end is -1
    below = {top + 1: top, **{k: k - 1 for k in range(top + 1)}}
    above = {k: k + 1 for k in range(-1, top + 1)}
    reach: list[float] = [*skips, float("inf")]
    found: list[int] = []
    target = size + rank

    def unlink(k: int) -> None:
        below[above[k]] = below[k]
        above[below[k]] = above[k]

    def search(total: int, bound: int, k: int) -> None:
        while k >= 0:
            i = len(found)
            if total + skips[k] <= target - reach[i] and total + skips[k] < bound:
                if total + skips[k] <= target - reach[i + 1]:
                    search(total + skips[k], bound, k)
                    i = len(found)
                if total > target - reach[i + 1]:
                    return
                bound = total + skips[k]
                found.append(k)
                unlink(k)
            k = below[k]

    base = _base_block(rank, skips)
    unlink(base)
    search(0, 2 * size, top if base != top else top - 1)
    return tuple(base if k == top else k - top for k in found)


def _base_block(rank: int, skips: list[int]) -> int:
    """The smallest index in the greedy decomposition of `rank` into skips; the last at the root."""
    index = len(skips) - 1
    rest = rank
    for k in reversed(range(len(skips) - 1)):
        if rest >= skips[k]:
            index = k
            rest -= skips[k]
    return index


def circulant_steps(size: int) -> list[tuple[int, int]]:
    """The ranges (s[k], s[k+1]) of the rounds of the circulant graph, near to far.

    s[q] = p, s[k] = ceil(s[k+1] / 2).

    >>> circulant_steps(7)
    [(1, 2), (2, 4), (4, 7)]
    """
    steps = []
    while size > 1:
        steps.append(((size + 1) // 2, size))
        size = (size + 1) // 2
    return steps[::-1]
