"""Buffer arguments, in host or device memory: made contiguous vectors, and written back.

Only this room touches CuPy, and only when a CuPy array arrives.
"""

from . import ops
from .awareness import cuda_awareness, gpu_mode, gpu_mode_and_why, require_awareness, trials
from .device import (
    PAGE_LOCKED,
    at_device,
    computes,
    device_key,
    device_of,
    note_begin,
    optional_cupy,
    stage,
)
from .fixed_point import Contributions, FixedPoint, cannot_be_fixed
from .layout import packed
from .memory import address, at, bytes_at, span
from .message import operand
from .operand import Operand, in_place
from .ops import HALF, OWN_TYPES, PREDEFINED
from .overlap import coincide, overlap
from .streams import Arrival, DeviceCopy, current_streams, host_copies, on_stream

__all__ = [
    "Arrival", "Contributions", "DeviceCopy", "FixedPoint", "HALF", "OWN_TYPES", "Operand",
    "PAGE_LOCKED", "PREDEFINED", "address", "at", "at_device", "bytes_at", "cannot_be_fixed",
    "coincide", "computes", "cuda_awareness", "current_streams", "device_key", "device_of",
    "gpu_mode", "gpu_mode_and_why", "host_copies", "in_place", "note_begin", "on_stream", "operand",
    "ops", "optional_cupy", "overlap", "packed", "require_awareness", "span", "stage", "trials",
]
