"""What each collective means: which blocks lie where before, and which must lie where after.

The verifier proves schedules against them, the executor binds buffers by them, and
`schedule.folded` takes the blocks of extra ranks from them.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

from .errors import ArgumentError, did_you_mean
from .schedule import INPUT, OUTPUT, Copy, Generator, Operation, Part, rounds

CollectiveName: TypeAlias = Literal[
    "allreduce", "reduce_scatter", "allgather", "alltoall", "bcast", "reduce", "scatter", "gather",
    "scan", "exscan", "barrier",
]
#: calls that `Communicator.explain` takes, also in mpi4py's spelling
CallName: TypeAlias = Literal[
    CollectiveName,
    "iallreduce", "ireduce_scatter", "iallgather", "ialltoall", "ibcast", "ireduce", "iscatter",
    "igather", "iscan", "iexscan", "ibarrier",
    "allgatherv", "alltoallv", "alltoallw", "gatherv", "scatterv", "reduce_scatter_block",
    "Allreduce", "Reduce_scatter", "Reduce_scatter_block", "Allgather", "Allgatherv", "Alltoall",
    "Alltoallv", "Alltoallw", "Bcast", "Reduce", "Scatter", "Scatterv", "Gather", "Gatherv",
    "Scan", "Exscan", "Barrier",
    "Iallreduce", "Ireduce_scatter", "Ireduce_scatter_block", "Iallgather", "Iallgatherv",
    "Ialltoall", "Ialltoallv", "Ialltoallw", "Ibcast", "Ireduce", "Iscatter", "Iscatterv",
    "Igather", "Igatherv", "Iscan", "Iexscan", "Ibarrier",
]

ALL, OWN, ROOT = "all blocks on every rank", "the rank's own block", "all blocks on the root"
EACH = "on every rank a block for, or from, each rank"
UP_TO = "all blocks on every rank, summed over the ranks up to it"
BEFORE = "all blocks on every rank but the first, summed over the ranks before it"


class Collective(NamedTuple):
    """One collective: its blocks before (place and whose) and after (always in the output).

    Attributes
    ----------
    name : str
        As in `algorithms.list_algorithms`.
    reduces : bool
        Whether results are sums over ranks.
    place : str
        Where the blocks lie before: the input, or the output (bcast).
    initial, final : str
        Whose blocks a rank has before and after: `ALL`, `OWN`, `ROOT` or `EACH`; after a scan also
        whose contributions: `UP_TO` or `BEFORE`.
    """

    name: CollectiveName
    reduces: bool
    place: str
    initial: str
    final: str

    @property
    def rooted(self) -> bool:
        """Whether calls name a root."""
        return ROOT in (self.initial, self.final)

    @property
    def personal(self) -> bool:
        """Whether each rank has its own blocks, so that the number of a block is its place."""
        return self.initial == EACH

    @property
    def is_scan(self) -> bool:
        """Whether the result of a rank is made of contributions of lower ranks alone."""
        return self.final in (UP_TO, BEFORE)

    @property
    def same_results(self) -> bool:
        """Whether all ranks that have the result of a block have the same."""
        return not (self.personal or self.is_scan)

    @property
    def blocks_of_ranks(self) -> bool:
        """Whether block r belongs to rank r, so that the caller gives the sizes of blocks."""
        return self.personal or OWN in (self.initial, self.final)

    @property
    def shares_memory(self) -> bool:
        """Whether input and output of a block are the same memory with IN_PLACE, without a copy."""
        return self.place == INPUT and not self.personal and self.name != "reduce_scatter"

    @property
    def promise(self) -> str:
        """Where data start and must end, for a person.

        >>> find("scatter").promise
        "starts: input, all blocks on the root; must end: output, the rank's own block"
        """
        return f"starts: {self.place}, {self.initial}; must end: {OUTPUT}, {self.final}"

    def precondition(self, rank: int, size: int, blocks: int, root: int = 0) -> Part | None:
        """The `Part` that `rank` holds at the start, or None."""
        return _part(self.place, self.initial, rank, size, blocks, root)

    def postcondition(self, rank: int, size: int, blocks: int, root: int = 0) -> Part | None:
        """The `Part` of `rank` at the end, for which alone it has output memory, or None."""
        return _part(OUTPUT, self.final, rank, size, blocks, root)

    def contributions(self, size: int, blocks: int) -> int:
        """The number of contributions: one per rank, or, with personal blocks, one per block."""
        return size * blocks if self.personal else size

    def contribution(self, rank: int, block: int, size: int, blocks: int, root: int = 0) -> int:
        """The number of what `rank` has of `block` at the start."""
        if self.personal:
            return rank * blocks + block
        return rank if self.reduces else self.contributors(rank, block, size, blocks, root)[0]

    def contributors(self, rank: int, block: int, size: int, blocks: int, root: int = 0) -> range:
        """The numbers of the contributions to the result of `block` on `rank`, in rank order."""
        if self.is_scan:
            return range(rank + (self.final == UP_TO))
        if self.reduces:
            return range(size)
        source = root if self.initial == ROOT else block * size // blocks
        if self.personal:
            share = blocks // size
            source = source * blocks + rank * share + block % share
        return range(source, source + 1)

    def program(
        self, generator: Generator, rank: int, size: int, root: int | None, blocks: int
    ) -> Iterator[tuple[Operation, ...]]:
        """Iterate over the rounds of one rank; at one rank every collective is the same copy."""
        if size > 1:
            yield from rounds(generator, rank, size, root if self.rooted else None, blocks)
        elif self.place != OUTPUT and self.final != BEFORE:
            yield (Copy(Part(self.place, 0, blocks), Part(OUTPUT, 0, blocks)),)


def _part(place: str, whose: str, rank: int, size: int, blocks: int, root: int) -> Part | None:
    if whose == OWN:
        share = blocks // size
        return Part(place, rank * share, share)
    has_none = whose == ROOT and rank != root or whose == BEFORE and not rank
    return None if has_none else Part(place, 0, blocks)


ALLREDUCE = Collective("allreduce", True, INPUT, ALL, ALL)
REDUCE_SCATTER = Collective("reduce_scatter", True, INPUT, ALL, OWN)
ALLGATHER = Collective("allgather", False, INPUT, OWN, ALL)
ALLTOALL = Collective("alltoall", False, INPUT, EACH, EACH)
BCAST = Collective("bcast", False, OUTPUT, ROOT, ALL)
REDUCE = Collective("reduce", True, INPUT, ALL, ROOT)
SCATTER = Collective("scatter", False, INPUT, ROOT, OWN)
GATHER = Collective("gather", False, INPUT, OWN, ROOT)
SCAN = Collective("scan", True, INPUT, ALL, UP_TO)
EXSCAN = Collective("exscan", True, INPUT, ALL, BEFORE)
#: an allgather of a byte per rank: who has all bytes knows that all ranks have begun
BARRIER = Collective("barrier", False, INPUT, OWN, ALL)

_ALL = (
    ALLREDUCE, REDUCE_SCATTER, ALLGATHER, ALLTOALL, BCAST, REDUCE, SCATTER, GATHER, SCAN, EXSCAN,
    BARRIER,
)  # fmt: skip
COLLECTIVES: dict[CollectiveName, Collective] = {collective.name: collective for collective in _ALL}


def of_call(name: str) -> tuple[CollectiveName, bool]:
    """The collective of a method of mpi4py, in any spelling, and whether it is non-blocking.

    >>> of_call("Allreduce"), of_call("gatherv")
    (('allreduce', False), ('gather', False))
    >>> of_call("Ireduce_scatter_block"), of_call("bcast_init")
    (('reduce_scatter', True), ('bcast', False))
    >>> of_call("Iscan"), of_call("Exscan")
    (('scan', True), ('exscan', False))

    Raises
    ------
    ArgumentError
        There is none; the message lists those there are.
    """
    if not isinstance(name, str):
        find(name)
    base = name.lower().removesuffix("_init").removesuffix("_block")
    base = base.removesuffix("w" if base.endswith("alltoallw") else "v")
    nonblocking = base.startswith("i") and base[1:] in COLLECTIVES
    return find(base[nonblocking:] if base[nonblocking:] in COLLECTIVES else name).name, nonblocking


def find(name: str) -> Collective:
    """The collective of that name.

    Raises
    ------
    ArgumentError
        There is none; the message lists them.
    """
    try:
        return COLLECTIVES[name]  # type: ignore[index]  # whatever the text
    except KeyError:
        there = f"there are: {', '.join(COLLECTIVES)}{did_you_mean(name, COLLECTIVES)}"
        raise ArgumentError(f"unknown collective {name!r}; {there}") from None
