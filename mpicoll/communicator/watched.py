"""The collectives that mpi4py serves by itself: where waits are watched, they are too, as MPI's own calls are.

Where lost ranks can be survived, so are its blocking messages between two ranks, which then raise RankFailure as well.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from mpi4py import MPI

from ..execute import Context, survivable
from .base import Base

_NAMES = ("Barrier", "Alltoallw", "Scan", "Exscan", "barrier", "bcast", "gather", "scatter",
          "allgather", "alltoall", "reduce", "allreduce", "scan", "exscan", "Dup", "Dup_with_info", "Clone", "Split",
          "Split_type", "Create", "Free")  # fmt: skip
_MESSAGES = ("Send", "Recv", "Sendrecv", "Sendrecv_replace", "Ssend", "Probe", "Iprobe", "Isend", "Irecv", "send", "recv",
             "sendrecv")  # fmt: skip


class Watched(Base):
    """All of `_NAMES`: mpi4py's own, entered into the communicator's record of calls."""


def _watched(name: str) -> Callable[..., Any]:
    method = getattr(MPI.Intracomm, name)

    @wraps(method)
    def call(self: Watched, *arguments: Any, **named: Any) -> Any:
        context = self.__dict__.get("_context")
        if context is None and self:
            context = Context.found(self)
        if context is None or not context.sees_all:  # it is freed, or just being made
            return method(self, *arguments, **named)
        with context.watched(name):
            return method(self, *arguments, **named)

    return call


for _name in _NAMES + (_MESSAGES if survivable() else ()):
    setattr(Watched, _name, _watched(_name))
