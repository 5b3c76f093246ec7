"""The executor: a schedule bound to buffers becomes point-to-point requests and ufunc calls."""

from .agreement import (
    Statement,
    compare,
    compare_blocks,
    everyone_says,
    largest_of_all,
    share_blocks,
)
from .binder import Schedule, bind
from .cache import CachedCall, Key
from .context import Context
from .doors import IsServed
from .leftover import LEFT_OVER, list_at_exit
from .library_call import LibraryCall
from .native import NativeCall, native_method, plain_method
from .operation import LowerCase, Operation, clear_status
from .scheduled_call import ScheduledCall
from .staging import BYTES, Work
from .surroundings import Surroundings, surroundings_of
from .tracing import Tracer

__all__ = [
    "BYTES", "LEFT_OVER", "CachedCall", "Context", "IsServed", "Key", "LibraryCall", "LowerCase",
    "NativeCall", "Operation", "Schedule", "ScheduledCall", "Statement", "Surroundings", "Tracer",
    "Work", "bind", "clear_status", "compare", "compare_blocks", "everyone_says", "largest_of_all",
    "list_at_exit", "native_method", "plain_method", "share_blocks", "surroundings_of",
]  # fmt: skip
