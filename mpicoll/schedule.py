"""The vocabulary of schedules: what one rank does, round by round, with numbered blocks of a vector.

A collective algorithm is a generator ``algorithm(rank, size[, root])`` that yields *rounds*; a round is one operation or
a tuple of them. The vector is cut into blocks; a `Part` names a cyclic range of blocks in one place: the caller's
`Input` (never written), the caller's `Output`, or a named `Scratch` vector. A block keeps its number wherever it goes.

In a round the receives are posted first, the sends read what the parts held before the round, and once they are
through, `Reduce` and `Copy` run in the order written. Ranks and block numbers are cyclic: ``rank + 1`` needs no modulo.

    def my_ring(rank, size):                      # reduce-scatter phase of a ring
        outgoing = Input(rank - 1)
        for t in range(size - 1):
            block = rank - t - 2
            yield (Send(rank + 1, outgoing), Recv(rank - 1, Scratch("received", block)),
                   Reduce(Scratch("received", block), Input(block), Output(block)))
            outgoing = Output(block)

At one rank every collective is a plain copy, so a generator is only asked from two ranks up.
This module knows neither MPI nor NumPy.
"""

from functools import cache, wraps
from inspect import signature
from typing import NamedTuple

INPUT, OUTPUT = "input", "output"

#: Messages are cut below this many bytes, so that no MPI library overflows an int.
MAX_MESSAGE_BYTES = (1 << 30) - 64


_new = tuple.__new__  # half the cost of a NamedTuple's own; schedules are built while a call waits


class Part(NamedTuple):
    """`count` consecutive blocks from number `first` on (cyclic), in one place."""

    place: str
    first: int
    count: int = 1


def Input(first, count=1):
    """Blocks of the caller's input; read-only."""
    return _new(Part, (INPUT, first, count))


def Output(first, count=1):
    """Blocks of the caller's output."""
    return _new(Part, (OUTPUT, first, count))


def Scratch(name, first, count=1):
    """Blocks of a scratch vector; memory is taken only for the blocks and the rounds that need it."""
    return _new(Part, (name, first, count))


class Send(NamedTuple):
    """Send `part` to rank `peer`."""

    peer: int
    part: Part


class Recv(NamedTuple):
    """Receive into `part` from rank `peer`."""

    peer: int
    part: Part


class Reduce(NamedTuple):
    """`into` = `lower` op `higher`: the operand of the lower ranks stands on the left."""

    lower: Part
    higher: Part
    into: Part


class Copy(NamedTuple):
    """`into` = `source`."""

    source: Part
    into: Part


_OPERATIONS = (Send, Recv, Reduce, Copy)


# Partition: the one place that says where a block begins and how a range of blocks is cut into messages.


def bounds(count, blocks):
    """Offsets of `blocks` blocks, equal up to one element, in a vector of `count` elements: blocks + 1 numbers.

    >>> bounds(7, 3)
    [0, 3, 5, 7]
    """
    share, extra = divmod(count, blocks)
    return [block * share + min(block, extra) for block in range(blocks + 1)]


def offsets(counts):
    """Offsets of blocks of the given sizes that lie one after the other.

    >>> offsets([2, 0, 1])
    [0, 2, 2, 3]
    """
    result = [0]
    for count in counts:
        result.append(result[-1] + count)
    return result


def pieces(part, edges, limit=None):
    """The messages that carry `part`: (from, to) element offsets in the vector whose blocks begin at `edges`.

    A range that wraps around is two pieces, an empty one none, and none has more than `limit` elements. Both partners
    of a message compute this from block numbers alone, so they cut alike wherever their memory lies.

    >>> list(pieces(Output(2, 2), [0, 3, 5, 7]))
    [(5, 7), (0, 3)]
    """
    blocks = len(edges) - 1
    last = part.first + part.count
    for low, high in ((part.first, min(last, blocks)), (0, last - blocks)):
        if high > low and edges[high] > edges[low]:
            start, end = edges[low], edges[high]
            step = limit or end - start
            for offset in range(start, end, step):
                yield offset, min(offset + step, end)


# Combinators.


def operations_of(step):
    """The operations of one round as a tuple: a generator may yield a single operation bare."""
    kind = type(step)
    return step if kind is tuple else (step,) if kind in _OPERATIONS else tuple(step)


def rounds(generator, rank, size, root=None, blocks=None):
    """Iterate over the rounds of one rank as tuples of operations, ranks and block numbers reduced to their range.

    root: given to the generators of rooted collectives. blocks: how many the vector has (default size); given to
    generators whose signature asks for it, and what block numbers are cyclic in for all.
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
def _takes_blocks(generator):
    return "blocks" in signature(generator).parameters


def _normal(operation, size, blocks):
    """The operation with its numbers in range; most already are, and building schedules must be quick."""
    kind = type(operation)
    if kind is Send or kind is Recv:
        peer, part = operation
        if 0 <= part[1] < blocks and 0 <= peer < size:
            return operation
        return kind(peer % size, Part(part[0], part[1] % blocks, part[2]))
    if 0 <= operation[0][1] < blocks and 0 <= operation[1][1] < blocks and 0 <= operation[-1][1] < blocks:
        return operation
    return kind(*[Part(place, first % blocks, count) for place, first, count in operation])


def renamed(steps, places=None, peer=None, block=None):
    """The same rounds with other places (dict), ranks (function) and block numbers.

    block(first, count) gives the ranges that a range becomes: an operation on several is as many operations.
    Composition works by it: the partial sums of a reduce-scatter become the output of an allreduce.
    """
    places = places or {}

    def expand(operation):
        kind = type(operation)
        message = kind is Send or kind is Recv
        parts = operation[1:] if message else operation
        for cyclic in block(*parts[-1][1:]) if block else (parts[-1][1:],):
            others = [Part(places.get(part[0], part[0]), *cyclic) for part in parts]
            yield kind(peer(operation[0]) if peer else operation[0], *others) if message else kind(*others)

    for step in steps:
        yield tuple([new for operation in operations_of(step) for new in expand(operation)])


def joined(ranges):
    """Ranges (first, count), ascending, those that follow one another as one.

    >>> joined([(5, 1), (1, 1), (2, 2)])
    [(1, 3), (5, 1)]
    """
    found = []
    for first, count in sorted(ranges):
        if found and sum(found[-1]) == first:
            first, count = found[-1][0], found.pop()[1] + count
        found.append((first, count))
    return found


def segmented(generator):
    """Pipeline a one-block algorithm: its block is cut into `blocks` segments, each one round behind the one before.

    Rounds of the inner generator are the steps of a common clock; where a rank has nothing to do it yields ``()``.
    """

    @wraps(generator)
    def pipeline(rank, size, *root, blocks):
        steps = [operations_of(step) for step in generator(rank, size, *root)]
        busy = [number for number, step in reversed(list(enumerate(steps))) if step]
        for time in range(len(steps) + blocks - 1):
            active = [(steps[number], time - number) for number in busy if 0 <= time - number < blocks]
            yield tuple(operation for step, segment in active
                        for (operation,) in renamed(step, block=lambda _, n: ((segment, n),)))

    del pipeline.__wrapped__  # the signature that counts is pipeline's own: it takes `blocks`
    return pipeline


def power_of_two(size):
    """The largest power of two that is not above `size`."""
    return 1 << (size.bit_length() - 1)


def folded(collective):
    """Run a power-of-two algorithm at any size: the extra ranks fold in before and are served after.

    With r = size - 2^k extras, ranks 0 … 2r-1 form pairs. The even one sends its input to the odd one, which stands in
    for both and at the end sends back what the even one is owed. Where blocks belong to ranks (reduce_scatter,
    allgather), a pair counts as one rank that owns two blocks.
    """

    def decorate(generator):
        @wraps(generator)
        def fold(rank, size, blocks=None):
            blocks = blocks or size
            core = power_of_two(size)
            pairs = size - core
            held, wanted = (lambda r: collective.before(r, size, blocks)), (lambda r: collective.after(r, size, blocks))
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
                block=(lambda *cyclic: _pairs_as_one(*cyclic, core, pairs)) if collective.blocks_of_ranks else None,
            )
            if paired:
                result = places.get(OUTPUT, OUTPUT)
                yield Copy(wanted(rank)._replace(place=result), wanted(rank)), \
                    Send(rank - 1, wanted(rank - 1)._replace(place=result))

        del fold.__wrapped__  # the signature that counts is fold's own: it takes `blocks`
        fold.folds = True  # it takes `blocks` to place what the extras hold, not to be pipelined
        return fold

    return decorate


def _join(rank, mine, theirs, reduces):
    """The round in which the odd rank of a pair takes over what the even one holds."""
    received = theirs._replace(place="folded")
    joined = Reduce(received, mine, received) if reduces else Copy(mine, mine._replace(place="folded"))
    return Recv(rank - 1, received), joined


def _pairs_as_one(first, count, core, pairs):
    """The real range of a cyclic range of the core's blocks, of which the first `pairs` stand for two each."""
    first %= core
    width = sum(2 if block % core < pairs else 1 for block in range(first, first + count))
    return (((2 * first if first < pairs else first + pairs), width),)
