"""Requests of MPI's that are given up: receives are cancelled, and what MPI may still use is told."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from time import perf_counter, sleep
from typing import Protocol, runtime_checkable

from mpi4py import MPI

#: what calls that were ended in the middle had in use: MPI may still write there, so it is never given back
ABANDONED: list[object] = []
#: seconds for which a receive is awaited that can no longer be cancelled: its message is just coming
_PATIENCE = 1.0
_PAUSE = 1e-4


@runtime_checkable
class Withdrawable(Protocol):
    """What has messages under way that can be given up."""

    def withdraw(self) -> list[MPI.Request]:
        """Give them up: no other rank changes this one's memory from now on. Returns what MPI may still use, if anything."""
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
    """Those of requests that have not ended, well or not."""
    left = []
    for request in requests:
        with suppress(MPI.Exception):
            if request and not request.Test():
                left.append(request)
    return left
