"""The verifier: run all ranks of a schedule on symbols and prove what it does, without MPI and without data.

Proved for each schedule: every rank ends with what its collective promises, every contribution exactly once, operands in
rank order where that is declared, the same expression (so the same bits) on all ranks; every send meets a receive of
the same blocks; nothing waits for ever although a send blocks until it is received; no memory is read and received into
in one round; the input is never written; and all of it in place as well as out of place. Rounds, messages and bytes are
counted on the way.
"""

from typing import NamedTuple

from .. import algorithms, collectives
from ..errors import ArgumentError, ScheduleError
from ..schedule import MAX_MESSAGE_BYTES, Reduce, bounds, pieces
from .flow import flows_in_pieces
from .symbolic import Expressions, Run, sort


class RankCost(NamedTuple):
    """What one rank does: messages and bytes sent, bytes received, bytes it reduces."""

    messages: int
    bytes_sent: int
    bytes_received: int
    bytes_reduced: int


class Cost(NamedTuple):
    """What a schedule costs: the longest chain of dependent rounds, the maxima over ranks, and each rank's own figures.

    A round in which a rank sends to (or receives from) k ranks counts as k rounds: one port per rank, full duplex.
    Bytes are of a vector of `count` elements of `itemsize` bytes; by default of one byte per block.
    """

    rounds: int
    messages: int
    bytes_sent: int
    bytes_received: int
    bytes_reduced: int
    ordered: bool
    ranks: tuple


def check(
    collective, generator, size, root=0, blocks=None, *, count=None, itemsize=1, ordered=None, observer=None, nodes=None
):
    """Prove that `generator(rank, size[, root])` is that collective at `size` ranks; return its `Cost`.

    blocks: how many the vector has (default: what the registry declares for this generator, else size).
    count, itemsize: the vector whose bytes are counted. ordered: also prove that operands stay in rank order
    (default: as declared). observer: sees the run, as `symbols.Run` says. nodes: the node of each rank.
    Raises ScheduleError that names rank, round and block; ArgumentError for bad arguments.
    Cost of the check: about a microsecond per block moved.
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
    expressions = Expressions(size)
    run = Run(collective, root, blocks, programs, expressions, observer=observer)
    in_order = _prove(run, collective, root, blocks, ordered)
    if collective.shares_memory:
        run_in_place = Run(collective, root, blocks, programs, expressions, in_place=True)
        _prove(run_in_place, collective, root, blocks, ordered)
    if entry and entry.cuttable and not flows_in_pieces(programs):
        raise ScheduleError("transfers of one round wait for each other when messages are cut, but it is declared cuttable")
    ranks = _rank_costs(programs, bounds(blocks if count is None else count, blocks), itemsize)
    return Cost(max(rank.clock for rank in run.ranks), *map(max, zip(*ranks)), in_order, ranks)


def programs_of(collective, generator, size, root, blocks):
    """The rounds of every rank, sorted."""
    programs = []
    for rank in range(size):
        try:
            programs.append([sort(step) for step in collective.program(generator, rank, size, root, blocks)])
        except Exception as error:  # whatever a user's generator raises
            reason = error if isinstance(error, ScheduleError) else repr(error)
            raise ScheduleError(f"the generator of rank {rank} fails: {reason}") from error
    return programs


def _declared(collective, generator):
    return next((a for a in algorithms.registered(collective.name) if a.generator is generator), None)


def _prove(run, collective, root, blocks, must_be_ordered):
    """Run to the end and compare with what the collective promises; whether operands stayed in rank order."""
    run.play()
    size, results, ordered = len(run.ranks), {}, True
    for rank in run.ranks:
        after = collective.after(rank.number, size, blocks, root)
        for block, expression in enumerate(rank.read(after) if after else (), after.first if after else 0):
            if results.get(block) == expression:
                continue
            contributors = collective.contributors(block, size, blocks, root)
            found = _ranks_in(run.expressions.ranks[expression])
            if found != list(contributors):
                rank.fail(f"block {block} at the end is made of ranks {found}, expected {list(contributors)}")
            if results.setdefault(block, expression) != expression:
                rank.fail(f"block {block} is summed in another order than on other ranks: other bits")
            ordered = ordered and run.expressions.span[expression] is not None
    if must_be_ordered and not ordered:
        raise ScheduleError("operands do not stay in rank order, but the algorithm is declared ordered")
    return ordered


def _ranks_in(mask):
    return [rank for rank in range(mask.bit_length()) if mask >> rank & 1]


def _rank_costs(programs, edges, itemsize):
    """What each rank sends, receives and reduces of a vector whose blocks begin at `edges`."""
    figures = [[0, 0, 0, 0] for _ in programs]
    known = {}

    def measure(part):
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
