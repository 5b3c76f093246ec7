"""The collectives that mpi4py serves by itself, entered into the record of calls that is watched.

Where lost ranks can be survived, so are its messages between two ranks, which then raise
RankFailure as well; and other calls serve the methods in `_OWN`. mpi4py reduces objects over a
duplicate of its own, which is never revoked: here they are gathered and folded. Sendrecv and
Sendrecv_replace are two messages (quirk: sendrecv-revoked).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce, wraps
from typing import Any

from mpi4py import MPI

from ..buffers import packed
from ..execute import Context, survivable
from ..support.callsite import call_site
from .base import Base

_NAMES = (
    "Barrier", "Alltoallw", "Scan", "Exscan",
    "barrier", "bcast", "gather", "scatter", "allgather", "alltoall", "reduce", "allreduce",
    "scan", "exscan",
    "Dup", "Dup_with_info", "Clone", "Split", "Split_type", "Create", "Free",
)  # fmt: skip
_MESSAGES = (
    "Send", "Recv", "Sendrecv", "Sendrecv_replace", "Ssend", "Probe", "Iprobe", "Isend", "Irecv",
    "send", "recv", "sendrecv",
)  # fmt: skip


class Watched(Base):
    """All of `_NAMES`: mpi4py's own, entered into the communicator's record of calls."""


def _reduce(comm: MPI.Intracomm, sendobj: Any, op: MPI.Op = MPI.SUM, root: int = 0) -> Any:
    everyone = MPI.Intracomm.gather(comm, sendobj, root)
    return None if everyone is None else reduce(op, everyone)


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
    received = MPI.Intracomm.Irecv(comm, recvbuf, source, recvtag)
    MPI.Intracomm.Isend(comm, sendbuf, dest, sendtag).Wait()
    received.Wait(status)


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


def _watched(name: str) -> Callable[..., Any]:
    method: Callable[..., Any] = getattr(MPI.Intracomm, name)
    served = _OWN.get(name, method) if survivable() else method
    ordered = name not in _MESSAGES  # between two ranks, which the others know nothing of

    @wraps(method)
    def call(self: Watched, *arguments: Any, **named: Any) -> Any:
        context = self.__dict__.get("_context")
        if context is None and self:
            context = Context.found(self)
        if context is None or not context.lists_all:  # it is freed, or just being made
            return served(self, *arguments, **named)
        with context.watched(name, call_site(), ordered):
            return served(self, *arguments, **named)

    return call


for _name in _NAMES + (_MESSAGES if survivable() else ()):
    setattr(Watched, _name, _watched(_name))
