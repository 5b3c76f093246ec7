"""Device memory that displacements or another type describe: its mirror in host memory."""

from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np

from .. import errors
from .device import optional_cupy
from .footprint import Described, Footprint, Strided
from .memory import address, at, check_contiguous
from .operand import Operand
from .streams import following, putting


#: a mirror is fetched whole, also bytes that another call is putting back at that moment: one after the other
_COPYING = Lock()


def mirrored(array: Any, describe: Callable[[Any], Operand]) -> Operand:
    """An operand over the host's mirror of a device array. describe: makes it of a host array.

    Only the bytes that are described are written back: those between them are others', who may be changing them.
    """
    check_contiguous(array)
    host = np.empty(array.size, array.dtype)
    result = describe(host)
    if result.nbytes:
        _connect(result, array, host)
    result.vector, result.device, result.mirror = None, array, host
    return result


def _connect(result: Operand, array: Any, host: Any) -> None:
    """Packing first fetches what is described, unpacking puts it back."""
    mine = result.footprint or Strided(result.vector)
    low, high = (end - address(host) for end in mine.span)
    if low < 0 or high > host.nbytes:
        raise errors.BufferError(f"the type and its count reach bytes {low} to {high} of an array of {host.nbytes} bytes")
    cupy, pack_host, unpack_host = optional_cupy(), *mine.copies()
    there, here = (whole.view(np.uint8)[low:high] for whole in (array.reshape(-1, order="A"), host))
    touched = None if result.footprint is None else cupy.asarray(_touched(mine, result.nbytes))

    def fetch() -> None:
        with _COPYING, following(result).fetch:
            cupy.asnumpy(there, out=here)

    def put() -> None:
        with _COPYING, putting(array):  # at its end the mirror may be written again, at the next call
            if touched is None:
                there[...] = cupy.asarray(here)
            else:
                cupy.copyto(there, cupy.asarray(here), where=touched)

    def pack(work: Any) -> None:
        fetch()
        pack_host(work)

    def unpack(work: Any) -> None:
        unpack_host(work)
        put()

    result.fetch, result.put, result.pack, result.unpack = fetch, put, pack, unpack
    result.footprint = _moved(mine, array.data.ptr - address(host))


def _touched(mine: Footprint, nbytes: int) -> Any:
    """Which bytes of its span a footprint touches."""
    low, high = mine.span
    room = np.zeros(high - low, np.uint8)
    mine.copies(address(room) - low)[1](np.ones(nbytes, np.uint8))
    return room.view(bool)


def _moved(mine: Footprint, shift: int) -> Footprint:
    """The same bytes in device memory; only their addresses are ever looked at."""
    if isinstance(mine, Described):
        return mine._replace(base=mine.base + shift)
    low, high = mine.span
    return Strided(at(low + shift, high - low, np.uint8))
