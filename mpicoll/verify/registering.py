"""Which cases prove an algorithm, and how a user's own generator becomes usable everywhere by its name."""

from inspect import signature

from .. import algorithms, collectives
from ..errors import ArgumentError, ScheduleError
from .flow import flows_in_pieces
from .prover import check, programs_of


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
    programs = (programs_of(meaning, generator, size, root, blocks)
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
