"""How the doctor's ranks wait: for a limited time, and asleep where they are not measured."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, TypeVar

from mpi4py import MPI

from ..errors import CollectiveTimeout
from ..support import settings

Value = TypeVar("Value")

#: seconds that a rank waits for others, unless MPICOLL_TIMEOUT says otherwise
LIMIT = 120.0
#: seconds between two looks of a rank that is not measured
NAP = 0.002
#: looks at a message that is measured, before the rank yields its core between them
_LOOKS = 200


class Patience:
    """Waits of one rank.

    crowded: whether ranks share cores, so that a rank that waits for a large message sleeps between
    its looks.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.crowded = False
        self._limit = settings.timeout() or LIMIT

    def meet(self, what: str) -> None:
        """A barrier of all ranks, asleep. what: the work before it, for the error."""
        request = self.comm.Ibarrier()
        end = time.perf_counter() + self._limit
        while not request.Test():
            self._check(end, f"ranks did not come to the end of {what}")
            time.sleep(NAP)

    def gather(self, value: Value, what: str) -> list[Value]:
        """The values of all ranks. Collective."""
        self.meet(what)
        return self.comm.allgather(value)

    def finish(self, requests: Sequence[MPI.Request], what: str, pause: float = 0.0) -> None:
        """Complete measured messages. pause: seconds between looks where cores are shared."""
        end = time.perf_counter() + self._limit
        looks = 0
        pending: list[Any] = list(requests)
        while not MPI.Request.Testall(pending):
            looks += 1
            if looks > _LOOKS:
                self._check(end, f"no message came in {what}")
                if self.crowded and pause:
                    time.sleep(pause)
                else:
                    os.sched_yield()

    def _check(self, end: float, what: str) -> None:
        if time.perf_counter() > end:
            raise CollectiveTimeout(
                f"mpicoll doctor: {what} for {self._limit:g} s (MPICOLL_TIMEOUT sets the limit):"
                " a rank hangs, or a link carries nothing"
            )
