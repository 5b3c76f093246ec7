"""The order of operands, and the canonical tree in which a vector of contributions is added."""

from collections.abc import Iterable

from ...schedule import INPUT, Part, Reduce, power_of_two


def one_block(size: int, nodes: object = None) -> int:
    """The number of blocks of a vector that is never cut."""
    return 1


def others(rank: int, size: int) -> tuple[list[int], list[int]]:
    """All other ranks: the t-th after this rank and the t-th before it, for each distance t."""
    return [(rank + t) % size for t in range(1, size)], [(rank - t) % size for t in range(1, size)]


def in_rank_order(rank: int, peer: int, mine: Part, theirs: Part) -> tuple[Part, Part]:
    """The two operands of a reduction, the lower rank's first."""
    return (mine, theirs) if rank < peer else (theirs, mine)


def fold_tree(parts: Iterable[Part], into: Part) -> tuple[Reduce, ...]:
    """Reductions that combine `parts`, in rank order, as recursive doubling with a fold does.

    First the leading pairs, until a power of two is left, then a perfect binary tree: the canonical
    order, whose floating-point bits do not depend on the algorithm. Scratch operands are
    overwritten, the input is not.
    """
    steps: list[Reduce] = []
    parts = list(parts)
    pairs = len(parts) - power_of_two(len(parts)) or len(parts) // 2
    while len(parts) > 1:
        merged = []
        for lower, higher in zip(parts[: 2 * pairs : 2], parts[1 : 2 * pairs : 2]):
            target = into if len(parts) == 2 else higher if lower.place == INPUT else lower
            steps.append(Reduce(lower, higher, target))
            merged.append(target)
        parts = merged + parts[2 * pairs :]
        pairs = len(parts) // 2
    return tuple(steps)
