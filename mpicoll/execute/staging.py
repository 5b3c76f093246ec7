"""The memory a schedule runs on: the caller's where it will do, work arrays with copies before and after where it will not."""

import numpy as np

from .. import buffers, collectives
from ..schedule import INPUT, OUTPUT
from .scratch import Vector

BYTES = np.dtype(np.uint8)


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
