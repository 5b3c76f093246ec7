"""Requests of MPI that own their buffers: these live until MPI has done with them.

With mpi4py a program that forgets a request and its arrays lets MPI write to memory that is free.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, cast

from mpi4py import MPI

from .withdrawal import still_under_way

AnyRequest = TypeVar("AnyRequest", bound=MPI.Request)

#: requests that were forgotten before they had ended, and their buffers
_FORGOTTEN: deque[tuple[MPI.Request, object]] = deque()


class _Owning:
    """A request, and what MPI uses until it has ended."""

    buffers: object = None

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():  # the names of this module may be gone then
            _keep(self, self.buffers)


class OwningRequest(_Owning, MPI.Request):
    """Made by `owning`."""


class OwningPrequest(_Owning, MPI.Prequest):
    """The same of a persistent request."""


def owning(request: AnyRequest, buffers: object) -> AnyRequest:
    """MPI's request, which keeps these buffers."""
    _let_go()
    new: Any = (OwningPrequest if isinstance(request, MPI.Prequest) else OwningRequest)(request)
    new.buffers = buffers
    return cast("AnyRequest", new)


def _keep(request: Any, buffers: object) -> None:
    if request and not MPI.Is_finalized():
        _FORGOTTEN.append((MPI.Request(request), buffers))


def _let_go() -> None:
    """Let the buffers of forgotten requests go that have ended meanwhile."""
    for _ in range(len(_FORGOTTEN)):
        with suppress(IndexError):  # another thread was faster
            request, buffers = _FORGOTTEN.popleft()
            if still_under_way([request]):
                _FORGOTTEN.append((request, buffers))
