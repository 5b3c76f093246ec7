"""The executor: a schedule bound to buffers becomes persistent point-to-point requests and ufunc calls.

May import: support, schedule, collectives, buffers.
"""

from .context import Wire
from .native import NativePlan, NativeWork, native_method
from .plan import LowerCase, bind
from .progress import PROGRESS, Lane
from .staging import BYTES, Work
from .topology import Topology

__all__ = [
    "BYTES", "Lane", "LowerCase", "NativePlan", "NativeWork", "PROGRESS", "Topology", "Wire", "Work",
    "bind", "native_method",
]
