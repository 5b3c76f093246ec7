"""CuPy, where it is installed, and arrays in device memory."""

import importlib
import importlib.util
from collections.abc import Callable
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from .. import errors
from .awareness import gpu_mode


@lru_cache(maxsize=None)
def optional_cupy() -> Any:
    """CuPy, or None where it is not installed."""
    return importlib.import_module("cupy") if importlib.util.find_spec("cupy") else None


def device_array(buffer: Any) -> Any:
    """The array over a buffer with __cuda_array_interface__, or None without CuPy.

    CuPy's over device memory, NumPy's over host memory.
    """
    cupy = optional_cupy()
    interface = buffer.__cuda_array_interface__
    if cupy is None:
        return None
    if pointer := interface["data"][0]:
        attributes = _query(cupy.cuda.runtime.pointerGetAttributes, pointer)
        if attributes.type < 2:  # unregistered or page-locked host memory
            return as_if_on_host(interface, buffer)
        require_current(attributes.device)
    if is_bfloat16(buffer):
        as_integers = {**interface, "typestr": "<u2"}
        buffer = SimpleNamespace(__cuda_array_interface__=as_integers, owner=buffer)
    return cupy.asarray(buffer)


def _query(function: Callable[..., Any], *arguments: object) -> Any:
    """Call a function of CUDA's runtime; raises BufferError where it fails (no working driver)."""
    try:
        return function(*arguments)
    except RuntimeError as error:  # CuPy's runtime errors are RuntimeErrors
        raise errors.BufferError(
            f"CUDA says nothing of this device array ({error}): "
            "`mpicoll info --gpu` says whether driver and device work"
        ) from error


def device_key(buffer: Any) -> tuple[Any, ...] | None:
    """Everything about a buffer in device memory that decides how it is served; None elsewhere."""
    interface = getattr(buffer, "__cuda_array_interface__", None)
    if interface is None or (cupy := optional_cupy()) is None:
        return None
    return (
        *interface["data"],
        interface["shape"],
        interface.get("strides"),
        interface["typestr"],
        str(getattr(buffer, "dtype", "")),
        interface.get("stream"),
        _query(cupy.cuda.runtime.getDevice),
        gpu_mode(),
    )


def require_current(device: int) -> None:
    """Raise BufferError for an array on another device than the current: CuPy would use a copy."""
    current = optional_cupy().cuda.runtime.getDevice()
    if device != current:
        raise errors.BufferError(
            f"the array is on device {device}, the current device is {current}: "
            f"make the array's own current first, as with cupy.cuda.Device({device}).use()"
        )


def is_bfloat16(buffer: object) -> bool:
    """Whether it holds bfloat16, which the interface shows as two untyped bytes."""
    return str(getattr(buffer, "dtype", "")).endswith("bfloat16")


def computes(dtype: "np.dtype[Any]") -> bool:
    """Whether CuPy computes with this type (bfloat16: since version 14)."""
    return dtype.name != "bfloat16" or int(optional_cupy().__version__.partition(".")[0]) >= 14


def as_if_on_host(interface: dict[str, Any], owner: object) -> Any:
    """A NumPy array over the memory that the interface describes."""
    return np.asarray(SimpleNamespace(__array_interface__={**interface, "version": 3}, owner=owner))


def at_device(location: int, nbytes: int, dtype: Any) -> Any:
    """A 1-d device array over memory at an address, which it does not keep alive."""
    interface = {"shape": (nbytes,), "typestr": "|u1", "data": (location, False), "version": 3}
    return optional_cupy().asarray(SimpleNamespace(__cuda_array_interface__=interface)).view(dtype)


def page_locked(nbytes: int, dtype: Any) -> Any:
    """Page-locked host memory, which a device copies asynchronously."""
    memory = optional_cupy().cuda.alloc_pinned_memory(nbytes)
    return np.frombuffer(memory, dtype, nbytes // np.dtype(dtype).itemsize)


#: in place of NumPy, for a pool of page-locked memory
PAGE_LOCKED = SimpleNamespace(empty=page_locked)
