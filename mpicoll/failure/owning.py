"""Requests of MPI that own their buffers: these live until MPI has done with them.

With mpi4py a program that forgets a request and its arrays lets MPI write to memory that is free.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress

from mpi4py import MPI

from .withdrawal import still_under_way

#: requests that were forgotten before they had ended, and their buffers
_FORGOTTEN: deque[tuple[MPI.Request, object]] = deque()


class OwningRequest(MPI.Request):
    """A request, and what MPI uses until it has ended; made by `owning`."""

    buffers: object = None

    def __del__(self) -> None:
        _keep(self, self.buffers)


class OwningPrequest(MPI.Prequest):
    """The same of a persistent request."""

    buffers: object = None

    def __del__(self) -> None:
        _keep(self, self.buffers)


def owning(request: MPI.Request, buffers: object) -> MPI.Request:
    """MPI's request, which keeps these buffers."""
    _let_go()
    new = OwningRequest(request)
    new.buffers = buffers
    return new


def _keep(request: MPI.Request, buffers: object) -> None:
    if request and not MPI.Is_finalized():
        _FORGOTTEN.append((MPI.Request(request), buffers))


def _let_go() -> None:
    """Let the buffers of forgotten requests go that have ended meanwhile."""
    for _ in range(len(_FORGOTTEN)):
        with suppress(IndexError):  # another thread was faster
            request, buffers = _FORGOTTEN.popleft()
            if still_under_way([request]):
                _FORGOTTEN.append((request, buffers))
