"""The calls of a group, as a number that ranks compare from time to time: a call in the wrong place is never silent for long.

Each call is compared when it is first met, not later: MPI then serves it, of whatever size it is on other ranks (quirk:
sizes-unchecked). Calls of data that only some ranks know the size of count by their kind alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from os import sched_yield
from typing import Any
from zlib import crc32

import numpy
from mpi4py import MPI

from ..communicator import Communicator
from ..errors import CollectiveMismatch
from ..execute import Context
from ..support.settings import OFF

#: calls from one comparison to the next
APART = 64
#: calls whose vector is as large on all ranks, and which of their arguments has that size
_ALIKE = {"Allreduce": 1, "Bcast": 0, "Allgather": 1, "Reduce_scatter_block": 0}


class CallSequence:
    """That of the calls on one communicator."""

    def __init__(self, comm: Communicator) -> None:
        self._comm, self._context = comm, Context.of(comm)
        self._calls = self._sum = 0
        self._asked: deque[tuple[MPI.Request, Any, int]] = deque()
        self._counts = comm.Get_size() > 1

    def enter(self, method: str, given: Sequence[Any]) -> None:
        """One more call, before it is made. Raises CollectiveMismatch where an earlier one was not that of the others."""
        if not self._counts or self._context.check == OFF:
            return
        self._calls += 1
        place = _ALIKE.get(method)
        size = "" if place is None else given[place].nbytes
        self._sum = crc32(f"{method} {size}".encode(), self._sum)
        self._look()
        if self._calls % APART == 0:
            words = numpy.array([self._sum, -self._sum])  # the largest of each: equal where all sums are
            request = MPI.Intracomm.Iallreduce(self._comm, MPI.IN_PLACE, words, MPI.MAX)
            self._asked.append((request, words, self._calls))

    def finish(self) -> None:
        """Wait for what is being compared, for as long as a call may take."""
        stall = self._context.queue.stall
        stall.restart()
        while self._asked and not self._context.broken:
            self._look()
            if stall.is_due:
                self._context.check_wait()
            sched_yield()

    def _look(self) -> None:
        while self._asked and self._asked[0][0].Test():
            _, words, number = self._asked.popleft()
            if words[0] != -words[1]:
                raise self._context.in_disorder(CollectiveMismatch(
                    f"rank {self._comm.Get_rank()}: of calls {number - APART + 1} to {number} of this group one or more "
                    "were not the same on all ranks, in kind or size, so that results since then may be wrong. "
                    "MPICOLL_CHECK=always names the first such call, with its line on each rank"))  # fmt: skip
