"""Buffers: what a buffer argument means, in host or device memory, and how it becomes a contiguous vector and back.

Only this room touches CuPy, and only when a CuPy array arrives.

May import: errors, support, schedule.
"""

from . import ops
from .device import cuda_awareness, device_of, gpu_mode, stage
from .memory import address, at
from .message import operand
from .operand import Operand, in_place
from .ops import HALF, PREDEFINED

__all__ = [
    "HALF", "PREDEFINED", "Operand", "address", "at", "cuda_awareness", "device_of", "gpu_mode", "in_place",
    "operand", "ops", "stage",
]
