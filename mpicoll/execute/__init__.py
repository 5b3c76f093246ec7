"""The executor: a schedule bound to buffers becomes persistent point-to-point requests and ufunc calls.

May import: errors, support, schedule, collectives, buffers.
"""

from .context import Context
from .native import NativeCall, NativePlan, native_method
from .plan import LowerCase, Plan, Schedule, bind
from .progress import PROGRESS, Queue, Task
from .staging import BYTES, Work
from .topology import Topology

__all__ = [
    "BYTES", "PROGRESS", "Context", "LowerCase", "NativeCall", "NativePlan", "Plan", "Queue", "Schedule", "Task",
    "Topology", "Work", "bind", "native_method",
]
