"""The combinator of compression: the same schedule, with codes in the messages.

A block is coded once, before it is first sent, and passed on as it came: who receives codes and
sends them on does not code again. Sums are made of decoded elements, and are coded anew. What a
rank has sent in codes it uses decoded itself, so that all ranks have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ..errors import ScheduleError
from .operations import (
    INPUT,
    OUTPUT,
    SENDS,
    Coded,
    Copy,
    Operation,
    Part,
    Recv,
    Reduce,
    Round,
    Scratch,
    Send,
    is_coded,
    operations_of,
)

#: the place of elements of the input as other ranks decode them
_DECODED = "decoded"
#: the place of sums as they were before they were coded
SUMS = "sums"


def compressed(
    steps: Iterable[Round], blocks: int, crosses: Callable[[int], bool]
) -> Iterator[tuple[Operation, ...]]:
    """The rounds of one rank, with codes in the messages from and to ranks that `crosses` names.

    Parameters
    ----------
    steps : iterable of rounds
        As `rounds` gives them, without `Write`.
    blocks : int
        Blocks of the vector.
    crosses : callable
        crosses(peer): whether messages from and to this rank are coded.

    Yields
    ------
    tuple of operations
        One round. What a round sends is coded at the end of the round before it, while messages
        are on their way.
    """
    forms = _Forms(blocks)
    last: list[Operation] = []
    for step in steps:
        messages: list[Operation] = []
        local: list[Operation] = []
        received: list[tuple[Part, bool]] = []
        computed: list[Reduce | Copy] = []
        for operation in operations_of(step):
            if type(operation) is Reduce or type(operation) is Copy:
                computed.append(operation)
            elif type(operation) is Send or type(operation) is Recv:
                is_coded = crosses(operation.peer)
                part = _codes(operation.part) if is_coded else operation.part
                messages.append(operation._replace(part=part))
                if type(operation) in SENDS:
                    last += forms.code(operation.part) if is_coded else forms.plain(operation.part)
                else:
                    received.append((operation.part, is_coded))
            else:
                raise ScheduleError("it writes into other ranks' memory: that is not compressed")
        for part, is_coded in received:
            local += forms.received(part, is_coded)
        for operation in computed:
            local += forms.computed(operation)
        yield tuple(last)
        last = [*messages, *local]
    yield tuple(last)


def keeping_sums(steps: Iterable[Round]) -> Iterator[tuple[Operation, ...]]:
    """The same compressed rounds; what is coded of the output is copied to the place `SUMS`."""
    for step in steps:
        operations: list[Operation] = []
        for operation in operations_of(step):
            if type(operation) is Copy and is_coded(operation.into):
                source = operation.source
                if source.place == OUTPUT:
                    operations.append(Copy(source, source._replace(place=SUMS)))
            operations.append(operation)
        yield tuple(operations)


def _codes(part: Part) -> Part:
    return Coded(*part)


class _Forms:
    """In which form a rank has the blocks of each place."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        #: those whose codes there are, and of these the ones that still have to be decoded
        self._coded: set[Part] = set()
        self._undecoded: set[Part] = set()

    def code(self, part: Part) -> Iterator[Operation]:
        """Code the blocks that are sent, where that was not done before."""
        for block in self._each(part):
            if block not in self._coded:
                yield Copy(block, _codes(block))
                yield from self._have_codes(block)

    def plain(self, part: Part) -> Iterator[Operation]:
        """Decode the blocks that are sent as they are."""
        for block in self._each(part):
            yield from self._decode(block)

    def received(self, part: Part, is_coded: bool) -> Iterator[Operation]:
        """These have come."""
        for block in self._each(part):
            if is_coded:
                yield from self._have_codes(block)
            else:
                self._have_elements(block)

    def computed(self, operation: Reduce | Copy) -> Iterator[Operation]:
        """The operation on elements, or a copy of codes."""
        if not any(block in self._coded for part in operation for block in self._each(part)):
            yield operation
            return
        for blocks in zip(*map(self._each, operation)):
            *sources, into = blocks
            if len(sources) == 1 and sources[0] in self._coded:
                yield Copy(_codes(sources[0]), _codes(into))
                yield from self._have_codes(into)
                continue
            for source in sources:
                yield from self._decode(source)
            kind: Callable[..., Operation] = type(operation)
            yield kind(*map(self._decoded, sources), into)  # pyright: ignore[reportCallIssue]
            self._have_elements(into)

    def _each(self, part: Part) -> Iterator[Part]:
        place, first, count = part
        for block in range(first, first + count):
            yield Part(place, block % self._blocks)

    def _have_codes(self, block: Part) -> Iterator[Operation]:
        """Codes of this block have been made or have come; a result is decoded at once."""
        self._coded.add(block)
        self._undecoded.add(block)
        if block.place == OUTPUT:
            yield from self._decode(block)

    def _have_elements(self, block: Part) -> None:
        self._coded.discard(block)
        self._undecoded.discard(block)

    def _decoded(self, block: Part) -> Part:
        """Where its elements are read."""
        if block.place == INPUT and block in self._coded:
            return Scratch(_DECODED, block.first)
        return block

    def _decode(self, block: Part) -> Iterator[Operation]:
        if block in self._undecoded:
            self._undecoded.discard(block)
            yield Copy(_codes(block), self._decoded(block))
