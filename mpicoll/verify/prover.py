"""The verifier: runs all ranks of a schedule on symbols and proves its result, without MPI or data.

It proves for each schedule, in place and out of place:

- Every rank ends with the result of the collective, with every contribution exactly once.
- All ranks have the same expression (so the same bits); operands are in rank order, and added in
  the canonical order, where that is declared.
- Every send meets a receive of the same blocks.
- No rank waits for ever, even if each send blocks until it is received.
- No memory is read and received into in one round, and the input is never written.

It counts rounds, messages and bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from traceback import extract_tb
from typing import TYPE_CHECKING, NamedTuple

from .. import algorithms, collectives
from ..errors import ArgumentError, ScheduleError
from ..schedule import MAX_MESSAGE_BYTES, Generator, Part, Reduce, bounds, pieces
from .endless import Endless, EndsWithin
from .flow import flows_in_pieces, flows_read_late, moves_straight
from .symbolic import Execution, Expressions, SortedRound, sort
from .writing import must_leave_alone_what_is_written, writes

if TYPE_CHECKING:
    from ..collectives import Collective, CollectiveName
    from .symbolic import Observer


#: rounds per rank and block from which a generator is endless; the registry's have at most four
_MOST_ROUNDS = 64
#: CPU seconds after which the generator of a rank is endless; ours take milliseconds at 512 ranks
_LONGEST = 5.0
#: ranks at which values are quantised as often as at any larger number
_ENOUGH = 5


class RankCost(NamedTuple):
    """Messages that one rank sends, and bytes that it sends, receives and reduces."""

    messages: int
    bytes_sent: int
    bytes_received: int
    bytes_reduced: int


class Cost(NamedTuple):
    """The cost of a schedule; bytes are of the vector of `check`, by default one byte per block.

    Attributes
    ----------
    rounds : int
        The longest chain of dependent rounds. A round in which a rank sends to (or receives from) k
        ranks counts as k: one port per rank, full duplex.
    messages, bytes_sent, bytes_received, bytes_reduced : int
        The maxima over ranks.
    ordered : bool
        Whether operands stay in rank order.
    ranks : tuple of RankCost
        Each rank's own figures.
    canonical : bool
        Whether every element is added in the canonical order.
    quantisations : int
        How often a value is quantised on its way into a result, at most.
    """

    rounds: int
    messages: int
    bytes_sent: int
    bytes_received: int
    bytes_reduced: int
    ordered: bool
    ranks: tuple[RankCost, ...]
    canonical: bool
    quantisations: int = 0


def check(
    collective: CollectiveName | Collective,
    generator: Generator,
    size: int,
    root: int = 0,
    blocks: int | None = None,
    *,
    count: int | None = None,
    itemsize: int = 1,
    ordered: bool | None = None,
    observer: Observer | None = None,
    nodes: tuple[int, ...] | None = None,
    compressed: bool = False,
    algorithm: algorithms.Algorithm | None = None,
) -> Cost:
    """Prove that a generator is a collective, at one number of ranks.

    Parameters
    ----------
    collective : str
        `allreduce`, say.
    generator : callable
        generator(rank, size[, root]) yields the rounds of a rank, as described in
        `mpicoll.schedule`.
    size, root : int
        Ranks, and the root of rooted collectives.
    blocks : int, optional
        Blocks of the vector; default: as the registry declares for this generator, else `size`.
    count, itemsize : int, optional
        Elements of the vector whose bytes are counted, and bytes of each; default: one byte per
        block.
    ordered : bool, optional
        Also prove that operands stay in rank order; default: as declared. (The canonical order is
        proved where declared.)
    observer : callable, optional
        Called during the run, see `symbolic.Execution`.
    nodes : tuple of int, optional
        The node of each rank.
    compressed : bool, default False
        With codes in the messages: prove that no value is quantised more than twice. Bytes are
        counted as if codes had the size of elements.
    algorithm : algorithms.Algorithm, optional
        Whose declarations hold for this generator; default: the first of the registry that has it.

    Returns
    -------
    Cost
        Rounds, messages and bytes.

    Raises
    ------
    ScheduleError
        The error of the schedule, with rank, round and block.
    ArgumentError
        An argument is out of range.

    Cost
    ----
    About a microsecond per block moved.
    """
    collective = collectives.find(collective) if isinstance(collective, str) else collective
    if size < 1 or not 0 <= root < size:
        expected = "1 or more ranks and 0 <= root < size"
        raise ArgumentError(f"expected {expected}, got size {size}, root {root}")
    entry = algorithm or _declared(collective, generator)
    blocks = blocks or (entry.vector_blocks(size, size, nodes) if entry else size)
    if blocks < 1 or (collective.blocks_of_ranks and blocks % size):
        raise ArgumentError(f"{collective.name} needs a multiple of {size} blocks, got {blocks}")
    ordered = entry.ordered if ordered is None and entry else bool(ordered)
    if entry:
        generator = entry.placed(nodes, compressed)
    elif compressed:
        generator = algorithms.in_codes(generator)
    programs = programs_of(collective, generator, size, root, blocks)
    expressions = Expressions(collective.contributions(size, blocks))
    run = Execution(collective, root, blocks, programs, expressions, observer=observer)
    in_order, canonical, quantisations = _prove(run, collective, root, blocks, ordered)
    if collective.shares_memory:
        run_in_place = Execution(collective, root, blocks, programs, expressions, in_place=True)
        _prove(run_in_place, collective, root, blocks, ordered)
    if entry and entry.canonical and not canonical:
        raise ScheduleError(
            "elements are not added in the canonical order, "
            "but the algorithm is declared canonical"
        )
    if quantisations > algorithms.MOST_QUANTISATIONS:
        raise ScheduleError(f"a value is quantised {quantisations} times on its way into a result")
    if writes(programs):
        must_leave_alone_what_is_written(programs, blocks, collective.shares_memory)
    if entry:
        _prove_messages(entry, collective, programs)
    edges = bounds(blocks if count is None else count, blocks)
    return cost_of_run(run, edges, itemsize, in_order, canonical, quantisations)


def quantisations(
    algorithm: algorithms.Algorithm, size: int, nodes: Sequence[int] | None = None
) -> int:
    """How often a value is quantised at most, with codes in the messages of an algorithm.

    It is counted at a few ranks, which have as many as any more. Of an algorithm that knows nodes
    only messages between them have codes.

    Parameters
    ----------
    algorithm : algorithms.Algorithm
        One that is `compressible`.
    size : int
        Ranks.
    nodes : sequence of int, optional
        The node of each rank; default: each has its own.
    """
    apart = len(set(nodes)) if nodes and algorithm.node_aware else size
    return _counted(algorithm, min(apart, _ENOUGH))


@lru_cache(maxsize=None)
def _counted(algorithm: algorithms.Algorithm, size: int) -> int:
    each_alone = tuple(range(size))
    cost = check(
        algorithm.collective, algorithm.generator, size, nodes=each_alone, compressed=True)
    return cost.quantisations


def _prove_messages(
    entry: algorithms.Algorithm, collective: Collective, programs: Sequence[Sequence[SortedRound]]
) -> None:
    """Prove what the registry declares about messages."""
    if entry.cuttable and writes(programs):
        raise ScheduleError("it writes into other ranks' memory, but it is declared cuttable")
    if entry.cuttable and not (entry.read_late or flows_in_pieces(programs)):
        raise ScheduleError(
            "transfers of one round wait for each other when messages are cut, "
            "but it is declared cuttable"
        )
    if entry.read_late and not flows_read_late(programs, entry.cuttable):
        raise ScheduleError(
            "transfers wait for each other when messages are cut or read late, "
            "but it is declared they may be"
        )
    if collective.personal and not (entry.equal_blocks or moves_straight(programs)):
        raise ScheduleError(
            "blocks pass through places that are made for others, "
            "but it is declared they may have any sizes"
        )


def programs_of(
    collective: Collective, generator: Generator, size: int, root: int, blocks: int
) -> list[list[SortedRound]]:
    """The sorted rounds of every rank."""
    return [_program_of(collective, generator, rank, size, root, blocks) for rank in range(size)]


def _program_of(
    collective: Collective, generator: Generator, rank: int, size: int, root: int, blocks: int
) -> list[SortedRound]:
    """The sorted rounds of one rank."""
    most = _MOST_ROUNDS * size * blocks
    what = f"the generator of rank {rank}"
    try:
        with EndsWithin(_LONGEST):
            rounds = collective.program(generator, rank, size, root, blocks)
            program = [sort(step) for step in islice(rounds, most)]
    except (Exception, SystemExit) as error:  # a user's generator may raise anything
        reason = error if isinstance(error, ScheduleError) else repr(error)
        raise ScheduleError(f"{what} fails{_place(generator, error)}: {reason}") from error
    except Endless as error:
        place = _place(generator, error)
        took = f"{_LONGEST:g} s of computing"
        raise ScheduleError(f"{what}{place} does not yield: {took}, and it goes on") from None
    if len(program) == most:
        place = _place(generator)
        raise ScheduleError(f"{what}{place} does not end: {most} rounds, and it goes on")
    return program


def _place(generator: Generator, error: BaseException | None = None) -> str:
    """The place of a generator, or of its error: " at file:line"; "" where it is not in Python."""
    code = getattr(getattr(generator, "func", generator), "__code__", None)
    if not code:
        return ""
    trace = extract_tb(error.__traceback__) if error else ()
    lines = [frame.lineno for frame in trace if frame.filename == code.co_filename]
    return f" at {code.co_filename}:{lines[-1] if lines else code.co_firstlineno}"


def _declared(collective: Collective, generator: Generator) -> algorithms.Algorithm | None:
    entries = algorithms.registered(collective.name)
    return next((entry for entry in entries if entry.generator is generator), None)


def _prove(
    run: Execution, collective: Collective, root: int, blocks: int, must_be_ordered: bool
) -> tuple[bool, bool, int]:
    """Run to the end and compare the memory of all ranks with the collective's postcondition.

    Returns whether operands stayed in rank order, whether they were added in canonical order, and
    how often one was quantised at most.
    """
    run.play()
    expressions = run.expressions
    size = len(run.ranks)
    results: dict[int, int] = {}
    ordered = True
    canonical = collective.reduces
    quantisations = 0
    for rank in run.ranks:
        if not collective.same_results:
            results = {}
        tree = _canonical(expressions, collective, rank.number, size)
        after = collective.postcondition(rank.number, size, blocks, root)
        if not after:
            continue
        for block, expression in enumerate(rank.read(after), after.first):
            if results.get(block) == expression:
                continue
            expected = list(collective.contributors(rank.number, block, size, blocks, root))
            actual = _bits(expressions.ranks[expression])
            if actual != expected:
                rank.fail(
                    f"block {block} at the end is made of {_sources(collective, actual, blocks)}, "
                    f"expected {_sources(collective, expected, blocks)} ({collective.promise})"
                )
            if results.setdefault(block, expression) != expression:
                rank.fail(
                    f"block {block} is summed in another order than on other ranks: other bits"
                )
            ordered = ordered and expressions.span[expression] is not None
            canonical = canonical and expressions.exact[expression] == tree
            quantisations = max(quantisations, expressions.quantisations[expression])
    if must_be_ordered and not ordered:
        raise ScheduleError(
            "operands do not stay in rank order, but the algorithm is declared ordered"
        )
    return ordered, canonical, quantisations


def _canonical(
    expressions: Expressions, collective: Collective, rank: int, size: int
) -> int | None:
    """The sum of a rank's result in the canonical order; None where it is no sum."""
    if not collective.reduces:
        return None
    if not collective.is_scan:
        return expressions.canonical(size)
    terms = collective.contributors(rank, 0, size, 1)
    return expressions.in_turn(len(terms)) if terms else None


def _bits(mask: int) -> list[int]:
    """The numbers of the bits that are set."""
    numbers = []
    while mask:
        numbers.append((mask & -mask).bit_length() - 1)
        mask &= mask - 1
    return numbers


def _sources(collective: Collective, contributions: list[int], blocks: int) -> str:
    """Contributions, as a text for messages."""
    if not collective.personal:
        return f"ranks {contributions}"
    return " and ".join(f"block {each % blocks} of rank {each // blocks}" for each in contributions)


def cost_of_run(
    run: Execution, edges: Sequence[int], itemsize: int, ordered: bool = True,
    canonical: bool = True, quantisations: int = 0,
) -> Cost:  # fmt: skip
    """The cost of a run that has ended, for a vector whose blocks begin at `edges`.

    ordered, canonical, quantisations: what was proved.
    """
    figures = [[0, 0, 0, 0] for _ in run.ranks]
    cache: dict[tuple[int, int], tuple[int, int]] = {}

    def measure(part: Part) -> tuple[int, int]:
        """Messages and bytes."""
        if part[1:] not in cache:
            cut = list(pieces(part, edges, MAX_MESSAGE_BYTES // itemsize))
            cache[part[1:]] = len(cut), itemsize * sum(end - start for start, end in cut)
        return cache[part[1:]]

    for rank, own in zip(run.ranks, figures):
        for step in rank.steps:
            for target, part in step.sends:
                messages, length = measure(part)
                own[0] += messages
                own[1] += length
                figures[target][2] += length
            for op in step.local:
                own[3] += measure(op.into)[1] if type(op) is Reduce else 0
    ranks = tuple(RankCost(*figure) for figure in figures)
    rounds = max(rank.clock for rank in run.ranks)
    most = RankCost(*map(max, zip(*ranks)))
    return Cost(rounds, *most, ordered, ranks, canonical, quantisations)
