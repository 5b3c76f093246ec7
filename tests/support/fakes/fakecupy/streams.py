"""Streams and events, and what is ordered before what.

Each operation has a number in its stream. A clock says, for each stream, up to which number
operations are known to be done: a stream has one, an event keeps that of its stream, and the
host's, `seen`, grows whenever a thread waits.
"""

import threading
from collections import Counter

_thread = threading.local()
_lock = threading.RLock()
_streams = []
seen = Counter()
#: called with nothing whenever the host has seen more
observers = []


def current_device():
    return getattr(_thread, "device", 0)


def use_device(number):
    _thread.device = number


class Stream:
    """A queue of one device. Those that block wait for the null stream, and it for them, as in CUDA."""

    def __init__(self, null=False, non_blocking=False, device=None):
        self.device_id = current_device() if device is None else device
        self.blocks, self.null = not non_blocking, null
        self.clock = Counter()
        with _lock:
            self.number = len(_streams)
            _streams.append(self)

    @staticmethod
    def from_external(stream):
        """As CuPy 14 has it; `ExternalStream` of those before it is `of_pointer`."""
        version, pointer = stream.__cuda_stream__()
        assert version == 0
        return of_pointer(pointer)

    @property
    def ptr(self):
        return 0 if self.null else 1000 + self.number

    def use(self):
        _currents()[self.device_id] = self
        return self

    def __enter__(self):
        before = _currents().get(self.device_id)
        _entered().append((self.device_id, before))
        return self.use()

    def __exit__(self, *_):
        device, before = _entered().pop()
        _currents()[device] = before

    def operate(self):
        """A new operation at the end of the queue; returns its number."""
        with _lock:
            self.clock |= seen
            if self.blocks:
                others = [one for one in _streams if one.blocks and one.device_id == self.device_id]
                for other in others if self.null else [one for one in others if one.null]:
                    self.clock |= other.clock
            self.clock[self.number] += 1
            return self.clock[self.number]

    def knows(self, stream, number):
        """Whether that operation is done before what is put here next."""
        return self.clock[stream] >= number

    def record(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event):
        with _lock:
            self.clock |= event.clock

    def synchronize(self):
        see(self.clock)

    @property
    def done(self):
        return all(seen[stream] >= number for stream, number in self.clock.items())


class Event:
    """Asked whether it is done, it first says no: a device takes its time."""

    def __init__(self, block=False, disable_timing=False, interprocess=False):
        self.clock, self.asked = Counter(), 0

    def record(self, stream=None):
        with _lock:
            self.clock, self.asked = Counter((stream or get_current_stream()).clock), 0

    def synchronize(self):
        see(self.clock)

    @property
    def done(self):
        self.asked += 1
        if self.asked > 1:
            see(self.clock)
        return self.asked > 1


def see(clock):
    """The host has waited for this."""
    from tests.support.fakes import fakecupy

    fakecupy.log.append("synchronize")
    with _lock:
        seen.update(clock - seen)
        for observe in observers:
            observe()


def get_current_stream():
    device = current_device()
    return _currents().get(device) or _nulls[device]


def of_pointer(pointer):
    """The stream that cudaStream_t means."""
    return _nulls[current_device()] if pointer < 2 else _streams[pointer - 1000]  # 1: cudaStreamLegacy


def _currents():
    if not hasattr(_thread, "streams"):
        _thread.streams = {}
    return _thread.streams


def _entered():
    if not hasattr(_thread, "entered"):
        _thread.entered = []
    return _thread.entered


_nulls = [Stream(null=True, device=number) for number in (0, 1)]
