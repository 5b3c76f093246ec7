"""The memory a call runs on: the caller's where it will do, work arrays with copies before and after where it will not."""

import numpy as np
from mpi4py import MPI

from . import buffers, collectives
from .buffers import in_place
from .execute import LowerCase
from .memory import Vector
from .schedule import INPUT, OUTPUT

BYTES = np.dtype(np.uint8)


def native_method(comm, name):
    """mpi4py's own method, bound to this communicator."""
    return getattr(MPI.Intracomm, name).__get__(comm)


class Work:
    """The vectors a schedule runs on: the caller's memory, or work arrays from the pool with copies before and after."""

    def __init__(self, call, wire, edges):
        self.call, self.wire, self.edges = call, wire, edges
        self.vectors, self.loads, self.stores, self.release = {}, [], [], []
        before, after = (condition(call.rank, call.size, len(edges) - 1, call.root or 0)
                         for condition in (call.collective.before, call.collective.after))
        send, recv = (self._array(one, one is call.recv) for one in (call.send, call.recv))
        if call.collective is collectives.REDUCE_SCATTER and call.shared:
            self._result_to_front(recv, after)
            return
        if after is not None and recv is not None:
            self.vectors[OUTPUT] = self._vector(recv, after)
        if before is not None and before.place == INPUT:
            source = send if send is not None else recv
            self.vectors[INPUT] = self._vector(source, before)
        if after is not None and recv is None:  # Scatter in place at the root: its block stays where it is
            self.vectors[OUTPUT] = self._vector(send, after)

    def _vector(self, array, part):
        """The array as the vector's elements from this part on; an in-place block lies inside the whole vector."""
        low, high = self.edges[part.first], self.edges[part.first + part.count]
        if array.size == self.edges[-1] != high - low:
            array = array[low:high]
        return Vector(array, low)

    def _array(self, one, written):
        if one is None:
            return None
        if not one.staged:
            vector = one.vector.view(self.call.dtype)
            # by address: a plan kept for repeated calls must not keep the caller's memory alive
            return buffers.at(buffers.address(vector), one.nbytes, self.call.dtype) if one.module is np else vector
        raw = self.wire.take(one.nbytes, np)
        self.release.append(lambda: self.wire.give(raw, np))
        self.release.append(one.release)
        work = raw[: one.nbytes].view(one.dtype or BYTES)
        # a receive buffer is loaded too: in place it is the input, and what a call leaves alone must come back as it was
        self.loads.append(lambda: one.load(work))
        if written:
            self.stores.append(lambda: one.store(work))
        return work.view(self.call.dtype)

    def _result_to_front(self, recv, after):
        """Reduce_scatter in place: the input is the receive buffer, the result goes to its front at the end."""
        size = self.edges[after.first + 1] - self.edges[after.first]
        raw = self.wire.take(size * self.call.dtype.itemsize, self.call.module)
        wire, module = self.wire, self.call.module
        self.release.append(lambda: wire.give(raw, module))
        result = raw[: size * self.call.dtype.itemsize].view(self.call.dtype)
        self.vectors = {INPUT: Vector(recv), OUTPUT: Vector(result, self.edges[after.first])}
        if module is not np:
            self.stores.append(buffers.synchronize)
        self.stores.insert(0, lambda: module.copyto(recv[:size], result))


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
