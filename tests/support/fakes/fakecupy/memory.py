"""Memory of a device, and page-locked memory of the host: what a pointer sees, and what is still on
its way.

Values are known at once, but whoever reads by a pointer finds poison until the host has waited for
whoever wrote them; a stream that uses what another stream has not been ordered before is an error,
where a device would be silently wrong.
"""

import ctypes
import threading
import weakref

import numpy as np

from . import streams

POISON = 0xFF  # NaN, or -1
#: weak references; no WeakSet: another thread that forgets memory changes it while it is read
_allocations = []
_lock = threading.RLock()
_in_flight = []


class Race(AssertionError):
    """Two streams use the same memory, and neither waits for the other."""


class Allocation:
    """Bytes as a pointer sees them, as streams know them, which are on their way, and who wrote and read them last."""

    def __init__(self, nbytes, device):
        self.visible = np.full(nbytes, POISON, np.uint8)
        self.elsewhere = self.visible.copy()
        self.coming = np.empty(nbytes, np.uint8)
        self.pending = np.zeros(nbytes, bool)
        self.writer, self.reader = (np.zeros((2, nbytes), np.int64) for _ in range(2))  # stream, number
        self.device = device
        self.is_arriving = False
        #: read often: NumPy takes long to tell them
        self._addresses = [array.__array_interface__["data"][0] for array in (self.elsewhere, self.visible)]
        with _lock:
            _allocations.append(weakref.ref(self))

    @property
    def pointer(self):
        from tests.support.fakes import fakecupy

        return self._addresses[fakecupy.aware or self.device is None]

    def offset(self, view):
        """How far into these bytes a NumPy array over the visible ones begins."""
        return view.__array_interface__["data"][0] - self.visible.__array_interface__["data"][0]

    def arrive(self):
        """What the host has waited for is there."""
        with _lock:
            if self.is_arriving:
                numbers = np.array([streams.seen[stream] for stream in range(int(self.writer[0].max()) + 1)])
                there = self.pending & (numbers[self.writer[0]] >= self.writer[1])
                self.visible[there] = self.coming[there]
                self.pending[there] = False
                self.is_arriving = bool(self.pending.any())

    def read(self, where, stream):
        """The bytes at these places, as `stream` will find them. where: places; stream: after `operate`."""
        with _lock:
            self._require_order(self.writer, where[self.pending[where]], stream, "reads what")
            self.reader[0, where], self.reader[1, where] = stream.number, stream.clock[stream.number]
            return np.where(self.pending[where], self.coming[where], self.visible[where])

    def write(self, where, values, stream):
        """What `stream` will write there."""
        with _lock:
            self._require_order(self.writer, where[self.pending[where]], stream, "writes where")
            unread = where[self.reader[1, where] > 0]
            self._require_order(self.reader, unread, stream, "writes what is read where")
            self.coming[where], self.pending[where], self.visible[where] = values, True, POISON
            self.writer[0, where], self.writer[1, where] = stream.number, stream.clock[stream.number]
            self.is_arriving = self.is_arriving or len(where) > 0

    @staticmethod
    def _require_order(last, where, stream, what):
        others, numbers = last[:, where]
        for other in np.unique(others):  # an operation of a stream comes after those before it
            if not stream.knows(other, numbers[others == other].max()):
                raise Race(f"stream {stream.number} {what} stream {other} works, and was not ordered after it")


def _living():
    found = [(reference, reference()) for reference in list(_allocations)]
    for reference, memory in found:
        if memory is None and reference in _allocations:  # else a finalizer came in between
            _allocations.remove(reference)
    return [memory for _, memory in found if memory is not None]


def arrive_all():
    with _lock:
        for memory in _living():
            memory.arrive()
        for flight in list(_in_flight):
            if streams.seen[flight[0]] >= flight[1]:
                _in_flight.remove(flight)
                if not np.array_equal(flight[2], flight[3]):
                    raise Race("page-locked memory was overwritten before it was copied to the device")


streams.observers.append(arrive_all)


def owner(location):
    """The allocation that an address lies in, or None: memory of the host that CUDA does not know."""
    with _lock:
        for memory in _living():
            if 0 <= location - memory.pointer < max(1, memory.visible.nbytes):
                return memory
    return None


def memcpy_async(destination, source, nbytes, kind, pointer):
    """cudaMemcpyAsync: between a device and page-locked memory it does not wait; other host memory is waited for."""
    from tests.support.fakes import fakecupy

    stream = streams.of_pointer(pointer)
    number = stream.operate()
    into, out_of = owner(destination), owner(source)
    fakecupy.log.append(_named(out_of, into))
    fakecupy.copies.append((_named(out_of, into), nbytes))
    if out_of is None:
        values = _host(source, nbytes).copy()
    else:
        values = out_of.read(_places(out_of, source, nbytes), stream)
        if out_of.device is None:
            held = out_of.visible[_places(out_of, source, nbytes)[0] :][:nbytes]
            _in_flight.append((stream.number, number, held, held.copy()))
    if into is None:
        stream.synchronize()
        _host(destination, nbytes)[:] = values
    else:
        into.write(_places(into, destination, nbytes), values, stream)


def _named(out_of, into):
    host = [one is None or one.device is None for one in (out_of, into)]
    return "fetch" if host == [False, True] else "put" if host == [True, False] else "copy"


def _places(memory, location, nbytes):
    start = location - memory.pointer
    return np.arange(start, start + nbytes)


def _host(location, nbytes):
    from mpi4py import MPI

    return np.frombuffer(MPI.memory.fromaddress(location, nbytes), np.uint8)


def alloc_pinned_memory(nbytes):
    """Page-locked memory of the host, seen as bytes; all that is made from them keeps it."""
    made = Allocation(nbytes, None)
    seen = (ctypes.c_char * nbytes).from_buffer(made.visible)
    seen.allocation = made
    return seen
