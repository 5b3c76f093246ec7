"""A checksum of the calls of a group, which ranks compare from time to time to find a wrong order.

Calls count in the order in which they begin: MPI serves them even where they do not match (quirk:
sizes-unchecked). A call whose size only some ranks know counts by its kind alone.
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

#: calls between two comparisons
_INTERVAL = 64
#: methods whose vector has the same size on all ranks, and the number of the argument of that size
_SIZED_ARGUMENT = {"Allreduce": 1, "Bcast": 0, "Allgather": 1, "Reduce_scatter_block": 0}


class CallSequence:
    """The checksum of the calls on a communicator."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._context = Context.of(comm)
        self._calls = 0
        self._sum = 0
        #: comparisons under way: request, sums, and how many calls these count
        self._comparisons: deque[tuple[MPI.Request, Any, int]] = deque()
        self._has_peers = comm.Get_size() > 1

    def enter(self, method: str, arguments: Sequence[Any]) -> None:
        """Count a call, before it begins. Raises CollectiveMismatch where earlier calls differ."""
        if not self._has_peers or self._context.check == OFF:
            return
        self._calls += 1
        number = _SIZED_ARGUMENT.get(method)
        size = "" if number is None else arguments[number].nbytes
        self._sum = crc32(f"{method} {size}".encode(), self._sum)
        self._check()
        if self._calls % _INTERVAL == 0:
            # the maximum of each: they are equal where all sums are
            sums = numpy.array([self._sum, -self._sum])
            request = MPI.Intracomm.Iallreduce(self._comm, MPI.IN_PLACE, sums, MPI.MAX)
            self._comparisons.append((request, sums, self._calls))

    def finish(self) -> None:
        """Wait for the comparisons under way, for as long as a call may take."""
        stall = self._context.queue.stall
        stall.restart()
        while self._comparisons and not self._context.broken:
            self._check()
            if stall.is_due:
                self._context.check_wait()
            sched_yield()

    def _check(self) -> None:
        while self._comparisons and self._comparisons[0][0].Test():
            _, sums, last = self._comparisons.popleft()
            if sums[0] != -sums[1]:
                error = CollectiveMismatch(
                    f"rank {self._comm.Get_rank()}: of calls {last - _INTERVAL + 1} to {last} of "
                    "this group one or more were not the same on all ranks, in kind or size, so "
                    "that results since then may be wrong. MPICOLL_CHECK=always names the first "
                    "such call, with its line on each rank"
                )
                raise self._context.in_disorder(error)
