"""The methods that mpi4py itself serves, entered into the communicator's record of calls.

These are collectives; where a job can survive lost ranks also point-to-point messages, which then
raise RankFailure, too. There `_OWN` replaces some methods. mpi4py reduces objects on a duplicate of
its own, which is never revoked: here they are gathered and folded. Sendrecv and Sendrecv_replace
are two messages (quirk: sendrecv-revoked).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import WRAPPER_ASSIGNMENTS, reduce, wraps
from typing import Any

from mpi4py import MPI

from ..buffers import packed
from ..execute import Context
from ..failure import survivable
from ..support.callsite import call_site
from .base import Base

_NAMES = (
    "bcast", "gather", "scatter", "allgather", "alltoall", "reduce", "allreduce",
    "scan", "exscan",
    "Dup", "Dup_with_info", "Clone", "Split", "Split_type", "Create", "Free",
)  # fmt: skip
_MESSAGES = (
    "Send", "Recv", "Sendrecv", "Sendrecv_replace", "Ssend", "Probe", "Iprobe", "Isend", "Irecv",
    "send", "recv", "sendrecv",
)  # fmt: skip


class Watched(Base):
    """mpi4py's methods of `_NAMES`, entered into the communicator's record of calls."""


def _reduce(comm: MPI.Intracomm, sendobj: Any, op: MPI.Op = MPI.SUM, root: int = 0) -> Any:
    objects = MPI.Intracomm.gather(comm, sendobj, root)
    return None if objects is None else reduce(op, objects)


def _allreduce(comm: MPI.Intracomm, sendobj: Any, op: MPI.Op = MPI.SUM) -> Any:
    return reduce(op, MPI.Intracomm.allgather(comm, sendobj))


def _scan(comm: MPI.Intracomm, sendobj: Any, op: MPI.Op = MPI.SUM) -> Any:
    return reduce(op, MPI.Intracomm.allgather(comm, sendobj)[: comm.Get_rank() + 1])


def _exscan(comm: MPI.Intracomm, sendobj: Any, op: MPI.Op = MPI.SUM) -> Any:
    before = MPI.Intracomm.allgather(comm, sendobj)[: comm.Get_rank()]
    return reduce(op, before) if before else None


def _sendrecv(
    comm: MPI.Intracomm, sendbuf: Any, dest: int, sendtag: int = 0,
    recvbuf: Any = None, source: int = MPI.ANY_SOURCE, recvtag: int = MPI.ANY_TAG,
    status: MPI.Status | None = None,
) -> None:  # fmt: skip
    receive = MPI.Intracomm.Irecv(comm, recvbuf, source, recvtag)
    MPI.Intracomm.Isend(comm, sendbuf, dest, sendtag).Wait()
    receive.Wait(status)


def _sendrecv_replace(
    comm: MPI.Intracomm, buf: Any, dest: int, sendtag: int = 0,
    source: int = MPI.ANY_SOURCE, recvtag: int = MPI.ANY_TAG, status: MPI.Status | None = None,
) -> None:  # fmt: skip
    _sendrecv(comm, [packed(buf), MPI.PACKED], dest, sendtag, buf, source, recvtag, status)


_OWN: dict[str, Callable[..., Any]] = {
    "reduce": _reduce,
    "allreduce": _allreduce,
    "scan": _scan,
    "exscan": _exscan,
    "Sendrecv": _sendrecv,
    "Sendrecv_replace": _sendrecv_replace,
}


#: from Python 3.14 on `wraps` copies annotations only from functions written in Python
_COPIED = (*WRAPPER_ASSIGNMENTS, "__annotations__")


def _watched(name: str) -> Callable[..., Any]:
    method: Callable[..., Any] = getattr(MPI.Intracomm, name)
    served = _OWN.get(name, method) if survivable() else method
    ordered = name not in _MESSAGES  # other ranks do not count messages between two ranks

    @wraps(method, assigned=_COPIED)
    def call(self: Watched, *args: Any, **keywords: Any) -> Any:
        context = self.__dict__.get("_context")
        if context is None and self:
            context = Context.found(self)
        # no context: the communicator is freed, or under construction
        if context is None or not context.lists_all:
            return served(self, *args, **keywords)
        with context.watched(name, call_site(), ordered):
            return served(self, *args, **keywords)

    return call


for _name in _NAMES + (_MESSAGES if survivable() else ()):
    setattr(Watched, _name, _watched(_name))
