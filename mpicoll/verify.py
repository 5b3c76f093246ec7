"""The verifier: run all ranks of a schedule on symbols and prove what it does, without MPI and without data.

Proved for each schedule: every rank ends with what its collective promises, every contribution exactly once, operands in
rank order where that is declared, the same expression (so the same bits) on all ranks; every send meets a receive of
the same blocks; nothing waits for ever although a send blocks until it is received; no memory is read and received into
in one round; the input is never written; and all of it in place as well as out of place. Rounds, messages and bytes are
counted on the way.
"""

from collections import defaultdict, deque
from inspect import signature
from typing import NamedTuple

from . import algorithms, collectives
from .errors import ArgumentError, ScheduleError
from .schedule import MAX_MESSAGE_BYTES, Reduce, bounds, pieces
from .symbols import Expressions, Run, sort


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
    programs = _programs(collective, entry.placed(nodes) if entry else generator, size, root, blocks)
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


def flows_in_pieces(programs):
    """Whether a schedule comes to its end when each message is cut in two and a rank takes its halves in turn.

    This is the order of `dataflow.by_pieces` where nothing runs ahead; running ahead only starts things earlier. It fails
    where a transfer depends on another of the same round, which is no matter to whoever starts a whole round at once.
    programs: the sorted rounds of every rank.
    """
    started, turns = defaultdict(int), [_turns(rank, steps) for rank, steps in enumerate(programs)]
    waiting, todo = [None] * len(programs), deque(range(len(programs)))
    while todo:
        rank = todo.popleft()
        while waiting[rank] is None or all(started[mine] > count < started[theirs] for mine, theirs, count in waiting[rank]):
            waiting[rank] = None
            if not turns[rank]:
                break
            waiting[rank] = []
            for mine, theirs in turns[rank].popleft():
                waiting[rank].append((mine, theirs, started[mine]))
                started[mine] += 1
                todo.append(mine[3])  # the peer may have waited for this
    return not any(waiting)


def _turns(rank, steps):
    """What a rank starts, half a message per peer and direction at a time: queue of lists of (lane, the peer's lane)."""
    turns = deque()
    for step in steps:
        lanes = defaultdict(int)
        for name, transfers in (("send", step.sends), ("receive", step.receives)):
            for peer, _ in transfers:
                lanes[name, peer] += 2
        for turn in range(max(lanes.values(), default=0)):
            turns.append([_lane_pair(rank, *lane) for lane, count in lanes.items() if turn < count])
    return turns


def _lane_pair(rank, name, peer):
    ends = (rank, peer) if name == "send" else (peer, rank)
    return (name, *ends, peer), ("receive" if name == "send" else "send", *ends, rank)


def cases(algorithm, sizes, every_root=9):
    """What to check of an algorithm: (size, root, blocks, nodes) for each of the sizes.

    Up to `every_root` ranks every root is taken, above it the first, a middle and the last. Pipelines get several
    segment counts, from one to more than there are ranks, above 16 ranks one. Where nodes matter they are of two and
    three ranks, filled in order and in turn, of very different sizes, and scattered.
    """
    rooted = collectives.find(algorithm.collective).rooted
    for size in sizes:
        roots = range(size) if size <= every_root else (0, size // 2, size - 1)
        segments = (1, 2, 5, 9) if size <= 16 else (7,)
        counts = segments if algorithm.blocks == "segments" else (algorithm.vector_blocks(size),)
        for root in roots if rooted else (0,):
            for blocks in counts:
                yield size, root, blocks, None
        for nodes in _placements(size) if algorithm.node_aware or algorithm.neighbours else ():
            for root in {0, size // 2, size - 1} if rooted else (0,):
                yield size, root, algorithm.vector_blocks(size, 3, nodes), nodes


def _placements(size):
    """Maps from rank to node, each once."""
    few = -(-size // 3)
    maps = [range(size), [rank // 3 for rank in range(size)], [rank % few for rank in range(size)],
            [rank.bit_length() for rank in range(size)], [rank * rank % 7 % 4 for rank in range(size)]]  # fmt: skip
    return list(dict.fromkeys(map(tuple, maps)))


def check_cases(algorithm, sizes, every_root=9):
    """Check an algorithm in all its `cases`; return how many they are and whether all keep operands in rank order.

    Raises ScheduleError that names the first case that is wrong.
    """
    checked, ordered = 0, True
    for size, root, blocks, nodes in cases(algorithm, sizes, every_root):
        try:
            cost = check(algorithm.collective, algorithm.generator, size, root, blocks, ordered=algorithm.ordered, nodes=nodes)
        except ScheduleError as error:
            placed = f", nodes {nodes}" if nodes else ""
            case = f"{algorithm.collective} {algorithm.name}, {size} ranks, root {root}, {blocks} blocks{placed}"
            raise ScheduleError(f"{case}: {error}") from error
        checked, ordered = checked + 1, ordered and cost.ordered
    return checked, ordered


def register(collective, name, generator, *, blocks=None, max_size=17):
    """Verify a generator at 1..max_size ranks (every root), then make it usable everywhere by its name.

    blocks: how many blocks its vector has, as a function of size (default: one per rank; as many segments as the
    caller wants where the generator takes `blocks`). To be called on all ranks alike, before the name is used. Raises
    ScheduleError with the first thing that is wrong, and ArgumentError where the name is taken. Operands may be
    reordered unless it proves ordered at every size.
    """
    meaning = collectives.find(collective)
    if name in algorithms.list_algorithms(collective):
        raise ArgumentError(f"{collective} already has an algorithm {name!r}: choose another name")
    takes_blocks = _must_fit(generator, meaning)
    if blocks is None and takes_blocks and not getattr(generator, "folds", False):
        blocks = "segments"
    algorithm = algorithms.Algorithm(collective, name, generator, blocks=blocks)
    _, ordered = check_cases(algorithm, range(1, max_size + 1), every_root=max_size)
    programs = (_programs(meaning, generator, size, root, blocks)
                for size, root, blocks, _ in cases(algorithm, range(2, max_size + 1), every_root=max_size))  # fmt: skip
    algorithms.add(algorithm._replace(ordered=ordered, cuttable=all(map(flows_in_pieces, programs))))


def _must_fit(generator, collective):
    """ArgumentError unless it can be called as this collective's generators are; whether it takes `blocks`."""
    wanted = ("rank", "size", "root") if collective.rooted else ("rank", "size")
    try:
        parameters = signature(generator)
        takes_blocks = "blocks" in parameters.parameters
        parameters.bind(*wanted, **({"blocks": 1} if takes_blocks else {}))
    except TypeError as error:
        raise ArgumentError(f"{collective.name} needs a generator({', '.join(wanted)}), got {generator!r}: {error}") from None
    return takes_blocks


def _programs(collective, generator, size, root, blocks):
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
