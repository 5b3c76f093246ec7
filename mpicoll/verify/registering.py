"""The cases that prove an algorithm, and the registration of a user's generator by a name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from inspect import getsource, signature
from typing import TYPE_CHECKING, Literal, NamedTuple
from zlib import crc32

from .. import algorithms, collectives
from ..errors import ArgumentError, ScheduleError
from .flow import flows_in_pieces, flows_read_late, moves_straight
from .prover import check, programs_of
from .writing import writes

if TYPE_CHECKING:
    from ..algorithms import Algorithm, AlgorithmName
    from ..collectives import Collective, CollectiveName
    from ..schedule import Generator
    from .prover import Cost


_unproved: ContextVar[bool] = ContextVar("_unproved", default=False)


class Case(NamedTuple):
    """The arguments of one check."""

    size: int
    root: int
    #: of the vector
    blocks: int
    #: the node of each rank, where that matters
    nodes: tuple[int, ...] | None


class Checked(NamedTuple):
    """The result of all checks of an algorithm."""

    #: their number
    cases: int
    #: operands stay in rank order, in all cases
    ordered: bool
    #: they are added in the canonical order, in all cases
    canonical: bool
    #: how often a value is quantised with codes in the messages; None: it is not compressible
    quantisations: int | None = None


def cases(algorithm: Algorithm, sizes: Iterable[int], every_root: int = 9) -> Iterator[Case]:
    """The cases that prove an algorithm.

    Pipelines have several segment counts, from one to more than the ranks; above 16 ranks one
    count. Where nodes matter, they have one rank, two or three ranks, filled in order or in turn,
    very different sizes, or scattered ranks; above 16 ranks one of these in turn. Nodes that do not
    change a schedule make no case.

    Parameters
    ----------
    algorithm : algorithms.Algorithm
        As of `algorithms.find`.
    sizes : iterable of int
        Numbers of ranks.
    every_root : int
        Up to this number of ranks every root makes a case; above it the first, a middle and the
        last.

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
    """Distinct maps from rank to node that change the schedule."""
    few = -(-size // 3)
    maps: list[Iterable[int]] = [
        range(size),
        [rank // 3 for rank in range(size)],
        [rank % few for rank in range(size)],
        [rank.bit_length() for rank in range(size)],
        [rank * rank % 7 % 4 for rank in range(size)],
    ]
    distinct = dict.fromkeys(map(tuple, maps))
    every = [nodes for nodes in distinct if algorithm.placed(nodes) is not algorithm.generator]
    return every if size <= 16 or not every else [every[size % len(every)]]


def check_cases(algorithm: Algorithm, sizes: Iterable[int], every_root: int = 9) -> Checked:
    """Check an algorithm in all its `cases`, which have the same arguments.

    Of a compressible one also with codes in the messages.

    Raises
    ------
    ScheduleError
        The first case that fails, and the reason.
    """
    checked, ordered, canonical = 0, True, True
    quantisations = 0 if algorithm.compressible else None
    for case in cases(algorithm, sizes, every_root):
        cost = _prove(algorithm, case)
        if quantisations is not None:
            coded = _prove(algorithm, case, compressed=True)
            quantisations = max(quantisations, coded.quantisations)
        checked += 1
        ordered = ordered and cost.ordered
        canonical = canonical and cost.canonical
    return Checked(checked, ordered, canonical, quantisations)


def _prove(algorithm: Algorithm, case: Case, compressed: bool = False) -> Cost:
    """Check an algorithm in one case, with all that it declares; ScheduleError names the case."""
    size, root, blocks, nodes = case
    try:
        return check(
            algorithm.collective,
            algorithm.generator,
            size,
            root,
            blocks,
            ordered=algorithm.ordered,
            nodes=nodes,
            compressed=compressed,
            algorithm=algorithm,
        )
    except ScheduleError as error:
        where = f"{algorithm.collective} {algorithm.name}, {size} ranks, root {root}"
        placed = f", nodes {nodes}" if nodes else ""
        raise ScheduleError(f"{where}, {blocks} blocks{placed}: {error}") from error


@lru_cache(maxsize=4096)
def prove_once(algorithm: Algorithm, case: Case, compressed: bool = False) -> None:
    """Check the case of a call of a registered algorithm, before the first such call.

    Raises
    ------
    ScheduleError
        It is wrong there, or has not the properties that it had where `register` verified it.
    """
    try:
        _prove(algorithm, case, compressed)
    except ScheduleError as error:
        advice = f"register it with max_size={case.size} or more, or name another algorithm"
        raise ScheduleError(f"{error}; nothing was sent: mend it, {advice}") from error


def register(
    collective: CollectiveName,
    name: str,
    generator: Generator,
    *,
    blocks: Callable[..., int] | Literal["segments"] | None = None,
    max_size: int = 17,
) -> AlgorithmName:
    """Verify a generator at 1 to max_size ranks and every root, then register it by a name.

    Call it on all ranks, before the name is used. Where operands stay in rank order at every size,
    the algorithm also serves operations that do not commute; where that is the canonical order, it
    also serves `Communicator(deterministic=True)`. A call of a size, root, placement or number of
    segments that was not verified is verified before anything is sent, once; it raises
    ScheduleError on all ranks where the schedule is wrong, or has not the order found here.

    Parameters
    ----------
    collective : str
        `allreduce`, say.
    name : str
        Its name for `algorithm=`, the command line and MPICOLL_ALGORITHM.
    generator : callable
        generator(rank, size[, root]) yields the rounds of a rank, as described in
        `mpicoll.schedule`.
    blocks : callable, optional
        The number of blocks of the vector, as a function of size. Default: one per rank, or, for a
        generator that takes `blocks`, as many segments as the caller wants, up to 128.
    max_size : int
        The largest number of ranks at which it is verified.

    Returns
    -------
    AlgorithmName
        The name, in the type of `algorithm=`.

    Raises
    ------
    ScheduleError
        The first error of the schedule.
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
    algorithm = algorithms.Algorithm(
        collective, name, generator, blocks=blocks, cuttable=False, read_late=False,
        equal_blocks=True, source=_hash_of(generator),
    )  # fmt: skip
    if _unproved.get():
        algorithms.add(algorithm)
        return algorithms.AlgorithmName(name)
    _, ordered, canonical, _ = check_cases(algorithm, range(1, max_size + 1), every_root=max_size)
    proved = cases(algorithm, range(2, max_size + 1), every_root=max_size)
    programs = [
        programs_of(meaning, algorithm.placed(nodes), size, root, blocks)
        for size, root, blocks, nodes in proved
    ]
    cuttable = all(map(flows_in_pieces, programs)) and not any(map(writes, programs))
    algorithms.add(
        algorithm._replace(
            ordered=ordered,
            canonical=canonical,
            compressible=_is_compressible(algorithm, max_size),
            cuttable=cuttable,
            read_late=all(flows_read_late(program, cuttable) for program in programs),
            equal_blocks=not all(map(moves_straight, programs)),
        )
    )
    return algorithms.AlgorithmName(name)


def _hash_of(generator: Generator) -> str:
    """A hash of the source, or of the name where there is none, which ranks compare."""
    try:
        text = getsource(generator)
    except (OSError, TypeError):
        text = getattr(generator, "__qualname__", type(generator).__name__)
    return f"{crc32(text.encode()):08x}"


def _is_compressible(algorithm: Algorithm, max_size: int) -> bool:
    """Whether codes in its messages are right, and few enough on each way."""
    try:
        check_cases(algorithm._replace(compressible=True), range(1, max_size + 1))
    except ScheduleError:
        return False
    return True


@contextmanager
def unproved() -> Iterator[None]:
    """Let `register` accept wrong schedules, to examine them."""
    token = _unproved.set(True)
    try:
        yield
    finally:
        _unproved.reset(token)


def _must_fit(generator: Generator, collective: Collective) -> bool:
    """Whether a generator takes `blocks`; ArgumentError where its parameters do not fit."""
    arguments = ("rank", "size", "root") if collective.rooted else ("rank", "size")
    try:
        parameters = signature(generator)
        takes_blocks = "blocks" in parameters.parameters
        parameters.bind(*arguments, **({"blocks": 1} if takes_blocks else {}))
    except TypeError as error:
        needs = f"{collective.name} needs a generator({', '.join(arguments)})"
        raise ArgumentError(f"{needs}, got {generator!r}: {error}") from None
    return takes_blocks
