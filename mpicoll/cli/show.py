"""draw the rounds of an algorithm: who sends which blocks to whom, and what every rank then holds."""

from argparse import ArgumentParser, Namespace
from collections import defaultdict
from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Any, NamedTuple

from .. import algorithms, collectives
from ..errors import ArgumentError
from ..schedule import INPUT, OUTPUT, Part
from ..verify import check
from . import userfile
from .list import of_vector
from .values import whole

WIDTH = 96


def add_arguments(parser: ArgumentParser) -> None:
    """Which algorithm, and how many ranks."""
    parser.add_argument("collective", help="allreduce, bcast, …")
    parser.add_argument("algorithm", help="its word, as `mpicoll list` shows it")
    parser.add_argument("--size", type=whole, default=4, metavar="N", help="number of ranks (default 4)")
    parser.add_argument("--root", type=whole, default=0, metavar="R", help="of a rooted collective (default 0)")
    parser.add_argument("--blocks", type=whole, metavar="N", help="blocks of the vector; a pipeline's segments (default 4)")
    userfile.add_argument(parser)


def run(arguments: Namespace) -> None:
    """Draw what the verifier sees."""
    if arguments.file:
        userfile.load(arguments.file)
    collective = collectives.find(arguments.collective)
    if arguments.algorithm in algorithms.LIBRARIES:
        what = algorithms.LIBRARIES[arguments.algorithm]
        raise ArgumentError(f"{arguments.algorithm} is {what}: it has no schedule to show")
    algorithm = algorithms.find(arguments.collective, arguments.algorithm)
    if arguments.size < 2:
        raise ArgumentError(f"--size: expected 2 or more ranks, got {arguments.size}")
    print(*_drawing(collective, algorithm, arguments.size, arguments.root, arguments.blocks), sep="\n")


class _Moment(NamedTuple):
    """One rank when it has finished a round: the clock, what arrived from whom, and the fullest value of each block it has."""

    clock: int
    rank: int
    arrived: Sequence[tuple[int, str]]
    cells: list[str]


def _drawing(collective: collectives.Collective, algorithm: algorithms.Algorithm, size: int, root: int,
             blocks: int | None) -> Iterator[str]:  # fmt: skip
    """The lines of the whole picture; rounds stand where the verifier's logical clock puts them."""
    blocks = blocks or algorithm.vector_blocks(size, 4)
    frames, cells = defaultdict[int, list[_Moment]](list), [[""]] * size

    def observer(rank: Any, step: Any, expressions: Any) -> None:
        # in an alltoall what came takes the place of what was sent
        places = [rank.memory[place] for place in ((OUTPUT, INPUT) if collective.personal else tuple(rank.memory))]
        held = [max((expressions.ranks[place[block]] for place in places if place[block] is not None),
                    key=int.bit_count, default=0) for block in range(blocks)]
        symbols = [_symbol(collective, ranks, size) for ranks in held]
        arrived = [(peer, _blocks(part, blocks) if not collective.personal else
                    " ".join(_symbol(collective, expressions.ranks[one], size) for one in rank.read(part)))
                   for peer, part in (step.receives if step else ())]
        frames[rank.clock].append(_Moment(rank.clock, rank.number, arrived, symbols))

    cost = check(algorithm.collective, algorithm.generator, size, root, blocks, observer=observer)
    where = f" from root {root}" if collective.rooted else ""
    sent = of_vector(cost.bytes_sent, blocks)
    yield f"{collective.name} {algorithm.name}, {size} ranks{where}: {cost.rounds} rounds, a rank sends at most {sent}."
    yield _legend(collective, size, blocks)
    for clock, frame in sorted(frames.items()):
        for moment in frame:
            cells[moment.rank] = moment.cells
        yield ""
        yield from _messages(clock, frame)
        yield from _table(cells, heading=clock == 0)


def _symbol(collective: collectives.Collective, ranks: int, size: int) -> str:
    """A value as text of fixed width: the ranks in a sum, each at its own place, or how many; or whose data it is."""
    if collective.personal:
        rank, block = divmod(ranks.bit_length() - 1, size)
        return f"{rank}{block}" if size <= 10 else f"{f'{rank}>{block}':>{2 * len(str(size - 1)) + 1}}"
    if not collective.reduces:
        return f"{ranks.bit_length() - 1 if ranks else '.':>{len(str(size - 1))}}"
    if size > 10:
        return f"{ranks.bit_count():>{len(str(size))}}/{size}"
    return "".join(str(rank) if ranks >> rank & 1 else "." for rank in range(size))


def _legend(collective: collectives.Collective, size: int, blocks: int) -> str:
    content = "how many ranks are in the sum it has" if size > 10 else "the ranks in the sum it has"
    content = content if collective.reduces else "whose data it has, or a dot,"
    content = "whose data it has, and for whom," if collective.personal else content
    return f"m: the vector{f', in {blocks} blocks' if blocks > 1 else ''}. Below each rank: {content} of each block."


def _messages(clock: int, frame: Sequence[_Moment]) -> list[str]:
    """The line, or lines, of what arrives at this clock."""
    arrivals = sorted(((peer, moment.rank, what) for moment in frame for peer, what in moment.arrived), key=lambda one: one[:2])
    # no-break spaces keep a message together when the line is wrapped
    texts = [f"{peer} -> {rank}: {what}".replace(" ", "\xa0") for peer, rank, what in arrivals]
    line = "   ".join([f"round\xa0{clock}" if clock else "start", *texts])
    return [text.replace("\xa0", " ") for text in wrap(line, WIDTH, subsequent_indent=" " * 10)]


def _blocks(part: Part, blocks: int) -> str:
    """The numbers of a cyclic range: `block 3`, `blocks 2-3`, `blocks 3,0-1`."""
    last = part.first + part.count
    ranges = [(part.first, min(last, blocks)), (0, last - blocks)]
    names = [str(low) if high == low + 1 else f"{low}-{high - 1}" for low, high in ranges if high > low]
    return f"block{'s' if part.count > 1 else ''} {','.join(names)}"


def _table(cells: Sequence[list[str]], heading: bool) -> list[str]:
    """The ranks side by side: their blocks in one line where that is narrow enough, else one below the other."""
    names = [f"rank {rank}" for rank in range(len(cells))]
    joined = [" ".join(column) for column in cells]
    width = max(len(names[-1]), len(joined[0]))
    lines: list[tuple[str, Sequence[object]]] = [("", joined)]
    if heading:
        lines.insert(0, ("", names))
    if len(cells) * (width + 2) > WIDTH:
        width = len(cells[0][0])
        lines = [("rank", range(len(cells))), *((f"block {block}", line) for block, line in enumerate(zip(*cells)))]
    left = len(lines[-1][0])
    return ["  ".join([f"{label:<{left}}", *(f"{cell:<{width}}" for cell in line)]).rstrip() for label, line in lines]
