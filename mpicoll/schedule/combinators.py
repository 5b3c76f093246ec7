"""Combinators: one rank's rounds in order, and schedules made of schedules (renamed, pipelined, folded)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, Protocol

from .blocks import power_of_two
from .operations import INPUT, MESSAGES, OUTPUT, Copy, Generator, Operation, Part, Recv, Reduce, Round, Send, operations_of

if TYPE_CHECKING:

    class Meaning(Protocol):
        """What `folded` asks of a `collectives.Collective`, which lies above this room."""

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
        Which rank of how many.
    root : int, optional
        Given to the generators of rooted collectives.
    blocks : int, optional
        How many the vector has, default `size`; given to generators whose signature asks for it, and what block
        numbers are cyclic in for all.

    Yields
    ------
    tuple of operations
        One round.
    """
    blocks = blocks or size
    rooted = () if root is None else (root,)
    steps = generator(rank, size, *rooted, blocks=blocks) if _takes_blocks(generator) else generator(rank, size, *rooted)
    for step in steps:
        # an operation on no blocks, or a copy onto itself (what `renamed` makes of it), is none
        yield tuple([
            _normal(op, size, blocks)
            for op in operations_of(step)
            if op[-1][2] and (op[0] != op[1] or type(op) is Reduce)
        ])  # fmt: skip


@cache
def _takes_blocks(generator: Generator) -> bool:
    return "blocks" in signature(generator).parameters


def _normal(operation: Any, size: int, blocks: int) -> Any:
    """The operation with its numbers in range; most already are, and building schedules must be quick."""
    kind = type(operation)
    if kind in MESSAGES:
        peer, part = operation
        if 0 <= part[1] < blocks and 0 <= peer < size:
            return operation
        return kind(peer % size, Part(part[0], part[1] % blocks, part[2]))
    if 0 <= operation[0][1] < blocks and 0 <= operation[1][1] < blocks and 0 <= operation[-1][1] < blocks:
        return operation
    return kind(*[Part(place, first % blocks, count) for place, first, count in operation])


def renamed(
    steps: Iterable[Round],
    places: Mapping[str, str] | None = None,
    peer: Callable[[int], int] | None = None,
    block: Callable[[int, int], Iterable[tuple[int, int]]] | None = None,
) -> Iterator[tuple[Operation, ...]]:
    """The same rounds with other places, ranks and block numbers.

    Composition works by it: the partial sums of a reduce-scatter become the output of an allreduce.

    Parameters
    ----------
    steps : iterable of rounds
        What a generator yields.
    places : mapping, optional
        The new names of places; others keep theirs.
    peer : callable, optional
        peer(rank) is the new number of a rank.
    block : callable, optional
        block(first, count) gives the ranges that a range becomes: an operation on several is as many operations.
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
    """Pipeline a one-block algorithm: its block is cut into `blocks` segments, each one round behind the one before.

    Rounds of the inner generator are the steps of a common clock; where a rank has nothing to do it yields ``()``.
    """

    @wraps(generator)
    def pipeline(rank: int, size: int, *root: int, blocks: int) -> Iterator[Round]:
        steps = [operations_of(step) for step in generator(rank, size, *root)]
        busy = [number for number, step in reversed(list(enumerate(steps))) if step]
        for time in range(len(steps) + blocks - 1):
            active = [(steps[number], time - number) for number in busy if 0 <= time - number < blocks]
            yield tuple(operation for step, segment in active
                        for (operation,) in renamed(step, block=lambda _, n: ((segment, n),)))

    del pipeline.__wrapped__  # the signature that counts is pipeline's own: it takes `blocks`
    return pipeline


def folded(collective: Meaning) -> Callable[[Generator], Generator]:
    """Run a power-of-two algorithm at any size: the extra ranks fold in before and are served after.

    With r = size - 2^k extras, ranks 0 … 2r-1 form pairs. The even one sends its input to the odd one, which stands in
    for both and at the end sends back what the even one is owed. Where blocks belong to ranks (reduce_scatter,
    allgather), a pair counts as one rank that owns two blocks.
    """

    def decorate(generator: Generator) -> Generator:
        @wraps(generator)
        def fold(rank: int, size: int, blocks: int | None = None) -> Iterator[Round]:
            blocks = blocks or size
            core = power_of_two(size)
            pairs = size - core
            held: Callable[[int], Part] = lambda r: collective.precondition(r, size, blocks)
            wanted: Callable[[int], Part] = lambda r: collective.postcondition(r, size, blocks)
            if rank < 2 * pairs and rank % 2 == 0:
                yield Send(rank + 1, held(rank))
                yield Recv(rank + 1, wanted(rank))
                return
            places, paired = {}, rank < 2 * pairs
            if paired:
                places = {INPUT: "folded"} if wanted(rank).count == blocks else {INPUT: "folded", OUTPUT: "shared"}
                yield _join(rank, held(rank), held(rank - 1), collective.reduces)
            yield from renamed(
                generator(rank // 2 if paired else rank - pairs, core),
                places,
                peer=lambda n: 2 * (n % core) + 1 if n % core < pairs else n % core + pairs,
                block=(lambda first, count: _pairs_as_one(first, count, core, pairs)) if collective.blocks_of_ranks else None,
            )
            if paired:
                result = places.get(OUTPUT, OUTPUT)
                yield Copy(wanted(rank)._replace(place=result), wanted(rank)), \
                    Send(rank - 1, wanted(rank - 1)._replace(place=result))

        del fold.__wrapped__  # the signature that counts is fold's own: it takes `blocks`
        fold.folds = True  # type: ignore[attr-defined]  # it takes `blocks` to place what the extras hold, not to be pipelined
        return fold

    return decorate


def _join(rank: int, mine: Part, theirs: Part, reduces: bool) -> Round:
    """The round in which the odd rank of a pair takes over what the even one holds."""
    received = theirs._replace(place="folded")
    joined = Reduce(received, mine, received) if reduces else Copy(mine, mine._replace(place="folded"))
    return Recv(rank - 1, received), joined


def _pairs_as_one(first: int, count: int, core: int, pairs: int) -> tuple[tuple[int, int], ...]:
    """The real range of a cyclic range of the core's blocks, of which the first `pairs` stand for two each."""
    first %= core
    width = sum(2 if block % core < pairs else 1 for block in range(first, first + count))
    return (((2 * first if first < pairs else first + pairs), width),)
