"""The proof of a neighbourhood collective on a given graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ..algorithms import neighborhood, registered
from ..errors import ArgumentError, ScheduleError
from ..graphs import NEIGHBORHOODS, Block, Graph, GraphGenerator, Neighborhood
from ..schedule import INPUT, OUTPUT, Part
from .flow import flows_in_pieces, flows_read_late
from .prover import Cost, cost_of_run
from .symbolic import Execution, Expressions, Rank, SortedRound, sort

if TYPE_CHECKING:
    Carried = Callable[[int, Neighborhood, Sequence[int]], Sequence[Block]]
    GraphObserver = Callable[
        [Rank, SortedRound | None, Callable[[int | None], Block | None]], None
    ]


def check_graph(
    meaning: Neighborhood,
    generator: GraphGenerator,
    nodes: Sequence[int] | None = None,
    carried: Carried = lambda rank, meaning, nodes: (),
    observer: GraphObserver | None = None,
) -> Cost:
    """Prove that a generator is a neighbourhood collective on the graph of `meaning`.

    Every block ends at each of its destinations, in its place; places of nobody are left alone; no
    rank waits for ever, also with messages in pieces and read late; no input is written.

    Parameters
    ----------
    meaning : Neighborhood
        Of a graph: ``graphs.ALLTOALL.on(graph)``.
    generator : callable
        generator(rank, meaning, nodes) yields the rounds of a rank.
    nodes : sequence of int, optional
        The node of each rank; default: each has its own.
    carried : callable, optional
        carried(rank, meaning, nodes): the blocks that scratch has room for, by their numbers; it is
        proved that no other ones come there, so that their sizes fit. Default: none.
    observer : callable, optional
        observer(rank, step, block_of) is called at the start, where step is None, and after each
        round of a rank, see `symbolic.Execution`; block_of(value) is the `Block` of a value in the
        memory of the rank, or None.

    Returns
    -------
    Cost
        Rounds, messages and bytes, one byte per block.

    Raises
    ------
    ScheduleError
        What is wrong, with rank and round.
    """
    graph = meaning.graph
    nodes = tuple(range(graph.size)) if nodes is None else tuple(nodes)
    if len(nodes) != graph.size:
        raise ArgumentError(f"expected the nodes of {graph.size} ranks, got {len(nodes)}")
    programs = [
        [sort(step) for step in generator(rank, meaning, nodes)] for rank in range(graph.size)
    ]
    room = [list(carried(rank, meaning, nodes)) for rank in range(graph.size)]
    blocks = max([1, graph.places, *map(len, room)])
    run = Execution(
        meaning,  # type: ignore[arg-type]  # it has what a Collective has
        0, blocks, programs, Expressions(0), observer=_Room(room, blocks, observer),
    )  # fmt: skip
    for rank in run.ranks:
        for place in _unused(graph, rank.number):
            rank.store(Part(OUTPUT, place, 1), [_untouched(rank.number, place, blocks)])
    run.play()
    for rank in run.ranks:
        _prove_result(rank, meaning, blocks)
    if not flows_in_pieces(programs):
        raise ScheduleError("transfers of one round wait for each other when messages are cut")
    if not flows_read_late(programs, cuttable=True):
        raise ScheduleError("transfers wait for each other when messages are read late")
    return cost_of_run(run, range(blocks + 1), 1)


def prove_graph(
    graph: Graph,
    nodes: Sequence[int] | None = None,
    words: Sequence[str] = (),
    observer: GraphObserver | None = None,
) -> Iterator[tuple[str, str, Cost]]:
    """Prove every algorithm of both collectives on a graph.

    Parameters
    ----------
    graph : Graph
        Who sends blocks to whom.
    nodes : sequence of int, optional
        The node of each rank.
    words : sequence of str, optional
        Names of collectives or algorithms; default: all.
    observer : callable, optional
        As of `check_graph`.

    Yields
    ------
    (str, str, Cost)
        The collective, the algorithm, and its cost.

    Raises
    ------
    ScheduleError
        The first one that is wrong, and the reason.
    """
    for name, meaning in NEIGHBORHOODS.items():
        on_graph = meaning.on(graph)
        for entry in registered(name):
            if not _is_meant(words, NEIGHBORHOODS, name, entry.name):
                continue
            room = partial(neighborhood.carried_by, entry.name)
            try:
                cost = check_graph(on_graph, entry.generator, nodes, room, observer)
            except ScheduleError as error:
                raise ScheduleError(f"{name} {entry.name}: {error}") from error
            yield name, entry.name, cost


def _is_meant(
    words: Sequence[str], collectives: Iterable[str], collective: str, algorithm: str
) -> bool:
    named = [word for word in words if word in collectives]
    others = [word for word in words if word not in collectives]
    return (not named or collective in named) and (not others or algorithm in others)


class _Room:
    """An observer: no scratch block gets another block than the one that it has room for.

    Then it calls the caller's.
    """

    def __init__(
        self, room: Sequence[Sequence[Block]], blocks: int, observer: GraphObserver | None
    ) -> None:
        self._blocks = blocks
        self._observer = observer
        self._expected = [
            [block.source * blocks + block.place for block in of_rank] for of_rank in room
        ]

    def __call__(self, rank: Rank, step: SortedRound | None, expressions: Expressions) -> None:
        expected = self._expected[rank.number]
        for name, values in rank.memory.items():
            if name in (INPUT, OUTPUT):
                continue
            for number, value in enumerate(values):
                if value is None:
                    continue
                if number >= len(expected) or value != expected[number]:
                    rank.fail(f"block {number} of {name!r} gets another block than it has room for")
        if self._observer:
            self._observer(rank, step, self._block_of)

    def _block_of(self, value: int | None) -> Block | None:
        # a place that nothing comes to has a number below 0
        return None if value is None or value < 0 else Block(*divmod(value, self._blocks))


def _unused(graph: Graph, rank: int) -> Iterator[int]:
    """The places of a rank that nothing comes to."""
    for place, block in enumerate(graph.sources[rank]):
        if block is None:
            yield place


def _untouched(rank: int, place: int, blocks: int) -> int:
    """What lies in an output place before; no block has this number."""
    return -(rank * blocks + place) - 1


def _prove_result(rank: Rank, meaning: Neighborhood, blocks: int) -> None:
    for place, block in enumerate(meaning.graph.sources[rank.number]):
        [actual] = rank.read(Part(OUTPUT, place, 1))
        if block is None:
            if actual != _untouched(rank.number, place, blocks):
                rank.fail(f"place {place} is written, but it has no source")
            continue
        expected = Block(block.source, 0) if meaning.gathers else block
        if actual != expected.source * blocks + expected.place:
            got = "what was there before" if actual < 0 else _named(Block(*divmod(actual, blocks)))
            rank.fail(f"place {place} has {got} at the end, expected {_named(expected)}")


def _named(block: Block) -> str:
    return f"block {block.place} of rank {block.source}"
