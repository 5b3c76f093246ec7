"""Which cases prove an algorithm, and how a user's own generator becomes usable everywhere by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import signature
from typing import TYPE_CHECKING, Literal, NamedTuple

from .. import algorithms, collectives
from ..errors import ArgumentError, ScheduleError
from .flow import flows_in_pieces, flows_read_late, moves_straight
from .prover import check, programs_of
from .writing import writes

if TYPE_CHECKING:
    from ..algorithms import Algorithm, AlgorithmName
    from ..collectives import Collective, CollectiveName
    from ..schedule import Generator


_unproved: ContextVar[bool] = ContextVar("_unproved", default=False)


class Case(NamedTuple):
    """What an algorithm is checked at: ranks, root, blocks of the vector, and the node of each rank where that matters."""

    size: int
    root: int
    blocks: int
    nodes: tuple[int, ...] | None


class Checked(NamedTuple):
    """How many cases were proved, and whether in all operands stayed in rank order, and were added in the canonical order."""

    cases: int
    ordered: bool
    canonical: bool


def cases(algorithm: Algorithm, sizes: Iterable[int], every_root: int = 9) -> Iterator[Case]:
    """What to check of an algorithm.

    Pipelines get several segment counts, from one to more than there are ranks, above 16 ranks one. Where nodes matter
    they are of two and three ranks, filled in order and in turn, of very different sizes, and scattered, above 16 ranks
    one of these in turn. Nodes that leave a schedule as it is are no case of their own.

    Parameters
    ----------
    algorithm : algorithms.Algorithm
        As of `algorithms.find`.
    sizes : iterable of int
        Numbers of ranks.
    every_root : int
        Up to so many ranks every root is taken; above, the first, a middle and the last.

    Yields
    ------
    Case
        size, root, blocks, nodes.
    """
    rooted = collectives.find(algorithm.collective).rooted
    for size in sizes:
        roots = range(size) if size <= every_root else (0, size // 2, size - 1)
        segments = (1, 2, 5, 9) if size <= 16 else (7,)
        counts = segments if algorithm.blocks == "segments" else (algorithm.vector_blocks(size),)
        for root in roots if rooted else (0,):
            for blocks in counts:
                yield Case(size, root, blocks, None)
        for nodes in _placements(algorithm, size):
            for root in {0, size // 2, size - 1} if rooted else (0,):
                yield Case(size, root, algorithm.vector_blocks(size, 3, nodes), nodes)


def _placements(algorithm: Algorithm, size: int) -> list[tuple[int, ...]]:
    """Maps from rank to node that make another schedule, each once."""
    few = -(-size // 3)
    maps: list[Iterable[int]] = [
        range(size),
        [rank // 3 for rank in range(size)],
        [rank % few for rank in range(size)],
        [rank.bit_length() for rank in range(size)],
        [rank * rank % 7 % 4 for rank in range(size)],
    ]
    every = [nodes for nodes in dict.fromkeys(map(tuple, maps)) if algorithm.placed(nodes) is not algorithm.generator]
    return every if size <= 16 or not every else [every[size % len(every)]]


def check_cases(algorithm: Algorithm, sizes: Iterable[int], every_root: int = 9) -> Checked:
    """Check an algorithm in all its `cases`, whose arguments these are.

    Raises
    ------
    ScheduleError
        The first case that is wrong, and what is wrong with it.
    """
    checked, ordered, canonical = 0, True, True
    for size, root, blocks, nodes in cases(algorithm, sizes, every_root):
        try:
            cost = check(algorithm.collective, algorithm.generator, size, root, blocks, ordered=algorithm.ordered, nodes=nodes)
        except ScheduleError as error:
            placed = f", nodes {nodes}" if nodes else ""
            case = f"{algorithm.collective} {algorithm.name}, {size} ranks, root {root}, {blocks} blocks{placed}"
            raise ScheduleError(f"{case}: {error}") from error
        checked, ordered, canonical = checked + 1, ordered and cost.ordered, canonical and cost.canonical
    return Checked(checked, ordered, canonical)


def register(
    collective: CollectiveName, name: str, generator: Generator, *,
    blocks: Callable[..., int] | Literal["segments"] | None = None, max_size: int = 17,
) -> AlgorithmName:
    """Verify a generator at 1 to max_size ranks and every root, then make it usable everywhere by its name.

    To be called on all ranks alike, before the name is used. Where operands stay in rank order at every size, it also
    serves operations that do not commute; where that is the canonical order, `Communicator(deterministic=True)` too.

    Parameters
    ----------
    collective : str
        `allreduce`, say.
    name : str
        What `algorithm=`, the command line and MPICOLL_ALGORITHM will call it.
    generator : callable
        generator(rank, size[, root]) yields the rounds of a rank, as `mpicoll.schedule` describes them.
    blocks : callable, optional
        How many blocks its vector has, as a function of size. Default: one per rank; as many segments as the caller
        wants where the generator takes `blocks`.
    max_size : int
        Up to how many ranks it is verified.

    Returns
    -------
    AlgorithmName
        The name, as type checkers admit it in `algorithm=`.

    Raises
    ------
    ScheduleError
        The first thing that is wrong with it.
    ArgumentError
        The name is taken, there is no such collective, or the generator takes other arguments.

    Examples
    --------
    >>> mine = mpicoll.register("allreduce", "mine", my_allreduce)
    >>> comm.Allreduce(MPI.IN_PLACE, x, algorithm=mine)
    """
    meaning = collectives.find(collective)
    if name in algorithms.list_algorithms(collective):
        raise ArgumentError(f"{collective} already has an algorithm {name!r}: choose another name")
    takes_blocks = _must_fit(generator, meaning)
    if blocks is None and takes_blocks and not getattr(generator, "folds", False):
        blocks = "segments"
    algorithm = algorithms.Algorithm(collective, name, generator, blocks=blocks, equal_blocks=True)
    if _unproved.get():
        algorithms.add(algorithm._replace(cuttable=False, read_late=False))
        return algorithms.AlgorithmName(name)
    _, ordered, canonical = check_cases(algorithm, range(1, max_size + 1), every_root=max_size)
    programs = [programs_of(meaning, generator, size, root, blocks)
                for size, root, blocks, _ in cases(algorithm, range(2, max_size + 1), every_root=max_size)]  # fmt: skip
    cuttable = all(map(flows_in_pieces, programs)) and not any(map(writes, programs))
    late = all(flows_read_late(program, cuttable) for program in programs)
    equal = not all(map(moves_straight, programs))
    proved = algorithm._replace(ordered=ordered, canonical=canonical)
    algorithms.add(proved._replace(cuttable=cuttable, read_late=late, equal_blocks=equal))
    return algorithms.AlgorithmName(name)


@contextmanager
def unproved() -> Iterator[None]:
    """Let `register` take what is wrong, too: for those who want to look at it."""
    token = _unproved.set(True)
    try:
        yield
    finally:
        _unproved.reset(token)


def _must_fit(generator: Generator, collective: Collective) -> bool:
    """ArgumentError unless it can be called as this collective's generators are; whether it takes `blocks`."""
    wanted = ("rank", "size", "root") if collective.rooted else ("rank", "size")
    try:
        parameters = signature(generator)
        takes_blocks = "blocks" in parameters.parameters
        parameters.bind(*wanted, **({"blocks": 1} if takes_blocks else {}))
    except TypeError as error:
        raise ArgumentError(f"{collective.name} needs a generator({', '.join(wanted)}), got {generator!r}: {error}") from None
    return takes_blocks
