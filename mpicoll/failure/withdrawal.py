"""MPI requests that are given up: receives are cancelled; MPI may still use the others."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from time import perf_counter, sleep
from typing import Protocol, runtime_checkable

from mpi4py import MPI

#: what calls that were given up had in use: MPI may still use it, so it is never given back
ABANDONED: list[object] = []
#: seconds to wait for a receive that can no longer be cancelled, as its message is arriving
_PATIENCE = 1.0
_PAUSE = 1e-4


@runtime_checkable
class Withdrawable(Protocol):
    """A call with messages under way that can be given up."""

    def withdraw(self) -> list[MPI.Request]:
        """Give them up: no other rank changes this rank's memory from now on.

        Returns the requests that MPI may still use.
        """
        ...


def cancelled(receives: Iterable[MPI.Request]) -> list[MPI.Request]:
    """Cancel receives; returns those that MPI may still write to."""
    left = [request for request in receives if request]
    for request in left:
        with suppress(MPI.Exception):
            request.Cancel()
    until = perf_counter() + _PATIENCE
    while left := still_under_way(left):
        if perf_counter() > until:
            break
        sleep(_PAUSE)
    return left


def still_under_way(requests: Iterable[MPI.Request]) -> list[MPI.Request]:
    """The requests that have neither completed nor failed."""
    left = []
    for request in requests:
        with suppress(MPI.Exception):
            if request and not request.Test():
                left.append(request)
    return left
