"""What each collective means: which blocks lie where before, and which must lie where after.

The verifier proves schedules against this, the executor binds buffers by it, and `schedule.folded` knows from it what
an extra rank hands over and what it is owed.

May import: errors, schedule.
"""

from typing import NamedTuple

from .errors import ArgumentError
from .schedule import INPUT, OUTPUT, Copy, Part, rounds

ALL, OWN, ROOT = "all blocks on every rank", "the rank's own block", "all blocks on the root"


class Collective(NamedTuple):
    """One collective: its blocks before (place and whose) and after (always in the output)."""

    name: str
    reduces: bool
    place: str
    initial: str
    final: str

    @property
    def rooted(self):
        """Whether calls name a root."""
        return ROOT in (self.initial, self.final)

    @property
    def blocks_of_ranks(self):
        """Whether block r belongs to rank r, so that sizes come from the caller and not from a partition of ours."""
        return OWN in (self.initial, self.final)

    @property
    def shares_memory(self):
        """Whether IN_PLACE lets a block's input and output be the same memory (reduce_scatter moves its result)."""
        return self.place == INPUT and self.name != "reduce_scatter"

    def before(self, rank, size, blocks, root=0):
        """The `Part` that `rank` holds at the start, or None."""
        return _part(self.place, self.initial, rank, size, blocks, root)

    def after(self, rank, size, blocks, root=0):
        """The `Part` that `rank` must hold at the end, or None; a rank has output memory for just these blocks."""
        return _part(OUTPUT, self.final, rank, size, blocks, root)

    def contributors(self, block, size, blocks, root=0):
        """The ranks whose data the result of `block` is made of, in rank order."""
        if self.reduces:
            return range(size)
        source = root if self.initial == ROOT else block * size // blocks
        return range(source, source + 1)

    def program(self, generator, rank, size, root, blocks):
        """Iterate over the rounds of one rank; at one rank every collective is the same copy."""
        if size > 1:
            yield from rounds(generator, rank, size, root if self.rooted else None, blocks)
        elif self.place != OUTPUT:
            yield (Copy(self.before(0, 1, blocks), self.after(0, 1, blocks)),)


def _part(place, whose, rank, size, blocks, root):
    if whose == OWN:
        share = blocks // size
        return Part(place, rank * share, share)
    return Part(place, 0, blocks) if whose == ALL or rank == root else None


ALLREDUCE = Collective("allreduce", True, INPUT, ALL, ALL)
REDUCE_SCATTER = Collective("reduce_scatter", True, INPUT, ALL, OWN)
ALLGATHER = Collective("allgather", False, INPUT, OWN, ALL)
BCAST = Collective("bcast", False, OUTPUT, ROOT, ALL)
REDUCE = Collective("reduce", True, INPUT, ALL, ROOT)
SCATTER = Collective("scatter", False, INPUT, ROOT, OWN)
GATHER = Collective("gather", False, INPUT, OWN, ROOT)

COLLECTIVES = {c.name: c for c in (ALLREDUCE, REDUCE_SCATTER, ALLGATHER, BCAST, REDUCE, SCATTER, GATHER)}


def find(name):
    """The collective of that name, or ArgumentError that lists them."""
    try:
        return COLLECTIVES[name]
    except KeyError:
        raise ArgumentError(f"unknown collective {name!r}; there are: {', '.join(COLLECTIVES)}") from None
