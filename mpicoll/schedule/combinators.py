"""Combinators: the rounds of one rank, and schedules of schedules (renamed, pipelined, folded)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, Protocol

from .blocks import power_of_two
from .operations import (
    INPUT,
    MESSAGES,
    OUTPUT,
    Copy,
    Generator,
    Operation,
    Part,
    Recv,
    Reduce,
    Round,
    Send,
    operations_of,
)

if TYPE_CHECKING:

    class Meaning(Protocol):
        """The part of `collectives.Collective`, in a higher room, that `folded` uses."""

        @property
        def reduces(self) -> bool: ...

        @property
        def blocks_of_ranks(self) -> bool: ...

        def precondition(self, rank: int, size: int, blocks: int) -> Any: ...

        def postcondition(self, rank: int, size: int, blocks: int) -> Any: ...


def rounds(
    generator: Generator, rank: int, size: int, root: int | None = None, blocks: int | None = None
) -> Iterator[tuple[Operation, ...]]:
    """Iterate over the rounds of one rank, with ranks and block numbers reduced to their range.

    Parameters
    ----------
    generator : callable
        `generator(rank, size[, root][, blocks])`, as of `algorithms`.
    rank, size : int
        The rank, and the number of ranks.
    root : int, optional
        The argument of generators of rooted collectives.
    blocks : int, optional
        Blocks of the vector, default `size`: the modulus of block numbers, and an argument of
        generators that take it.

    Yields
    ------
    tuple of operations
        One round.
    """
    blocks = blocks or size
    rooted = () if root is None else (root,)
    if _takes_blocks(generator):
        steps = generator(rank, size, *rooted, blocks=blocks)
    else:
        steps = generator(rank, size, *rooted)
    for step in steps:
        # without operations on no blocks, and without copies onto themselves (from `renamed`)
        yield tuple([
            _normal(op, size, blocks)
            for op in operations_of(step)
            if op[-1][2] and (op[0] != op[1] or type(op) is Reduce)
        ])  # fmt: skip


@cache
def _takes_blocks(generator: Generator) -> bool:
    return "blocks" in signature(generator).parameters


def _normal(operation: Any, size: int, blocks: int) -> Any:
    """The operation with its numbers in range; most already are, and building schedules is hot."""
    kind = type(operation)
    if kind in MESSAGES:
        peer, part = operation
        if 0 <= part[1] < blocks and 0 <= peer < size:
            return operation
        return kind(peer % size, Part(part[0], part[1] % blocks, part[2]))
    lower, higher, into = operation[0], operation[1], operation[-1]
    if 0 <= lower[1] < blocks and 0 <= higher[1] < blocks and 0 <= into[1] < blocks:
        return operation
    return kind(*[Part(place, first % blocks, count) for place, first, count in operation])


def renamed(
    steps: Iterable[Round],
    places: Mapping[str, str] | None = None,
    peer: Callable[[int], int] | None = None,
    block: Callable[[int, int], Iterable[tuple[int, int]]] | None = None,
) -> Iterator[tuple[Operation, ...]]:
    """The same rounds with other places, ranks and block numbers.

    This composes algorithms: the partial sums of a reduce-scatter become the output of an
    allreduce.

    Parameters
    ----------
    steps : iterable of rounds
        The rounds of a generator.
    places : mapping, optional
        The new names of places; other places keep their names.
    peer : callable, optional
        peer(rank) is the new number of a rank.
    block : callable, optional
        block(first, count) returns the new ranges of a range; each range makes an operation.
    """
    places = places or {}

    def expand(operation: Any) -> Iterator[Operation]:
        kind: Callable[..., Operation] = type(operation)
        message = kind in MESSAGES
        parts: tuple[Part, ...] = operation[1:] if message else operation
        for cyclic in block(*parts[-1][1:]) if block else (parts[-1][1:],):
            others = [Part(places.get(part[0], part[0]), *cyclic) for part in parts]
            if message:
                yield kind(peer(operation[0]) if peer else operation[0], *others)
            else:
                yield kind(*others)  # pyright: ignore[reportArgumentType]

    for step in steps:
        yield tuple([new for operation in operations_of(step) for new in expand(operation)])


def segmented(generator: Generator) -> Generator:
    """Pipeline a one-block algorithm: its block is cut into `blocks` segments, a round apart.

    Rounds of the inner generator are the steps of a common clock; a rank without work yields
    ``()``.
    """

    @wraps(generator)
    def pipeline(rank: int, size: int, *root: int, blocks: int) -> Iterator[Round]:
        steps = [operations_of(step) for step in generator(rank, size, *root)]
        busy = [number for number, step in reversed(list(enumerate(steps))) if step]
        for time in range(len(steps) + blocks - 1):
            segments = [(steps[number], time - number) for number in busy]
            yield tuple(
                operation
                for step, segment in segments
                if 0 <= segment < blocks
                for (operation,) in renamed(step, block=lambda _, n: ((segment, n),))
            )

    del pipeline.__wrapped__  # the signature is pipeline's own: it takes `blocks`
    return pipeline


def folded(
    collective: Meaning, fitting: Callable[[int], int] = power_of_two
) -> Callable[[Generator], Generator]:
    """Run an algorithm of certain sizes at any size: extra ranks send before and receive after it.

    fitting(size) is the largest such size up to `size`, at least half of it; mostly 2^k. With
    r = size - 2^k extra ranks, ranks 0 … 2r-1 form pairs. The even rank sends its input to the
    odd rank, which represents both and at the end sends the result of the even rank back. Where
    blocks belong to ranks (reduce_scatter, allgather), a pair counts as a rank with two blocks.
    """

    def decorate(generator: Generator) -> Generator:
        @wraps(generator)
        def fold(rank: int, size: int, blocks: int | None = None) -> Iterator[Round]:
            blocks = blocks or size
            core = fitting(size)
            pairs = size - core
            before: Callable[[int], Part] = lambda r: collective.precondition(r, size, blocks)
            after: Callable[[int], Part] = lambda r: collective.postcondition(r, size, blocks)
            paired = rank < 2 * pairs
            if paired and rank % 2 == 0:
                yield Send(rank + 1, before(rank))
                yield Recv(rank + 1, after(rank))
                return
            places = {}
            if paired:
                places[INPUT] = "folded"
                if after(rank).count != blocks:
                    places[OUTPUT] = "shared"
                yield _join(rank, before(rank), before(rank - 1), collective.reduces)

            def rank_of(number: int) -> int:
                number %= core
                return 2 * number + 1 if number < pairs else number + pairs

            def blocks_of(first: int, count: int) -> tuple[tuple[int, int], ...]:
                return _pairs_as_one(first, count, core, pairs)

            yield from renamed(
                generator(rank // 2 if paired else rank - pairs, core),
                places,
                peer=rank_of,
                block=blocks_of if collective.blocks_of_ranks else None,
            )
            if paired:
                result = places.get(OUTPUT, OUTPUT)
                own = Copy(after(rank)._replace(place=result), after(rank))
                yield own, Send(rank - 1, after(rank - 1)._replace(place=result))

        del fold.__wrapped__  # the signature is fold's own: it takes `blocks`
        # it takes `blocks` for the extra ranks, and is no pipeline
        fold.folds = True  # type: ignore[attr-defined]
        return fold

    return decorate


def _join(rank: int, own: Part, of_peer: Part, reduces: bool) -> Round:
    """The round in which the odd rank of a pair receives the input of the even rank."""
    received = of_peer._replace(place="folded")
    if reduces:
        return Recv(rank - 1, received), Reduce(received, own, received)
    return Recv(rank - 1, received), Copy(own, own._replace(place="folded"))


def _pairs_as_one(first: int, count: int, core: int, pairs: int) -> tuple[tuple[int, int], ...]:
    """The range of a cyclic range of the core's blocks, the first `pairs` of which are two each."""
    first %= core
    width = sum(2 if block % core < pairs else 1 for block in range(first, first + count))
    return (((2 * first if first < pairs else first + pairs), width),)
