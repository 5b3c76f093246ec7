"""Streams of a device: the caller's, and two of our own beside it for copies and reductions.

A device-wide wait would also wait for the caller's kernels, so there is none: our streams wait for
an event of the caller's stream, and the host waits for events of ours.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mpi4py import MPI

from ..support.gpus import stream_at
from .device import optional_cupy


class Streams:
    """Two streams of one device that wait for no other stream."""

    def __init__(self) -> None:
        cuda = optional_cupy().cuda
        #: reductions, and copies from the caller's memory
        self.fetch = cuda.Stream(non_blocking=True)
        #: copies into the caller's memory
        self.put = cuda.Stream(non_blocking=True)

    def follow(self, event: Any) -> None:
        """Make the device wait for an event of another stream."""
        for own in (self.fetch, self.put):
            own.wait_event(event)


#: by device
_STREAMS: dict[int, Streams] = {}


def streams_of(device: int) -> Streams:
    """Our streams on a device, which is the current device: the same in all threads."""
    return _STREAMS.get(device) or _STREAMS.setdefault(device, Streams())


def current_streams() -> Streams:
    """Our streams on the current device."""
    return streams_of(optional_cupy().cuda.runtime.getDevice())


def caller_stream(buffer: Any) -> Callable[[], Any]:
    """A function that returns the stream of the buffer's owner.

    PyTorch's current stream, the stream that the buffer names, or CuPy's current stream.
    """
    library = type(buffer).__module__.partition(".")[0]
    if library == "torch":
        torch: Any = sys.modules["torch"]
        return lambda: stream_at(torch.cuda.current_stream().cuda_stream)
    named = getattr(buffer, "__cuda_array_interface__", {}).get("stream")
    if named and library != "cupy":
        return lambda: stream_at(named)
    current_of_cupy: Callable[[], Any] = optional_cupy().cuda.get_current_stream
    return current_of_cupy


class Arrival:
    """An event as a request: Test() and Wait(), which let MPI progress."""

    def __init__(self, event: Any) -> None:
        self.event = event

    def Test(self) -> bool:
        """Whether the device has reached the event."""
        if self.event.done:
            return True
        MPI.COMM_SELF.Iprobe()  # progress of messages in flight
        return False

    def Wait(self) -> None:
        """Wait until the device has reached the event."""
        while not self.Test():
            pass


class DeviceCopy(Arrival):
    """A copy between memory of the host and of a device, which can be started repeatedly.

    stream: where it runs. The copy holds addresses, so it does not keep the caller's array alive.
    """

    def __init__(self, into: int, out_of: int, nbytes: int, stream: Any) -> None:
        cuda = optional_cupy().cuda
        super().__init__(cuda.Event(disable_timing=True))
        self._copy = cuda.runtime.memcpyAsync
        self._stream = stream
        self._arguments = into, out_of, nbytes, cuda.runtime.memcpyDefault, stream.ptr

    def start(self) -> "DeviceCopy":
        """Start the copy; returns itself as the request."""
        self._copy(*self._arguments)
        self.event.record(self._stream)
        return self


def on_stream(
    stream: Any, function: Callable[..., object], event: Any = None
) -> Callable[..., None]:
    """The function, with this stream current while it runs; event: recorded after it."""

    def run(*arguments: object) -> None:
        with stream:
            function(*arguments)
        if event is not None:
            event.record(stream)

    return run


@contextmanager
def putting(array: Any) -> Iterator[Streams]:
    """Write a device array, on any device of the process; waits for the writes at the end."""
    with array.device, (own := current_streams()).put:
        yield own
    own.put.synchronize()


def device_packing(array: Any) -> tuple[Callable[[Any], None], Callable[[Any], None]]:
    """(pack, unpack) between a device array of any strides and a vector on the device.

    Only unpacking waits for its copy.
    """
    cupy = optional_cupy()

    def pack(work: Any) -> None:
        with current_streams().fetch:
            cupy.copyto(work.view(array.dtype).reshape(array.shape), array)

    def unpack(work: Any) -> None:
        with putting(array) as own:
            own.put.wait_event(own.fetch.record())
            cupy.copyto(array, work.view(array.dtype).reshape(array.shape))

    return pack, unpack
