"""Operands in device memory: what is waited for, and how they travel through the host."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..gpu import DeviceCopy, Streams, as_if_on_host, current_streams, optional_cupy, putting
from ..support.arrays import Device
from .footprint import Strided
from .memory import address
from .operand import Operand


def footprint_of(array: Any) -> Strided:
    """The footprint of device memory; only its addresses are used."""
    stand_in = as_if_on_host(array.__cuda_array_interface__, array)
    contiguous = array.flags.c_contiguous or array.flags.f_contiguous
    return Strided(stand_in.reshape(-1, order="A") if contiguous else stand_in)


def device_of(operands: Iterable[Operand]) -> Device | None:
    """The current device of this thread, for the thread that serves the call.

    None where no operand is on a device.
    """
    if all(operand.device is None for operand in operands):
        return None
    current: Device = optional_cupy().cuda.Device()
    return current


@contextmanager
def reading(operand: Operand) -> Iterator[None]:
    """The context to read an operand in: on a device, our stream, which follows the caller's."""
    if operand.device is None or operand.packs_on is np:
        yield
    else:
        with current_streams().fetch:
            yield


@contextmanager
def writing(operand: Operand) -> Iterator[None]:
    """The context to write an operand in, after what was computed."""
    if operand.device is None or operand.packs_on is np:
        yield
    else:
        with putting(operand.device) as own:
            own.put.wait_event(own.fetch.record())
            yield


def note_begin(operands: Iterable[Operand]) -> None:
    """Record the begin of a call in the caller's stream, for the thread that serves it later."""
    for operand in operands:
        if operand.device is not None:
            operand.begun = operand.caller_stream().record()


def stage(operand: Operand) -> None:
    """Make device memory travel through the host, although MPI takes device pointers."""
    operand.staged = operand.device is not None and operand.mirror is None


@contextmanager
def fetching(operand: Operand) -> Iterator[Streams]:
    """Read an array on any device of the process, after the caller's work on it until now."""
    with operand.device.device:
        own = current_streams()
        own.follow(operand.caller_event())  # before: its stream may be the current one
        with own.fetch:
            yield own


def host_copies(operand: Operand) -> tuple[Callable[[Any], object], Callable[[Any], object]]:
    """(pack, unpack) between an operand in any memory and a work array of the host.

    Both wait for their copy.
    """
    array = operand.device
    if array is None or operand.mirror is not None:
        return operand.pack, operand.unpack
    if array.flags.c_contiguous or array.flags.f_contiguous:
        return _whole_copies(operand)
    cupy = optional_cupy()

    def pack(work: Any) -> None:
        with fetching(operand):
            cupy.asnumpy(array.ravel(), out=work.view(array.dtype))

    def unpack(work: Any) -> None:
        with putting(array):
            array[...] = cupy.asarray(work.view(array.dtype)).reshape(array.shape)

    return pack, unpack


def _whole_copies(operand: Operand) -> tuple[Callable[[Any], None], Callable[[Any], None]]:
    """The same of an array without gaps: its bytes, by the copy engine, without a kernel."""
    array = operand.device

    def pack(work: Any) -> None:
        with fetching(operand) as own:
            DeviceCopy(address(work), array.data.ptr, array.nbytes, own.fetch).start()
            own.fetch.synchronize()

    def unpack(work: Any) -> None:
        with putting(array) as own:
            DeviceCopy(array.data.ptr, address(work), array.nbytes, own.put).start()

    return pack, unpack
