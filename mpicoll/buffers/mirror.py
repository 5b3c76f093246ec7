"""Device memory that displacements or another type describe: its mirror in host memory."""

from collections.abc import Callable
from threading import RLock
from typing import Any

import numpy as np

from .. import errors
from ..gpu import optional_cupy, putting
from .device import fetching
from .footprint import Described, Footprint, Strided, touched
from .memory import address, at, check_contiguous
from .operand import Operand

#: a mirror is fetched whole, also bytes that another call puts back: never at the same time
_COPYING = RLock()


def mirrored(array: Any, describe: Callable[[Any], Operand]) -> Operand:
    """An operand over a mirror of a device array. describe: makes the operand of a host array.

    Only described bytes are written back: others may be changing the bytes between them.
    """
    check_contiguous(array)
    host = np.empty(array.size, array.dtype)
    result = describe(host)
    if result.nbytes:
        _connect(result, array, host)
    result.vector = None
    result.typed = None
    result.device = array
    result.mirror = host
    return result


def _connect(result: Operand, array: Any, host: Any) -> None:
    """Make packing fetch the described bytes first, and unpacking put them back."""
    footprint = result.footprint or Strided(result.vector)
    low, high = (end - address(host) for end in footprint.span)
    if low < 0 or high > host.nbytes:
        reach = f"bytes {low} to {high} of an array of {host.nbytes} bytes"
        raise errors.BufferError(f"the type and its count reach {reach}")
    cupy = optional_cupy()
    pack_host, unpack_host = footprint.copies()
    on_device = array.reshape(-1, order="A").view(np.uint8)[low:high]
    on_host = host.view(np.uint8)[low:high]
    is_touched = None
    if result.footprint is not None:
        is_touched = cupy.asarray(touched(footprint, result.nbytes))

    def fetch() -> None:
        with _COPYING, fetching(result):
            cupy.asnumpy(on_device, out=on_host)

    def put() -> None:
        with _COPYING, putting(array):  # waits: the next call may write the mirror at once
            if is_touched is None:
                on_device[...] = cupy.asarray(on_host)
            else:
                cupy.copyto(on_device, cupy.asarray(on_host), where=is_touched)

    def pack(work: Any) -> None:
        fetch()
        pack_host(work)

    def unpack(work: Any) -> None:
        unpack_host(work)
        put()

    result.fetch = fetch
    result.put = put
    result.pack = pack
    result.unpack = unpack
    result.footprint = _moved(footprint, array.data.ptr - address(host))


def _moved(footprint: Footprint, shift: int) -> Footprint:
    """The same bytes in device memory; only their addresses are used."""
    if isinstance(footprint, Described):
        return footprint._replace(base=footprint.base + shift)
    low, high = footprint.span
    return Strided(at(low + shift, high - low, np.uint8))
