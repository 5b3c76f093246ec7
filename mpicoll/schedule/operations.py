"""Operations: what a rank does in one round, with numbered blocks of a vector.

A round is one operation or a tuple of operations. The vector is cut into blocks; a `Part` names a
cyclic range of blocks in one place: the caller's `Input` (never written), the caller's `Output`, or
a named `Scratch` vector. A block keeps its number wherever it goes; in an alltoall, where all ranks
have other blocks, it is the number of a place: `Input(r)` is for rank r, `Output(r)` from rank r.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias, Union

INPUT, OUTPUT = "input", "output"
_CODED = "codes of "


_new = tuple.__new__  # half the cost of a NamedTuple's own; schedules are built while a call waits


class Part(NamedTuple):
    """`count` consecutive blocks from number `first` on (cyclic), in one place."""

    place: str
    first: int
    count: int = 1  # type: ignore[assignment]  # hides tuple.count


def Input(first: int, count: int = 1) -> Part:
    """Blocks of the caller's input; read-only."""
    return _new(Part, (INPUT, first, count))


def Output(first: int, count: int = 1) -> Part:
    """Blocks of the caller's output."""
    return _new(Part, (OUTPUT, first, count))


def Scratch(name: str, first: int, count: int = 1) -> Part:
    """Blocks of a scratch vector, which has memory only for the blocks and rounds in use."""
    return _new(Part, (name, first, count))


def Coded(name: str, first: int, count: int = 1) -> Part:
    """The codes of blocks of a place, in scratch: less bytes, see `compressed`.

    A `Copy` from elements codes, and a `Copy` to elements decodes.
    """
    return _new(Part, (_CODED + name, first, count))


def is_coded(part: Part) -> bool:
    """Whether it has codes instead of elements."""
    return part.place.startswith(_CODED)


class Send(NamedTuple):
    """Send `part` to rank `peer`."""

    peer: int
    part: Part


class Recv(NamedTuple):
    """Receive into `part` from rank `peer`."""

    peer: int
    part: Part


class Write(NamedTuple):
    """Write `part` into memory of rank `peer`: a send that need not wait for its `Written`."""

    peer: int
    part: Part


class Written(NamedTuple):
    """Wait until rank `peer` has written `part`; nothing else uses it from the first round on."""

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


Message: TypeAlias = Union[Send, Recv, Write, Written]
Operation: TypeAlias = Union[Message, Reduce, Copy]
#: what a generator yields: one operation, or all that a rank does in a round
Round: TypeAlias = Union[Operation, Iterable[Operation]]
#: generator(rank, size[, root][, blocks]) gives the rounds of one rank
Generator: TypeAlias = Callable[..., Iterable[Round]]

SENDS, RECEIVES = (Send, Write), (Recv, Written)
MESSAGES = frozenset(SENDS + RECEIVES)
_OPERATIONS = MESSAGES | {Reduce, Copy}


def operations_of(step: Round) -> tuple[Operation, ...]:
    """The operations of one round as a tuple: a generator may yield a single operation bare."""
    kind = type(step)
    if kind is tuple:
        return step  # type: ignore[return-value]
    return (step,) if kind in _OPERATIONS else tuple(step)  # type: ignore[return-value,arg-type]
