"""Objects never freed and requests never awaited: listed at exit where all calls are checked."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Hashable
from functools import cache

from mpi4py import MPI

from ..support.settings import ALWAYS
from .context import Context

#: requests and plans that live, and their descriptions
LEFT_OVER: dict[Hashable, str] = {}
#: lines that each rank prints, at most
_MOST = 20


@cache
def list_at_exit() -> None:
    """List them at exit, before MPI is finalized."""
    atexit.register(_list)


def _list() -> None:
    if MPI.Is_finalized() or getattr(sys, "last_value", None) is not None:
        return  # a program that failed had no time to free anything
    predefined = [MPI.COMM_WORLD.handle, MPI.COMM_SELF.handle]
    lines = [
        f"communicator {context.recorder.name}, made at {context.made_at} and never freed"
        for context in Context.living()
        if context.check == ALWAYS
        and context.comm.handle not in predefined
        and not context.broken
        and not context.released
    ]
    lines += LEFT_OVER.values()
    if len(lines) > _MOST:
        lines[_MOST:] = [f"and {len(lines) - _MOST} more"]
    head = f"mpicoll: rank {MPI.COMM_WORLD.Get_rank()}, at the end of the program"
    for line in lines:
        print(f"{head}: {line}", file=sys.stderr)
    sys.stderr.flush()
