"""Buffer arguments, in host or device memory: made contiguous vectors, and written back."""

from . import ops
from .coding_loss import CodingLoss
from .compression import Compression, as_float32, cannot_be_compressed, compression_of
from .device import device_of, host_copies, note_begin, stage
from .fixed_point import Contributions, FixedPoint, cannot_be_fixed
from .layout import packed
from .memory import address, at, bytes_at, span
from .message import KeptSums, frozen, operand
from .operand import Operand, bytes_of, in_place
from .ops import HALF, OWN_TYPES, PREDEFINED
from .overlap import coincide, overlap
from .patterns import decoded
from .typed_blocks import typed_blocks
from .typed_memory import TypedMemory, TypedPart

__all__ = [
    "CodingLoss", "Compression", "Contributions", "FixedPoint", "HALF", "KeptSums", "OWN_TYPES",
    "Operand", "PREDEFINED", "TypedMemory", "TypedPart", "address", "as_float32", "at", "bytes_at",
    "bytes_of", "cannot_be_compressed", "cannot_be_fixed", "coincide", "compression_of", "decoded",
    "device_of", "frozen", "host_copies", "in_place", "note_begin", "operand", "ops", "overlap",
    "packed", "span", "stage", "typed_blocks",
]
