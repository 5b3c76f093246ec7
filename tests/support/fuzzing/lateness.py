"""A rank that comes later than others wait.

They give up, write to their arrays, and go on with another communicator.
"""

import time

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.errors import MpicollError

from .memory import Keepsake
from .neighbors import bind

#: how often all meet afterwards, so that MPI delivers what it still has, and seconds between
_MEETINGS, _PAUSE = 10, 2e-3


class LateStep:
    """Calls on a communicator of their own, which one rank makes late.

    keepsakes: the arrays of the calls that were given up here, as they were written to afterwards.
    """

    def __init__(self, step, wire: MPI.Intracomm, check: str):
        self.step, self.wire, self.check = step, wire, check
        self.rank = wire.Get_rank()
        self.is_late = wire.Get_size() > 1 and self.rank == step["late"] % wire.Get_size()
        self.keepsakes, self.problems = [], []

    def run(self):
        """All of it; collective."""
        comm = mpicoll.Communicator(self.wire.Dup(), check=self.check, timeout=self.step["limit"])
        bounds = [bind(call, comm) for call in self.step["calls"]]
        for bound in bounds:
            bound.fill(0)
        if self.is_late and self.step["when"] == "about":
            time.sleep(self.step["limit"])
        elif self.is_late:
            self.wire.Barrier()
        self._make(comm, bounds)
        if self.step["when"] != "about" and not self.is_late:
            self.wire.Barrier()
        self._meet()
        self.problems += [one.problem() for one in self.keepsakes]
        comm.Free()
        self._go_on()

    def _make(self, comm, bounds):
        """Make the calls; each ends with its result, or with an error and arrays written to."""
        begun = []
        for number, bound in enumerate(bounds):
            try:
                handle = bound.make(comm)
                if bound.call["form"] == "plan":
                    handle.Start()
                begun.append((number, bound, handle))
            except MpicollError:
                self._write(number, bound)
        for number, bound, handle in begun:
            try:
                if handle is not None:
                    handle.Wait()
                self.problems.append(bound.problem())
                if bound.call["form"] == "plan":
                    handle.Free()
            except MpicollError:
                self._write(number, bound)

    def _write(self, number, bound):
        for place, room in enumerate(bound.rooms):
            room.view(np.uint8)[...] = 100 + self.rank
            self.keepsakes.append(Keepsake(room, f"call {number}, given up, array {place}"))

    def _meet(self):
        """Time passes, and MPI gets the chance to deliver what is late."""
        for _ in range(_MEETINGS):
            self.wire.Barrier()
            time.sleep(_PAUSE)

    def _go_on(self):
        """Another communicator works."""
        comm = mpicoll.Communicator(self.wire.Dup(), check=self.check)
        total = np.ones(3000)
        comm.Allreduce(MPI.IN_PLACE, total, algorithm="ring")
        if not (total == comm.Get_size()).all():
            self.problems.append("the next communicator: a wrong sum")
        comm.Free()
