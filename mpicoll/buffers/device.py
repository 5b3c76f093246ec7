"""Device memory: CuPy arrays, and how they travel through the host."""

import importlib
import importlib.util
from collections.abc import Callable, Iterable
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from .. import errors
from ..support.arrays import Device
from .awareness import gpu_mode
from .footprint import Strided
from .operand import Operand


@lru_cache(maxsize=None)
def optional_cupy() -> Any:
    """CuPy, or None where it is not installed."""
    return importlib.import_module("cupy") if importlib.util.find_spec("cupy") else None


def device_array(buffer: Any) -> Any:
    """The array over a buffer with __cuda_array_interface__: CuPy's, NumPy's over host memory; None without CuPy."""
    cupy, interface = optional_cupy(), buffer.__cuda_array_interface__
    if cupy is None:
        return None
    if pointer := interface["data"][0]:
        attributes = _asked(cupy.cuda.runtime.pointerGetAttributes, pointer)
        if attributes.type < 2:  # unregistered or page-locked host memory
            return _as_if_on_host(interface, buffer)
        require_current(attributes.device)
    if is_bfloat16(buffer):
        buffer = SimpleNamespace(__cuda_array_interface__={**interface, "typestr": "<u2"}, owner=buffer)
    return cupy.asarray(buffer)


def _asked(question: Callable[..., Any], *given: object) -> Any:
    """What CUDA answers; BufferError where it does not, as without a driver that works."""
    try:
        return question(*given)
    except RuntimeError as error:  # CuPy's runtime errors are RuntimeErrors
        raise errors.BufferError(
            f"CUDA says nothing of this device array ({error}): `mpicoll info --gpu` says whether driver and device work"
        ) from error


def device_key(buffer: Any) -> tuple[Any, ...] | None:
    """All that decides how device memory is served, which the buffer alone tells; None for any other memory."""
    interface = getattr(buffer, "__cuda_array_interface__", None)
    if interface is None or (cupy := optional_cupy()) is None:
        return None
    strides, stream = interface.get("strides"), interface.get("stream")
    device, dtype = _asked(cupy.cuda.runtime.getDevice), str(getattr(buffer, "dtype", ""))
    return *interface["data"], interface["shape"], strides, interface["typestr"], dtype, stream, device, gpu_mode()


def require_current(device: int) -> None:
    """Raise BufferError for an array on another device than the thread's: CuPy would copy it, and the copy be reduced."""
    current = optional_cupy().cuda.runtime.getDevice()
    if device != current:
        raise errors.BufferError(
            f"the array is on device {device}, the current device is {current}: "
            f"make the array's own current first, as with cupy.cuda.Device({device}).use()"
        )


def is_bfloat16(buffer: object) -> bool:
    """Whether it holds bfloat16, which the interface shows as two bytes of nothing in particular."""
    return str(getattr(buffer, "dtype", "")).endswith("bfloat16")


def computes(dtype: "np.dtype[Any]") -> bool:
    """Whether CuPy computes with this type; bfloat16 it knows since version 14."""
    return dtype.name != "bfloat16" or int(optional_cupy().__version__.partition(".")[0]) >= 14


def footprint_of(array: Any) -> Strided:
    """The footprint of device memory; only its addresses are ever looked at."""
    alike = _as_if_on_host(array.__cuda_array_interface__, array)
    contiguous = array.flags.c_contiguous or array.flags.f_contiguous
    return Strided(alike.reshape(-1, order="A") if contiguous else alike)


def _as_if_on_host(interface: dict[str, Any], owner: object) -> Any:
    return np.asarray(SimpleNamespace(__array_interface__={**interface, "version": 3}, owner=owner))


def at_device(location: int, nbytes: int, dtype: Any) -> Any:
    """A 1-d device array over memory at an address, which it does not keep alive."""
    interface = {"shape": (nbytes,), "typestr": "|u1", "data": (location, False), "version": 3}
    return optional_cupy().asarray(SimpleNamespace(__cuda_array_interface__=interface)).view(dtype)


def device_of(operands: Iterable[Operand]) -> Device | None:
    """The GPU that this thread uses, for another thread to use it (CUDA keeps one per thread).

    None where no operand is on a device.
    """
    if all(one.device is None for one in operands):
        return None
    current: Device = optional_cupy().cuda.Device()
    return current


def note_begin(operands: Iterable[Operand]) -> None:
    """The call begins now, in this thread and stream, wherever it is served."""
    for one in operands:
        if one.device is not None:
            one.begun = one.caller_stream().record()


def stage(one: Operand) -> None:
    """Keep device memory from MPI, which could read it; host memory stays as it is."""
    one.staged = one.device is not None and one.mirror is None


def page_locked(nbytes: int, dtype: Any) -> Any:
    """Host memory that a device copies to and from while the host does something else."""
    memory = optional_cupy().cuda.alloc_pinned_memory(nbytes)
    return np.frombuffer(memory, dtype, nbytes // np.dtype(dtype).itemsize)


#: as a module of arrays, for a pool
PAGE_LOCKED = SimpleNamespace(empty=page_locked)
