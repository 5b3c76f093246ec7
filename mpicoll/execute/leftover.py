"""What a program has made and never freed, or begun and never waited for: listed at its end where all calls are checked."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Hashable
from functools import cache

from mpi4py import MPI

from ..support.settings import ALWAYS
from .context import Context

#: requests and plans that live, and what is said of them
LEFT_OVER: dict[Hashable, str] = {}
#: lines that are printed of each rank
_MOST = 20


@cache
def list_at_exit() -> None:
    """Have it listed, once, before MPI is finalized."""
    atexit.register(_list)


def _list() -> None:
    if MPI.Is_finalized() or getattr(sys, "last_value", None) is not None:
        return  # a program that failed had no time to free anything
    predefined = [MPI.COMM_WORLD.handle, MPI.COMM_SELF.handle]
    lines = [f"communicator {one.recorder.name}, made at {one.made_at} and never freed" for one in Context.living()
             if one.check == ALWAYS and one.comm.handle not in predefined and not one.broken]  # fmt: skip
    lines += LEFT_OVER.values()
    shown = lines[:_MOST] + ([f"and {len(lines) - _MOST} more"] if len(lines) > _MOST else [])
    for line in shown:
        print(f"mpicoll: rank {MPI.COMM_WORLD.Get_rank()}, at the end of the program: {line}", file=sys.stderr)
    sys.stderr.flush()
