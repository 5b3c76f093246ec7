"""MPI's own calls, on the caller's buffers where MPI takes them and on packed ones otherwise."""

import numpy as np
from mpi4py import MPI

from .. import buffers, collectives
from ..buffers import in_place
from .plan import LowerCase
from .staging import BYTES


def native_method(comm, name):
    """mpi4py's own method, bound to this communicator."""
    return getattr(MPI.Intracomm, name).__get__(comm)


class NativeWork:
    """Arguments for MPI's own call: the caller's where MPI takes them, else packed bytes."""

    def __init__(self, call):
        self.loads, self.stores, self.release = [], [], [one.release for one in call.operands]
        self.arguments = list(call.arguments)
        if any(one.module is not np for one in call.operands):
            self.loads.append(buffers.synchronize)  # MPI reads device memory when it likes
        if call.op is not None and any(one.dtype is None for one in call.operands):
            return  # reductions of derived datatypes: MPI knows them, packed bytes would not do
        names = ("recv",) if call.collective is collectives.BCAST else ("send", "recv")
        for position, name in enumerate(names):
            one = getattr(call, name)
            if one is None and call.shared and not in_place(self.arguments[position]):
                self.arguments[position] = MPI.IN_PLACE
            elif one is not None and not one.foreign and (one.staged or one.datatype is None):
                self.arguments[position] = self._packed(call, one, name == "recv")

    def _packed(self, call, one, written):
        if one.staged:
            work = np.empty(one.nbytes, BYTES).view(one.dtype or BYTES)
            self.loads.append(lambda: one.load(work))
            if written:
                self.stores.append(lambda: one.store(work))
        else:
            work = one.vector
        if call.op is not None:
            return [work, one.datatype]
        return [work.view(BYTES), one.counts, MPI.BYTE] if one.counts is not None else [work.view(BYTES), MPI.BYTE]


class NativePlan(LowerCase):
    """MPI's persistent collective on packed buffers: packs at Start, writes back when it is done."""

    def __init__(self, request, work):
        self.request, self.work, self.started = request, work, False

    @classmethod
    def of(cls, call, info):
        """MPI's own persistent request where it takes the caller's buffers, else one with packing around it."""
        work = NativeWork(call)
        request = native_method(call.comm, call.method + "_init")(*work.arguments, info)
        return cls(request, work) if work.loads or any(one.datatype is None for one in call.operands) else request

    def Start(self):
        """Pack and start."""
        for load in self.work.loads:
            load()
        self.request.Start()
        self.started = True

    def Wait(self, status=None):
        """Wait and write back."""
        self.request.Wait(status)
        return self._finish()

    def Test(self, status=None):
        """True when done and written back."""
        return bool(self.request.Test(status)) and self._finish()

    def _finish(self):
        for store in self.work.stores if self.started else ():
            store()
        self.started = False
        return True

    def Free(self):
        """Free MPI's request."""
        self.request.Free()
        for release in self.work.release:
            release()
