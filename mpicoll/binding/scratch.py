"""The memory of a schedule's parts: the caller's vectors, or scratch that rounds share."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from ..schedule import INPUT, MAX_MESSAGE_BYTES, OUTPUT, Part, pieces

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


class Memory:
    """Input and output vectors, and scratch laid out by the rounds that need it."""

    def __init__(
        self,
        steps: Sequence[Round],
        edges: list[int],
        vectors: dict[str, Vector],
        dtype: Any,
        acquire: Callable[[int], Any],
        segment_bytes: int | None = None,
    ) -> None:
        self.edges = edges
        self.vectors = vectors
        most_bytes = min(segment_bytes or MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES)
        #: the elements of one message, at most
        self.limit = max(1, most_bytes // dtype.itemsize)
        # in pieces, arrivals of the next round must not wait for memory of this round
        linger = 1 if segment_bytes else 0
        self.shifts, nbytes = scratch_layout(steps, edges, dtype.itemsize, linger)
        #: the scratch as bytes, and as elements; None where there is none
        self.arena: Any = None
        self.scratch: Any = None
        if nbytes:
            self.arena = acquire(nbytes)
            self.scratch = self.arena[:nbytes].view(dtype)

    def views(self, part: Part) -> Iterator[Any]:
        """The array slices of a part, cut into messages; empty blocks have none."""
        if part.place in self.vectors:
            array, base, edges = self.vectors[part.place]
            for start, end in pieces(part, edges or self.edges, self.limit):
                yield array[start - base : end - base]
            return
        for start, end in pieces(part, self.edges, self.limit):
            # a range that wraps is two runs
            run = part.first if start >= self.edges[part.first] else 0
            shift = self.shifts[part.place, run]
            yield self.scratch[start + shift : end + shift]


def scratch_layout(
    steps: Sequence[Round], edges: list[int], itemsize: int, linger: int = 0
) -> tuple[dict[tuple[str, int], int], int]:
    """Place scratch blocks in one arena.

    Returns {(name, block): elements to add to a vector offset}, and the bytes of the arena. Blocks
    that an operation names as one range lie side by side. Ranges that are never needed in the same
    round share memory: a ring needs two blocks, not a second vector. linger: rounds for which
    memory is kept after its last use.
    """
    shifts: dict[tuple[str, int], int] = {}
    live: list[tuple[int, int, int]] = []
    top = 0
    for first_round, last_round, name, run in _scratch_runs(steps, len(edges) - 1):
        length = sum(edges[block + 1] - edges[block] for block in run)
        live = sorted(entry for entry in live if entry[2] >= first_round)
        start = 0
        for low, high, _ in live:
            if start + length * itemsize <= low:
                break
            start = max(start, high)
        end = start + -(-length * itemsize // _ALIGN) * _ALIGN
        live.append((start, end, last_round + linger))
        top = max(top, end)
        offset = start // itemsize
        for block in run:
            shifts[name, block] = offset - edges[block]
            offset += edges[block + 1] - edges[block]
    return shifts, top


def _numbers(part: Part, blocks: int) -> list[int]:
    return [block % blocks for block in range(part.first, part.first + part.count)]


def _scratch_runs(steps: Sequence[Round], blocks: int) -> list[tuple[int, int, str, list[int]]]:
    """Runs of scratch blocks that must lie side by side, by round.

    (first round, last round, name, block numbers).
    """
    rounds_of: dict[tuple[str, int], list[int]] = defaultdict(list)
    joined: set[tuple[str, int]] = set()
    for number, step in enumerate(steps):
        for part in chain.from_iterable(operation for operation in step):
            if isinstance(part, Part) and part.place not in (INPUT, OUTPUT):
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
