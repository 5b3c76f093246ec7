"""The memory of a schedule's parts: the caller's vectors, or scratch that rounds share."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from math import lcm
from typing import Any, NamedTuple

from ..codes import Codes
from ..schedule import INPUT, MAX_MESSAGE_BYTES, OUTPUT, Part, is_coded, offsets, pieces

_ALIGN = 64

#: the operations of one round
Round = tuple[Any, ...]


class Vector(NamedTuple):
    """A contiguous array that holds the elements of a vector from offset `base` on.

    edges: the offsets of its blocks where they differ from the schedule's: in an alltoall a rank
    receives other blocks than it sends.
    """

    array: Any
    base: int = 0
    edges: list[int] | None = None


class _Arena:
    """Scratch for some places: of items of one size, a vector of which is cut at `edges`."""

    def __init__(
        self,
        steps: Sequence[Round],
        edges: list[int],
        dtype: Any,
        itemsize: int,
        acquire: Callable[[int], Any],
        linger: int,
        is_here: Callable[[Part], bool],
    ) -> None:
        self.edges = edges
        self._shifts, nbytes = scratch_layout(steps, edges, itemsize, linger, is_here)
        #: the items; None where there are none
        self.items: Any = None
        if nbytes:
            self.items = acquire(nbytes)[: nbytes // itemsize * itemsize].view(dtype)

    def views(self, part: Part, limit: int) -> Iterator[Any]:
        """The array slices of a part."""
        for start, end in pieces(part, self.edges, limit):
            # a range that wraps is two runs
            run = part.first if start >= self.edges[part.first] else 0
            shift = self._shifts[part.place, run]
            yield self.items[start + shift : end + shift]


class Memory:
    """Input, output and other vectors, and scratch laid out by the rounds that need it.

    codes: of a compressed call; their groups begin anew in each block, whose codes thus do not
    depend on other blocks.
    """

    def __init__(
        self,
        steps: Sequence[Round],
        edges: list[int],
        vectors: dict[str, Vector],
        dtype: Any,
        acquire: Callable[[int], Any],
        segment_bytes: int | None = None,
        codes: Codes | None = None,
    ) -> None:
        self.vectors = vectors
        most_bytes = min(segment_bytes or MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES)
        #: the elements of one message, at most
        self._limit = max(1, most_bytes // dtype.itemsize)
        # in pieces, arrivals of the next round must not wait for memory of this round
        linger = 1 if segment_bytes else 0
        if codes is not None:
            self._groups = codes.per_message(most_bytes)
            self._limit = self._groups * codes.group
            groups = offsets(codes.groups(high - low) for low, high in pairwise(edges))
            dtype_of_group = f"V{codes.nbytes}"
            self._codes = _Arena(
                steps, groups, dtype_of_group, codes.nbytes, acquire, linger, is_coded
            )
        self._elements = _Arena(
            steps, edges, dtype, dtype.itemsize, acquire, linger,
            lambda part: not is_coded(part) and part.place not in vectors,
        )  # fmt: skip

    @property
    def scratch(self) -> Any:
        """The scratch for elements; None where there is none."""
        return self._elements.items

    def views(self, part: Part) -> Iterator[Any]:
        """The array slices of a part, cut into messages; empty blocks have none."""
        if part.place in self.vectors:
            array, base, edges = self.vectors[part.place]
            for start, end in pieces(part, edges or self._elements.edges, self._limit):
                yield array[start - base : end - base]
        elif is_coded(part):
            yield from self._codes.views(part, self._groups)
        else:
            yield from self._elements.views(part, self._limit)


def scratch_layout(
    steps: Sequence[Round],
    edges: list[int],
    itemsize: int,
    linger: int = 0,
    is_here: Callable[[Part], bool] = lambda part: True,
) -> tuple[dict[tuple[str, int], int], int]:
    """Place scratch blocks in one arena.

    Returns {(name, block): elements to add to a vector offset}, and the bytes of the arena. Blocks
    that an operation names as one range lie side by side. Ranges that are never needed in the same
    round share memory: a ring needs two blocks, not a second vector. linger: rounds for which
    memory is kept after its last use. is_here: whether it is the memory of a part.
    """
    align = lcm(_ALIGN, itemsize)
    shifts: dict[tuple[str, int], int] = {}
    live: list[tuple[int, int, int]] = []
    top = 0
    for first_round, last_round, name, run in _scratch_runs(steps, len(edges) - 1, is_here):
        length = sum(edges[block + 1] - edges[block] for block in run)
        live = sorted(entry for entry in live if entry[2] >= first_round)
        start = 0
        for low, high, _ in live:
            if start + length * itemsize <= low:
                break
            start = max(start, high)
        end = start + -(-length * itemsize // align) * align
        live.append((start, end, last_round + linger))
        top = max(top, end)
        offset = start // itemsize
        for block in run:
            shifts[name, block] = offset - edges[block]
            offset += edges[block + 1] - edges[block]
    return shifts, top


def _numbers(part: Part, blocks: int) -> list[int]:
    return [block % blocks for block in range(part.first, part.first + part.count)]


def _scratch_runs(
    steps: Sequence[Round], blocks: int, is_here: Callable[[Part], bool]
) -> list[tuple[int, int, str, list[int]]]:
    """Runs of scratch blocks that must lie side by side, by round.

    (first round, last round, name, block numbers).
    """
    rounds_of: dict[tuple[str, int], list[int]] = defaultdict(list)
    joined: set[tuple[str, int]] = set()
    for number, step in enumerate(steps):
        for part in chain.from_iterable(operation for operation in step):
            if isinstance(part, Part) and part.place not in (INPUT, OUTPUT) and is_here(part):
                numbers = _numbers(part, blocks)
                # joined to the next block
                joined.update((part.place, block) for block in numbers[:-1])
                for block in numbers:
                    rounds_of[part.place, block].append(number)
    runs = []
    for name, block in sorted(rounds_of):
        # a circle of blocks begins at block 0
        is_circle = block == 0 and all((name, other) in joined for other in range(blocks))
        if (name, (block - 1) % blocks) in joined and not is_circle:
            continue
        run = [block]
        while (name, run[-1]) in joined and (run[-1] + 1) % blocks != block:
            run.append((run[-1] + 1) % blocks)
        when = [number for member in run for number in rounds_of[name, member]]
        runs.append((min(when), max(when), name, run))
    return sorted(runs)
