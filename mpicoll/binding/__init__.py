"""From a schedule to a program: pure functions that put operations on memory, in order."""

from .device_copies import Twin, with_copies
from .lowering import lowered
from .program import (
    Decode,
    Encode,
    Fetch,
    Instruction,
    Places,
    Program,
    Put,
    Span,
    Step,
    lies_in,
    mover,
)
from .reduced import reduced_where_they_lie
from .scratch import Memory, Round, Vector

__all__ = [
    "Decode", "Encode", "Fetch", "Instruction", "Memory", "Places", "Program", "Put", "Round",
    "Span", "Step", "Twin", "Vector", "lies_in", "lowered", "mover", "reduced_where_they_lie",
    "with_copies",
]  # fmt: skip
