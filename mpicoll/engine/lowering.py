"""From a program to the code that the extension executes: a table, not a translator."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from enum import IntEnum
from struct import Struct
from typing import NamedTuple, Protocol

from ..binding import Decode, Encode, Instruction, Places, Program, Span
from ..codes import NAMES as COMPRESSIONS
from ..schedule import Copy, Recv, Reduce, Send, Write, Written

_STRUCT = Struct("=10i9q")
_LONGEST = 2**31 - 1
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
#: the rows and columns of the extension's table of reductions
TYPES = (
    *_INTEGERS, "float32", "float64", "complex64", "complex128", "bool", "float16", "bfloat16",
)  # fmt: skip
OPS = ("SUM", "PROD", "MAX", "MIN", "BAND", "BOR", "BXOR", "LAND", "LOR", "LXOR")
#: what is defined there for types that are not integers
_DEFINED = {
    **dict.fromkeys(
        ("float16", "bfloat16", "float32", "float64"), ("SUM", "PROD", "MAX", "MIN")),
    # not PROD: NumPy's bits differ from one element to the next, as it has FMA in the middle of
    # an array, and not at its end
    **dict.fromkeys(("complex64", "complex128"), ("SUM",)),
    "bool": ("LAND", "LOR", "LXOR"),
}
#: in place of a location: no other process can map that memory
NOWHERE = -1


class Code(IntEnum):
    """What an instruction does. NEAR: to or from a rank of the node, through shared memory."""

    SEND = 0
    RECV = 1
    NEAR_SEND = 2
    NEAR_RECV = 3
    NEAR_WRITE = 4
    NEAR_WRITTEN = 5
    WAIT = 6
    REDUCE = 7
    COPY = 8
    ENCODE = 9
    DECODE = 10


_CODES: dict[type, Code] = {
    Send: Code.SEND,
    Recv: Code.RECV,
    Reduce: Code.REDUCE,
    Copy: Code.COPY,
    Encode: Code.ENCODE,
    Decode: Code.DECODE,
}
_NEAR_CODES: dict[type, Code] = {
    Send: Code.NEAR_SEND,
    Recv: Code.NEAR_RECV,
    Write: Code.NEAR_WRITE,
    Written: Code.NEAR_WRITTEN,
}


class Slots(NamedTuple):
    """Memory that pieces of a message are copied to.

    piece: bytes of the longest. address, location: of the first; distance: between two. number:
    how many there are.
    """

    piece: int
    address: int = 0
    location: int = 0
    distance: int = 0
    number: int = 1


class Packed(NamedTuple):
    """An instruction of the extension, field by field."""

    code: Code
    peer: int = 0
    request: int = 0
    kind: tuple[int, int] = (0, 0)
    operand: int = -1
    #: (number of the buffer, offset) or (0, address) of each
    places: tuple[tuple[int, int], ...] = ()
    size: int = 0
    location: int = NOWHERE
    slots: Slots = Slots(1)

    def on(self, piece: Instruction, memory: Places) -> Packed:
        """The same with the places and the bytes of an instruction."""
        spans: tuple[Span, ...] = piece.spans
        if piece.is_message:
            main = _main(piece)
            other = piece.reads[0] if piece.operand is not None else main
            spans = main, other, piece.landing or main
        start, end = _main(piece)
        places = tuple(_place(span, memory) for span in spans)
        return self._replace(places=places, size=end - start)

    def __bytes__(self) -> bytes:
        places = self.places + ((0, 0),) * (3 - len(self.places))
        buffers, offsets = zip(*places)
        return _STRUCT.pack(
            self.code, self.peer, self.request, *self.kind, self.operand, *buffers,
            self.slots.number, *offsets, self.size, self.location, *self.slots[:-1],
        )  # fmt: skip


#: bytes of an instruction
INSTRUCTION_BYTES = _STRUCT.size


class Lowered(NamedTuple):
    """An instruction of the extension, and where in the program it belongs.

    awaited: the number of the request that it waits for, or None.
    """

    packed: Packed
    step: int
    awaited: int | None = None


def refusal(program: Program, near: Container[int | None]) -> str:
    """Why the extension cannot execute the program, or "". near: see `Nearby`."""
    instructions = [piece for step in program.steps for piece in (*step.starts, *step.local)]
    for piece in instructions:
        is_near = piece.peer in near
        if piece.kind not in (_NEAR_CODES if is_near else _CODES):
            return f"it has no instruction {piece.kind.__name__}"
        if piece.is_message and piece.nbytes > _LONGEST:
            return "a message is larger than 2 GiB"
        if is_near and not piece.nbytes:
            return "a message is empty"
    is_reduced = any(piece.kind is Reduce or piece.operand is not None for piece in instructions)
    if is_reduced and not reduces(program.op, program.dtype):
        return f"it has no {program.op} of {program.dtype}"
    return ""


def reduces(op: str, dtype: str) -> bool:
    """Whether the extension reduces that type by that op."""
    return op in _DEFINED.get(dtype, OPS if dtype in _INTEGERS else ())


class Nearby(Protocol):
    """The ranks that share memory with this one. numbers: by rank, in the program's list."""

    numbers: Mapping[int | None, int]

    def locate(self, span: Span) -> int:
        """The location of memory, or NOWHERE."""
        ...

    def slots(self, piece: Instruction) -> Slots:
        """For a message that this rank sends."""
        ...


def lowered(
    program: Program, ranks: Sequence[int], nearby: Nearby, memory: Places
) -> Iterator[Lowered]:
    """The instructions of the extension, in order.

    ranks: those on the wire. memory: the buffers of the call, which may be others each time.
    """
    kind = (0, 0)
    itemsize = itemsize_of(program.dtype) if program.dtype in TYPES else 1
    if program.op in OPS and program.dtype in TYPES:
        kind = TYPES.index(program.dtype), OPS.index(program.op)
    number_of = {id(piece): number for number, piece in enumerate(program.started())}
    for position, step in enumerate(program.steps):
        for piece in step.starts:
            number = number_of[id(piece)]
            assert piece.peer is not None
            packed = Packed(_CODES.get(piece.kind, Code.WAIT), ranks[piece.peer], number)
            if piece.peer in nearby.numbers:
                packed = _near(piece, nearby, number, kind)
            yield Lowered(packed.on(piece, memory), position)
        for piece in step.waits:
            number = number_of[id(piece)]
            yield Lowered(Packed(Code.WAIT, request=number), position, number)
        for piece in step.local:
            packed = Packed(_CODES[piece.kind], kind=kind).on(piece, memory)
            if piece.kind is not Copy:
                packed = packed._replace(size=_elements(piece) // itemsize)
            if piece.kind is Encode or piece.kind is Decode:
                packed = packed._replace(kind=(COMPRESSIONS.index(program.compression), 0))
            yield Lowered(packed, position)


def _elements(piece: Instruction) -> int:
    """Bytes of the elements of a computation."""
    start, end = piece.reads[0] if piece.kind is Encode else piece.writes[0]
    return end - start


def _near(piece: Instruction, nearby: Nearby, number: int, kind: tuple[int, int]) -> Packed:
    return Packed(
        _NEAR_CODES[piece.kind],
        nearby.numbers[piece.peer],
        number,
        kind,
        -1 if piece.operand is None else piece.operand,
        location=nearby.locate(_main(piece)),
        slots=nearby.slots(piece) if piece.is_sent else Slots(1),
    )


def _main(piece: Instruction) -> Span:
    """The memory that is sent, or that gets the result."""
    return piece.writes[0] if piece.writes else piece.reads[0]


def itemsize_of(dtype: str) -> int:
    """Bytes of an element of one of `TYPES`."""
    return 1 if dtype == "bool" else int("".join(filter(str.isdigit, dtype))) // 8


def _place(span: Span, memory: Places) -> tuple[int, int]:
    """(number of the buffer, offset), or (0, address)."""
    for number, (address, nbytes) in enumerate(memory, 1):
        if address <= span[0] < address + nbytes:
            return number, span[0] - address
    return 0, span[0]
