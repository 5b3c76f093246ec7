"""The verifier: run all ranks of a schedule on symbols and prove what it does, without MPI and without data.

Proved for each schedule: every rank ends with what its collective promises, every contribution exactly once, operands in
rank order, and added in the canonical order, where that is declared, the same expression (so the same bits) on all ranks;
every send meets a receive of the same blocks; nothing waits for ever although a send blocks until it is received; no memory
is read and received into in one round; the input is never written; and all of it in place as well as out of place. Rounds,
messages and bytes are
counted on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from traceback import extract_tb
from typing import TYPE_CHECKING, NamedTuple

from .. import algorithms, collectives
from ..errors import ArgumentError, ScheduleError
from ..schedule import MAX_MESSAGE_BYTES, Generator, Part, Reduce, bounds, pieces
from .endless import Endless, EndsWithin
from .flow import flows_in_pieces, flows_read_late, moves_straight
from .symbolic import Expressions, Run, SortedRound, sort
from .writing import must_leave_alone_what_is_written, writes

if TYPE_CHECKING:
    from ..collectives import Collective, CollectiveName
    from .symbolic import Observer


#: a generator that yields so many rounds for each rank and block does not end; those of the registry yield at most four
_MOST_ROUNDS = 64
#: seconds of computing after which the generator of a rank is taken to loop; ours take milliseconds for 512 ranks
_LONGEST = 5.0


class RankCost(NamedTuple):
    """What one rank does: messages it sends, bytes it sends, receives and reduces."""

    messages: int
    bytes_sent: int
    bytes_received: int
    bytes_reduced: int


class Cost(NamedTuple):
    """What a schedule costs. Bytes are of the vector that `check` was asked about, by default of one byte per block.

    Attributes
    ----------
    rounds : int
        The longest chain of dependent rounds. A round in which a rank sends to (or receives from) k ranks counts as k:
        one port per rank, full duplex.
    messages, bytes_sent, bytes_received, bytes_reduced : int
        The maxima over ranks.
    ordered : bool
        Whether operands stay in rank order.
    ranks : tuple of RankCost
        Each rank's own figures.
    canonical : bool
        Whether every element is added in the canonical order.
    """

    rounds: int
    messages: int
    bytes_sent: int
    bytes_received: int
    bytes_reduced: int
    ordered: bool
    ranks: tuple[RankCost, ...]
    canonical: bool


def check(
    collective: CollectiveName | Collective, generator: Generator, size: int, root: int = 0, blocks: int | None = None, *,
    count: int | None = None, itemsize: int = 1, ordered: bool | None = None, observer: Observer | None = None,
    nodes: tuple[int, ...] | None = None,
) -> Cost:
    """Prove that a generator is a collective, at one number of ranks.

    Parameters
    ----------
    collective : str
        `allreduce`, say.
    generator : callable
        generator(rank, size[, root]) yields the rounds of a rank, as `mpicoll.schedule` describes them.
    size, root : int
        Ranks, and the root of rooted collectives.
    blocks : int, optional
        How many the vector has; default: what the registry declares for this generator, else `size`.
    count, itemsize : int, optional
        Elements of the vector whose bytes are counted, and bytes of each; default: one byte per block.
    ordered : bool, optional
        Also prove that operands stay in rank order; default: as declared. (The canonical order is proved where declared.)
    observer : callable, optional
        Sees the run, as `symbolic.Run` says.
    nodes : tuple of int, optional
        The node of each rank.

    Returns
    -------
    Cost
        Rounds, messages and bytes.

    Raises
    ------
    ScheduleError
        What is wrong, with rank, round and block.
    ArgumentError
        An argument is out of range.

    Cost
    ----
    About a microsecond per block moved.
    """
    collective = collectives.find(collective) if isinstance(collective, str) else collective
    if size < 1 or not 0 <= root < size:
        raise ArgumentError(f"expected 1 or more ranks and 0 <= root < size, got size {size}, root {root}")
    entry = _declared(collective, generator)
    blocks = blocks or (entry.vector_blocks(size, size, nodes) if entry else size)
    if blocks < 1 or (collective.blocks_of_ranks and blocks % size):
        raise ArgumentError(f"{collective.name} needs a multiple of {size} blocks, got {blocks}")
    ordered = entry.ordered if ordered is None and entry else bool(ordered)
    programs = programs_of(collective, entry.placed(nodes) if entry else generator, size, root, blocks)
    expressions = Expressions(collective.contributions(size, blocks))
    run = Run(collective, root, blocks, programs, expressions, observer=observer)
    in_order, canonical = _prove(run, collective, root, blocks, ordered)
    if collective.shares_memory:
        run_in_place = Run(collective, root, blocks, programs, expressions, in_place=True)
        _prove(run_in_place, collective, root, blocks, ordered)
    if entry and entry.canonical and not canonical:
        raise ScheduleError("elements are not added in the canonical order, but the algorithm is declared canonical")
    if writes(programs):
        must_leave_alone_what_is_written(programs, blocks, collective.shares_memory)
        if entry and entry.cuttable:
            raise ScheduleError("it writes into other ranks' memory, but it is declared cuttable")
    if entry and entry.cuttable and not (entry.read_late or flows_in_pieces(programs)):
        raise ScheduleError("transfers of one round wait for each other when messages are cut, but it is declared cuttable")
    if entry and entry.read_late and not flows_read_late(programs, entry.cuttable):
        raise ScheduleError("transfers wait for each other when messages are cut or read late, but it is declared they may be")
    if entry and collective.personal and not (entry.equal_blocks or moves_straight(programs)):
        raise ScheduleError("blocks pass through places that are made for others, but it is declared they may have any sizes")
    ranks = _rank_costs(programs, bounds(blocks if count is None else count, blocks), itemsize)
    messages, sent, received, reduced = map(max, zip(*ranks))
    return Cost(max(rank.clock for rank in run.ranks), messages, sent, received, reduced, in_order, ranks, canonical)


def programs_of(
    collective: Collective, generator: Generator, size: int, root: int, blocks: int
) -> list[list[SortedRound]]:
    """The rounds of every rank, sorted."""
    return [_program_of(collective, generator, (rank, size, root, blocks)) for rank in range(size)]


def _program_of(collective: Collective, generator: Generator, of: tuple[int, int, int, int]) -> list[SortedRound]:
    """The rounds of one rank. of: rank, size, root, blocks."""
    rank, size, _, blocks = of
    most = _MOST_ROUNDS * size * blocks
    try:
        with EndsWithin(_LONGEST):
            program = [sort(step) for step in islice(collective.program(generator, *of), most)]
    except Exception as error:  # whatever a user's generator raises
        reason = error if isinstance(error, ScheduleError) else repr(error)
        raise ScheduleError(f"the generator of rank {rank} fails{_place(generator, error)}: {reason}") from error
    except Endless as error:
        place, took = _place(generator, error), f"{_LONGEST:g} s of computing"
        raise ScheduleError(f"the generator of rank {rank}{place} does not yield: {took}, and it goes on") from None
    if len(program) == most:
        raise ScheduleError(f"the generator of rank {rank}{_place(generator)} does not end: {most} rounds, and it goes on")
    return program


def _place(generator: Generator, error: BaseException | None = None) -> str:
    """Where a generator is written, and failed if it did: " at file:line"; empty where it is no function of Python's."""
    code = getattr(getattr(generator, "func", generator), "__code__", None)
    trace = extract_tb(error.__traceback__) if error else ()
    lines = [frame.lineno for frame in trace if code and frame.filename == code.co_filename]
    return f" at {code.co_filename}:{lines[-1] if lines else code.co_firstlineno}" if code else ""


def _declared(collective: Collective, generator: Generator) -> algorithms.Algorithm | None:
    return next((a for a in algorithms.registered(collective.name) if a.generator is generator), None)


def _prove(run: Run, collective: Collective, root: int, blocks: int, must_be_ordered: bool) -> tuple[bool, bool]:
    """Run to the end and compare with what the collective promises.

    Returns whether operands stayed in rank order, and whether they were added in the canonical order.
    """
    run.play()
    results: dict[int, int] = {}
    size, ordered = len(run.ranks), True
    tree = run.expressions.canonical(size) if collective.reduces else None
    canonical = tree is not None
    for rank in run.ranks:
        results = {} if collective.personal else results
        after = collective.postcondition(rank.number, size, blocks, root)
        for block, expression in enumerate(rank.read(after) if after else (), after.first if after else 0):
            if results.get(block) == expression:
                continue
            contributors = collective.contributors(rank.number, block, size, blocks, root)
            found = _bits(run.expressions.ranks[expression])
            if found != list(contributors):
                rank.fail(f"block {block} at the end is made of {_whose(collective, found, blocks)}, "
                          f"expected {_whose(collective, list(contributors), blocks)} ({collective.promise})")
            if results.setdefault(block, expression) != expression:
                rank.fail(f"block {block} is summed in another order than on other ranks: other bits")
            ordered = ordered and run.expressions.span[expression] is not None
            canonical = canonical and expression == tree
    if must_be_ordered and not ordered:
        raise ScheduleError("operands do not stay in rank order, but the algorithm is declared ordered")
    return ordered, canonical


def _bits(mask: int) -> list[int]:
    found = []
    while mask:
        found.append((mask & -mask).bit_length() - 1)
        mask &= mask - 1
    return found


def _whose(collective: Collective, contributions: list[int], blocks: int) -> str:
    """For a person: whose data these are."""
    if not collective.personal:
        return f"ranks {contributions}"
    return " and ".join(f"block {one % blocks} of rank {one // blocks}" for one in contributions)


def _rank_costs(
    programs: Sequence[Sequence[SortedRound]], edges: Sequence[int], itemsize: int
) -> tuple[RankCost, ...]:
    """What each rank sends, receives and reduces of a vector whose blocks begin at `edges`."""
    figures = [[0, 0, 0, 0] for _ in programs]
    known: dict[tuple[int, int], tuple[int, int]] = {}

    def measure(part: Part) -> tuple[int, int]:
        if part[1:] not in known:
            cut = list(pieces(part, edges, MAX_MESSAGE_BYTES // itemsize))
            known[part[1:]] = len(cut), itemsize * sum(end - start for start, end in cut)
        return known[part[1:]]

    for source, steps in enumerate(programs):
        for step in steps:
            for target, part in step.sends:
                messages, length = measure(part)
                figures[source][0] += messages
                figures[source][1] += length
                figures[target][2] += length
            for op in step.local:
                figures[source][3] += measure(op.into)[1] if type(op) is Reduce else 0
    return tuple(RankCost(*figure) for figure in figures)
