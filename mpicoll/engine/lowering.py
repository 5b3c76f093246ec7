"""From a program to the code that the extension executes: a table, not a translator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import count
from struct import Struct

from ..binding import Instruction, Places, Program, Span
from ..schedule import Copy, Recv, Reduce, Send

#: an instruction of the extension: code, peer, request, type, op, 3 buffers, 3 places, count
CODE = Struct("=8i4q")


class Code(IntEnum):
    """What an instruction does."""

    SEND = 0
    RECV = 1
    WAIT = 2
    REDUCE = 3
    COPY = 4


_CODES = {Send: Code.SEND, Recv: Code.RECV, Reduce: Code.REDUCE, Copy: Code.COPY}
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
#: the rows and columns of its table of reductions
_TYPES = (*_INTEGERS, "float32", "float64")
_OPS = ("SUM", "PROD", "MAX", "MIN", "BAND", "BOR", "BXOR")
#: reductions whose bits are those of NumPy, whatever they are applied to
_OF_FLOATS = ("SUM", "PROD")
_LONGEST = 2**31 - 1


def refusal(program: Program) -> str:
    """Why the extension cannot execute the program, or ""."""
    instructions = [piece for step in program.steps for piece in (*step.starts, *step.local)]
    others = {piece.kind for piece in instructions} - _CODES.keys()
    if others:
        return f"it has no instruction {min(kind.__name__ for kind in others)}"
    if any(piece.is_message and piece.nbytes > _LONGEST for piece in instructions):
        return "a message is larger than 2 GiB"
    if any(piece.kind is Reduce for piece in instructions):
        ops = _OPS if program.dtype in _INTEGERS else _OF_FLOATS
        if program.dtype not in _TYPES or program.op not in ops:
            return f"it has no {program.op} of {program.dtype}"
    return ""


def lowered(
    program: Program, ranks: Sequence[int], memory: Places
) -> Iterator[tuple[bytes, int, int | None]]:
    """(code, step, number of the awaited request) of each instruction, in order.

    ranks: those on the wire. memory: the buffers of the call, which may be others each time.
    """
    numbers = count()
    kind = (0, 0)
    if program.op in _OPS and program.dtype in _TYPES:
        kind = _TYPES.index(program.dtype), _OPS.index(program.op)
        itemsize = int("".join(filter(str.isdigit, program.dtype))) // 8
    number_of = {}
    for position, step in enumerate(program.steps):
        for piece in step.starts:
            number_of[id(piece)] = number = next(numbers)
            assert piece.peer is not None
            peer = ranks[piece.peer]
            yield _packed(piece, memory, piece.nbytes, peer, number), position, None
        for piece in step.waits:
            number = number_of[id(piece)]
            yield CODE.pack(Code.WAIT, 0, number, *[0] * 9), position, number
        for piece in step.local:
            if piece.kind is Reduce:
                elements = (piece.writes[0][1] - piece.writes[0][0]) // itemsize
                yield _packed(piece, memory, elements, kind=kind), position, None
            else:
                yield _packed(piece, memory, piece.nbytes), position, None


def _packed(
    piece: Instruction,
    memory: Places,
    size: int,
    peer: int = 0,
    request: int = 0,
    kind: tuple[int, int] = (0, 0),
) -> bytes:
    places = [_place(span, memory) for span in piece.spans]
    places += [(0, 0)] * (3 - len(places))
    buffers, offsets = zip(*places)
    return CODE.pack(_CODES[piece.kind], peer, request, *kind, *buffers, *offsets, size)


def _place(span: Span, memory: Places) -> tuple[int, int]:
    """(number of the buffer, offset), or (0, address)."""
    for number, (address, nbytes) in enumerate(memory, 1):
        if address <= span[0] < address + nbytes:
            return number, span[0] - address
    return 0, span[0]
