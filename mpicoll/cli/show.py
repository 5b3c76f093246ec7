"""draw the rounds of an algorithm: who sends which blocks to whom, and what ranks then hold."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby
from textwrap import wrap
from typing import NamedTuple

from .. import algorithms, collectives
from ..codes import Codes, codes_of
from ..errors import ArgumentError, ScheduleError
from ..schedule import INPUT, OUTPUT, Copy, Part, Reduce, is_coded, joined
from ..support.units import many
from ..graphs import NEIGHBORHOODS, Block, Graph, Neighborhood
from ..verify import Cost, Expressions, Rank, SortedRound, check, prove_graph, unproved
from . import outfiles, userfile
from .graphfile import has_graph, read_graph
from .list import of_vector
from .screen import LINES, folded, width
from .options import add_shared, must_be_compressible
from .plots import draw_schedule
from .values import whole

#: rounds that the short form shows before it leaves some out
_FIRST = 12
_LAST = 4


def add_arguments(parser: ArgumentParser) -> None:
    """Which algorithm, and how many ranks."""
    add = parser.add_argument
    add("collective", help="allreduce, bcast, …")
    add("algorithm", help="a word of `mpicoll list`")
    add("--size", type=whole, metavar="N", help="number of ranks (default 4)")
    add("--root", type=whole, metavar="R", help="root rank of a rooted collective (default 0)")
    add(
        "--blocks",
        type=whole,
        metavar="N",
        help="blocks of the vector; segments of a pipeline (default 4)",
    )
    add_shared(parser, "--compression")
    add("--all", action="store_true", help="show every block after every round")
    add("--plot", metavar="FILE.svg", help="also draw it: ranks across, rounds down")
    add_shared(parser, "--graph", "--file")


def run(arguments: Namespace) -> int:
    """Draw what the verifier sees; exit status 1 where it finds that something is wrong."""
    outfiles.check(arguments)
    if arguments.file:
        with unproved():
            userfile.load(arguments.file)
    on_graph = has_graph(arguments, "size", "root", "blocks", "compression")
    algorithm = _algorithm(arguments)
    codes = _codes(arguments, algorithm)
    if on_graph:
        graph, nodes = read_graph(arguments.graph)
        meaning = NEIGHBORHOODS[arguments.collective]
        played = _play_on_graph(meaning, algorithm.name, graph, nodes)
    else:
        size = 4 if arguments.size is None else arguments.size
        if size < 2:
            raise ArgumentError(f"--size: expected 2 or more ranks, got {size}")
        played = _play(algorithm, size, arguments.root or 0, arguments.blocks, codes)
    print(folded(played.title))
    if codes:
        print(folded(_quantised(played, codes)))
    lines = "\n".join(_whole(played)).split("\n")
    fits = len(lines) < LINES and max(map(len, lines)) <= width()
    print(*(lines if arguments.all or fits else _short(played)), sep="\n")
    if arguments.plot:
        draw_schedule(arguments.plot, played)
    if played.wrong:
        print("", folded(f"WRONG: {played.wrong}", rest="  "), sep="\n")
    return 1 if played.wrong else 0


def _algorithm(arguments: Namespace) -> algorithms.Algorithm:
    """The algorithm that is asked for."""
    meaning = algorithms.meaning_of(arguments.collective)
    if arguments.algorithm in algorithms.LIBRARIES:
        what = algorithms.LIBRARIES[arguments.algorithm]
        raise ArgumentError(f"{arguments.algorithm} is {what}: it has no schedule to show")
    return algorithms.find(meaning.name, arguments.algorithm)


def _codes(arguments: Namespace, algorithm: algorithms.Algorithm) -> Codes | None:
    """What messages have in the place of elements, checked."""
    if not arguments.compression:
        return None
    must_be_compressible(arguments.compression, algorithm.collective, [algorithm.name])
    return codes_of(arguments.compression)


class Moment(NamedTuple):
    """One rank after a round: the clock, what arrived from whom, the fullest value of each block.

    held: whose contributions are in that, as bits; cells: the same as `_symbol` writes it.
    coded, decoded: the blocks that it then wrote the codes of, or the elements.
    """

    clock: int
    rank: int
    arrived: Sequence[tuple[int, str]]
    held: list[int]
    cells: list[str]
    coded: Sequence[int] = ()
    decoded: Sequence[int] = ()


class Played(NamedTuple):
    """The verifier's view of a schedule: each rank after each round, the cost, or the error.

    moments: in the order of the run.
    wanted: what each rank must have at the end, as in `Moment.cells`, by the number of the block.
    """

    collective: collectives.Collective | Neighborhood
    size: int
    blocks: int
    moments: list[Moment]
    cost: Cost | None
    wrong: str
    title: str
    legend: str
    wanted: list[dict[int, str]]

    @property
    def frames(self) -> list[list[Moment]]:
        """The moments of each clock, which is the verifier's."""
        in_order = sorted(self.moments, key=_clock)
        return [list(frame) for _, frame in groupby(in_order, _clock)]


def _clock(moment: Moment) -> int:
    return moment.clock


class _Recording:
    """An observer of the verifier: writes down each rank after each round."""

    def __init__(self, collective: collectives.Collective, size: int, blocks: int) -> None:
        self._collective = collective
        self._size = size
        self._blocks = blocks
        self.moments: list[Moment] = []

    def __call__(self, rank: Rank, step: SortedRound | None, expressions: Expressions) -> None:
        held = self._held(rank, expressions)
        receives = step.receives if step else ()
        coded, decoded = self._recoded(step.local if step else ())
        moment = Moment(
            rank.clock,
            rank.number,
            [(peer, self._message(rank, part, expressions)) for peer, part in receives],
            held,
            [_symbol(self._collective, ranks, self._size) for ranks in held],
            coded,
            decoded,
        )
        self.moments.append(moment)

    def _held(self, rank: Rank, expressions: Expressions) -> list[int]:
        """Whose contributions are in the fullest value of each block, as bits."""
        # in an alltoall what came takes the place of what was sent
        names = (OUTPUT, INPUT) if self._collective.personal else tuple(rank.memory)
        places = [rank.memory[name] for name in names]
        values = ([place[block] for place in places] for block in range(self._blocks))
        ranks = ([expressions.ranks[one] for one in each if one is not None] for each in values)
        return [max(each, key=int.bit_count, default=0) for each in ranks]

    def _message(self, rank: Rank, part: Part, expressions: Expressions) -> str:
        """What came: blocks, or, in an alltoall, whose they are."""
        if not self._collective.personal:
            return _blocks(part, self._blocks) + (" in codes" if is_coded(part) else "")
        ranks = [expressions.ranks[one] for one in rank.read(part)]
        return " ".join(_symbol(self._collective, each, self._size) for each in ranks)

    def _recoded(self, actions: Sequence[Reduce | Copy]) -> tuple[list[int], list[int]]:
        """The blocks that were quantised, and those that were decoded."""
        copies = [action for action in actions if type(action) is Copy]
        coded = [copy.into for copy in copies if is_coded(copy.into) > is_coded(copy.source)]
        decoded = [copy.into for copy in copies if is_coded(copy.into) < is_coded(copy.source)]
        return self._numbers(coded), self._numbers(decoded)

    def _numbers(self, parts: list[Part]) -> list[int]:
        numbers = (part.first + at for part in parts for at in range(part.count))
        return sorted({number % self._blocks for number in numbers})


def _number_of_blocks(algorithm: algorithms.Algorithm, size: int, asked: int | None) -> int:
    """The blocks of the vector; ArgumentError where a proved algorithm has another number."""
    if asked is None:
        return algorithm.vector_blocks(size, 4)
    if algorithm.blocks == "segments" or algorithm.source:
        fits = asked >= 1
        expected = "1 or more"
    else:
        fitting = algorithm.vector_blocks(size)
        fits = asked == fitting
        expected = f"{fitting}, as {algorithm.name} has at {size} ranks"
    if not fits:
        raise ArgumentError(f"--blocks: expected {expected}, got {asked}")
    return asked


def _play(
    algorithm: algorithms.Algorithm,
    size: int,
    root: int,
    blocks: int | None,
    codes: Codes | None,
) -> Played:
    """Let the verifier run it; rounds stand where its logical clock puts them."""
    collective = collectives.find(algorithm.collective)
    blocks = _number_of_blocks(algorithm, size, blocks)
    recording = _Recording(collective, size, blocks)
    cost = None
    wrong = ""
    try:
        cost = check(
            algorithm.collective,
            algorithm.generator,
            size,
            root,
            blocks,
            observer=recording,
            compressed=codes is not None,
        )
    except ScheduleError as error:
        wrong = str(error)
    name = f"{algorithm.name} in {codes.name}" if codes else algorithm.name
    where = f" from root {root}" if collective.rooted else ""
    result = "wrong, up to where it fails"
    if cost:
        sent = of_vector(cost.bytes_sent, blocks)
        result = f"{many(cost.rounds, 'round')}, a rank sends at most {sent}"
    return Played(
        collective,
        size,
        blocks,
        recording.moments,
        cost,
        wrong,
        f"{collective.name} {name}, {size} ranks{where}: {result}.",
        _legend(collective, size, blocks),
        [_wanted(collective, rank, size, blocks, root) for rank in range(size)],
    )


def _play_on_graph(
    meaning: Neighborhood, algorithm: str, graph: Graph, nodes: Sequence[int] | None
) -> Played:
    """The same of a collective of neighbours; blocks have the numbers of the receiver's places."""
    blocks = max([1, *map(len, graph.sources)])
    names = [[_name(meaning, block) for block in sources] for sources in graph.sources]
    wide = max(map(len, chain(["."], *names)))
    moments: list[Moment] = []

    def observer(
        rank: Rank, step: SortedRound | None, block_of: Callable[[int | None], Block | None]
    ) -> None:
        own = names[rank.number]
        held = [int(block_of(value) is not None) for value in rank.memory[OUTPUT][:blocks]]
        cells = [name if has or name == "-" else "." for name, has in zip(own, held)]
        cells += [""] * (blocks - len(own))
        arrived = [
            (peer, " ".join(_name(meaning, block_of(value)) for value in rank.read(part)))
            for peer, part in (step.receives if step else ())
        ]
        moments.append(
            Moment(rank.clock, rank.number, arrived, held, [f"{cell:<{wide}}" for cell in cells])
        )

    [(_, _, cost)] = prove_graph(graph, nodes, [meaning.name, algorithm], observer)
    where = many(len(set(nodes or range(graph.size))), "node")
    return Played(
        meaning,
        graph.size,
        blocks,
        moments,
        cost,
        "",
        f"{meaning.name} {algorithm}, {many(graph.size, 'rank')} on {where}: "
        f"{many(cost.rounds, 'round')}, a rank sends at most {many(cost.messages, 'message')}.",
        "Below each rank: the blocks that it receives, in the order of its places, each by "
        f"{'its source' if meaning.gathers else 'source:place'}; a dot before it is there, "
        "- where nobody sends.",
        [
            {place: f"{name:<{wide}}" for place, name in enumerate(own) if name != "-"}
            for own in names
        ],
    )


def _name(meaning: Neighborhood, block: Block | None) -> str:
    """A block by the rank that sends it, and its place there."""
    if block is None:
        return "-"
    return str(block.source) if meaning.gathers else f"{block.source}:{block.place}"


def _quantised(played: Played, codes: Codes) -> str:
    """What is quantised, how often, and how many bytes that saves."""
    often = played.cost.quantisations if played.cost else 0
    what = "the data" if not played.collective.reduces else "contributions"
    if often > 1:
        what += ", and sums"
    verb = "quantises" if codes.largest else "rounds"
    error = f"; relative error (RMS) of Gaussian data {codes.expected_error(often):.2g}"
    times = ("never", "once", "twice")[min(often, 2)]
    return (
        f"{codes.name} {verb} {what}: each value {times} at most. Messages in codes have"
        f" {codes.nbytes} bytes for {many(codes.group, 'float32 element')}{error}."
    )


def _whole(played: Played) -> Iterator[str]:
    """The lines of the picture: what every rank has of every block."""
    cells = [[""] * played.blocks] * played.size
    yield folded(played.legend)
    for frame in played.frames:
        for moment in frame:
            cells[moment.rank] = moment.cells
        yield ""
        yield from _messages(frame[0].clock, frame)
        yield from _coding("coded", [(moment.rank, moment.coded) for moment in frame])
        yield from _coding("decoded", [(moment.rank, moment.decoded) for moment in frame])
        yield from _table(cells, heading=frame[0].clock == 0)


def _short(played: Played) -> Iterator[str]:
    """A line per round: each rank's senders, and how many of its result's blocks are complete."""
    yield "Below each rank: whose message came > how many blocks are final (--all: each)."
    done = [0] * played.size
    rows = []
    for frame in played.frames:
        came: list[list[int]] = [[] for _ in range(played.size)]
        for moment in frame:
            came[moment.rank] += [peer for peer, _ in moment.arrived]
            wanted = played.wanted[moment.rank]
            done[moment.rank] = sum(moment.cells[at] == symbol for at, symbol in wanted.items())
        cells = [
            (f"{peers[0]}{'+' if len(peers) > 1 else ''}>" if peers else "") + str(has)
            for peers, has in zip(came, done)
        ]
        rows.append((f"round {frame[0].clock}" if frame[0].clock else "start", cells))
    fits = max(len(cell) for _, cells in rows for cell in cells) + 2
    shown = min(played.size, (width() - 12) // fits)
    rows.insert(0, ("rank", [*map(str, range(played.size))]))
    left_out = len(rows) - _FIRST - _LAST
    for number, (label, cells) in enumerate(rows):
        if left_out <= 2 or not _FIRST <= number < len(rows) - _LAST:
            yield (
                f"{label:<10}"
                + "".join(f"{cell:>{fits}}" for cell in cells[:shown])
                + (" …" if shown < played.size else "")
            )
        elif number == _FIRST:
            yield f"… {many(left_out, 'round')} more"


def _wanted(
    collective: collectives.Collective, rank: int, size: int, blocks: int, root: int
) -> dict[int, str]:
    """What a rank must have at the end, as `_symbol` writes it, by the number of the block."""
    part = collective.postcondition(rank, size, blocks, root)
    numbers = range(part.first, part.first + part.count) if part else ()
    whose = {block: collective.contributors(rank, block, size, blocks, root) for block in numbers}
    return {
        block: _symbol(collective, sum(1 << one for one in ranks), size)
        for block, ranks in whose.items()
    }


def _symbol(collective: collectives.Collective, ranks: int, size: int) -> str:
    """A value as text of fixed width.

    Of a sum: the ranks in it, each at its own place, or how many; otherwise: whose data it is.
    """
    if collective.personal:
        rank, block = divmod(ranks.bit_length() - 1, size)
        return (
            f"{rank}{block}" if size <= 10 else f"{f'{rank}>{block}':>{2 * len(str(size - 1)) + 1}}"
        )
    if not collective.reduces:
        return f"{ranks.bit_length() - 1 if ranks else '.':>{len(str(size - 1))}}"
    if size > 10:
        return f"{ranks.bit_count():>{len(str(size))}}/{size}"
    return "".join(str(rank) if ranks >> rank & 1 else "." for rank in range(size))


def _legend(collective: collectives.Collective, size: int, blocks: int) -> str:
    content = "how many ranks are in the sum it has" if size > 10 else "the ranks in the sum it has"
    content = content if collective.reduces else "whose data it has, or a dot,"
    content = "whose data it has, and for whom," if collective.personal else content
    return (
        f"m: the vector{f', in {blocks} blocks' if blocks > 1 else ''}. Below each rank: {content}"
        " of each block."
    )


def _messages(clock: int, frame: Sequence[Moment]) -> list[str]:
    """The line, or lines, of what arrives at this clock."""
    arrivals = sorted(
        ((peer, moment.rank, what) for moment in frame for peer, what in moment.arrived),
        key=lambda one: one[:2],
    )
    texts = (f"{peer} -> {rank}: {what}" for peer, rank, what in arrivals)
    return _wrapped(f"round\xa0{clock}" if clock else "start", texts)


def _coding(verb: str, blocks_of: Sequence[tuple[int, Sequence[int]]]) -> list[str]:
    """The line, or lines, of the blocks that ranks code or decode at this clock."""
    texts = []
    for rank, numbers in sorted(blocks_of):
        if numbers:
            ranges = joined((number, 1) for number in numbers)
            names = ",".join(_range(first, first + count) for first, count in ranges)
            texts.append(f"by {rank}: block{'s' if len(numbers) > 1 else ''} {names}")
    return _wrapped(f"{verb:<7}", texts) if texts else []


def _wrapped(heading: str, texts: Iterable[str]) -> list[str]:
    """The lines of a heading and texts."""
    # no-break spaces keep a text together when the line is wrapped
    line = "   ".join([heading, *(text.replace(" ", "\xa0") for text in texts)])
    return [text.replace("\xa0", " ") for text in wrap(line, width(), subsequent_indent=" " * 10)]


def _range(low: int, high: int) -> str:
    return str(low) if high == low + 1 else f"{low}-{high - 1}"


def _blocks(part: Part, blocks: int) -> str:
    """The numbers of a cyclic range: `block 3`, `blocks 2-3`, `blocks 3,0-1`."""
    last = part.first + part.count
    ranges = [(part.first, min(last, blocks)), (0, last - blocks)]
    names = [_range(low, high) for low, high in ranges if high > low]
    return f"block{'s' if part.count > 1 else ''} {','.join(names)}"


def _table(cells: Sequence[list[str]], heading: bool) -> list[str]:
    """The ranks side by side, each with its blocks in one line if that fits, else in a column."""
    names = [f"rank {rank}" for rank in range(len(cells))]
    joined = [" ".join(column) for column in cells]
    wide = max(len(names[-1]), len(joined[0]))
    lines: list[tuple[str, Sequence[object]]] = [("", joined)]
    if heading:
        lines.insert(0, ("", names))
    if len(cells) * (wide + 2) > width():
        wide = len(cells[0][0])
        lines = [
            ("rank", range(len(cells))),
            *((f"block {block}", line) for block, line in enumerate(zip(*cells))),
        ]
    left = len(lines[-1][0])
    return [
        "  ".join([f"{label:<{left}}", *(f"{cell:<{wide}}" for cell in line)]).rstrip()
        for label, line in lines
    ]
