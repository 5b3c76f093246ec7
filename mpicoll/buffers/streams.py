"""Streams of a device: the caller's, and our own two, on which copies and reductions run beside the caller's kernels.

A device-wide wait would wait for the caller's kernels too. So there is none: an event of the caller's stream makes our
streams wait for what the caller has asked of the device by then, and the host waits for our own events.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from mpi4py import MPI

from .device import optional_cupy
from .operand import Operand


class Streams:
    """Two streams of one device that wait for no other. fetch: copies to the host, and reductions; put: the way back."""

    def __init__(self) -> None:
        cuda = optional_cupy().cuda
        self.fetch, self.put = (cuda.Stream(non_blocking=True) for _ in range(2))

    def follow(self, one: Operand) -> None:
        """Wait, on the device, for what the caller has asked it to do for this operand by now, or by its `begun`."""
        for own in (self.fetch, self.put):
            own.wait_event(one.begun or one.caller_stream().record())


@lru_cache(maxsize=None)
def streams_of(device: int) -> Streams:
    """Those of a device, which is current."""
    return Streams()


def current_streams() -> Streams:
    """Those of the current device."""
    return streams_of(optional_cupy().cuda.runtime.getDevice())


def caller_stream(buffer: Any) -> Callable[[], Any]:
    """How to find the stream that the work of a buffer's owner is in: PyTorch's current one, a named one, or CuPy's."""
    cuda, library = optional_cupy().cuda, type(buffer).__module__.partition(".")[0]
    if library == "torch":
        torch: Any = sys.modules["torch"]
        return lambda: cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
    named = getattr(buffer, "__cuda_array_interface__", {}).get("stream")
    if named and library != "cupy":
        return lambda: cuda.ExternalStream(named)
    found: Callable[[], Any] = cuda.get_current_stream
    return found


class Arrival:
    """An event as a request: Test() and Wait(), in which MPI goes on."""

    def __init__(self, event: Any) -> None:
        self.event = event

    def Test(self) -> bool:
        """Whether the device has come so far."""
        if self.event.done:
            return True
        MPI.COMM_SELF.Iprobe()  # messages that are under way go on
        return False

    def Wait(self) -> None:
        """Until the device has come so far."""
        while not self.Test():
            pass


class DeviceCopy(Arrival):
    """A copy between memory of the host and of a device, which can be started again and again.

    stream: where it runs. The memory is known by address, so that no copy keeps the caller's array alive.
    """

    def __init__(self, into: int, out_of: int, nbytes: int, stream: Any) -> None:
        cuda = optional_cupy().cuda
        super().__init__(cuda.Event(disable_timing=True))
        self._copy, self._stream = cuda.runtime.memcpyAsync, stream
        self._arguments = into, out_of, nbytes, cuda.runtime.memcpyDefault, stream.ptr

    def start(self) -> "DeviceCopy":
        """Begin; returns itself, to be waited for."""
        self._copy(*self._arguments)
        self.event.record(self._stream)
        return self


def on_stream(stream: Any, function: Callable[..., object], event: Any = None) -> Callable[..., None]:
    """The function, with this stream current while it runs; event: recorded after it."""

    def run(*arguments: object) -> None:
        with stream:
            function(*arguments)
        if event is not None:
            event.record(stream)

    return run


@contextmanager
def putting(array: Any) -> Iterator[Streams]:
    """Write a device array, whatever the thread's own device is; what is asked for inside is waited for at the end."""
    with array.device, (own := current_streams()).put:
        yield own
    own.put.synchronize()


def device_packing(array: Any) -> tuple[Callable[[Any], None], Callable[[Any], None]]:
    """(pack, unpack) between a device array of any strides and a vector on the device; unpacking is waited for."""
    cupy = optional_cupy()

    def pack(work: Any) -> None:
        with current_streams().fetch:
            cupy.copyto(work.view(array.dtype).reshape(array.shape), array)

    def unpack(work: Any) -> None:
        with putting(array) as own:
            own.put.wait_event(own.fetch.record())
            cupy.copyto(array, work.view(array.dtype).reshape(array.shape))

    return pack, unpack


def host_copies(one: Operand) -> tuple[Callable[[Any], object], Callable[[Any], object]]:
    """(pack, unpack) between an operand, wherever it lies, and a work array of the host: copies that are waited for."""
    array = one.device
    if array is None or one.mirror is not None:
        return one.pack, one.unpack
    cupy, order = optional_cupy(), "C" if array.flags.c_contiguous or not array.flags.f_contiguous else "F"

    def pack(work: Any) -> None:
        with following(one).fetch:
            cupy.asnumpy(array.ravel(order=order), out=work.view(array.dtype))

    def unpack(work: Any) -> None:
        with putting(array):
            array[...] = cupy.asarray(work.view(array.dtype)).reshape(array.shape, order=order)

    return pack, unpack


def following(one: Operand) -> Streams:
    """The current device's streams, after what the caller has asked it to do for this operand."""
    own = current_streams()
    own.follow(one)
    return own
