"""A vote: whether any rank says yes, asked while something else is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy
from mpi4py import MPI

if TYPE_CHECKING:
    from ...communicator import Communicator


class Vote:
    """One at a time: `begin` on all ranks, later `end` on all."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._yes = numpy.zeros(1, "i4")
        self._request: MPI.Request | None = None

    def begin(self, yes: bool) -> None:
        """Ask all ranks."""
        self._yes[0] = yes
        self._request = self._comm.Iallreduce(
            MPI.IN_PLACE, self._yes, op=MPI.MAX, algorithm="native"
        )

    def end(self) -> bool:
        """Whether any rank said yes, the same on all; False where nothing was asked."""
        if self._request is None:
            return False
        self._request.Wait()
        self._request = None
        return bool(self._yes[0])
