"""The executor: a schedule bound to buffers becomes point-to-point requests and ufunc calls."""

from . import nccl
from .agreement import (
    Statement,
    compare,
    compare_blocks,
    everyone_says,
    largest_of_all,
    share_blocks,
)
from .binder import Schedule, bind
from .channel import WATCH
from .context import Context
from .known import Known
from .leftover import LEFT_OVER, list_at_exit
from .library import LibraryCall
from .native import NativeCall, native_method, owning
from .plan import LowerCase, Plan
from .progress import PROGRESS
from .recorder import ENDED, Located, Past, Record, past
from .stall import Stall
from .staging import BYTES, Work
from .survival import (
    all_agree,
    deaths,
    lowest_alive,
    note_missing,
    outnumbers,
    refusal,
    survivable,
)
from .tasks import Queue, Task, until_done
from .topology import Topology
from .tracing import Tracer
from .withdrawal import ABANDONED

__all__ = [
    "ABANDONED", "BYTES", "ENDED", "LEFT_OVER", "PROGRESS", "WATCH", "Context", "Known",
    "LibraryCall", "Located", "LowerCase", "NativeCall", "Past", "Plan", "Queue", "Record",
    "Schedule", "Stall", "Statement", "Task", "Topology", "Tracer", "Work", "all_agree", "bind",
    "compare", "compare_blocks", "deaths", "everyone_says", "largest_of_all", "list_at_exit",
    "lowest_alive", "native_method", "nccl", "note_missing", "outnumbers", "owning", "past",
    "refusal", "share_blocks", "survivable", "until_done",
]  # fmt: skip
