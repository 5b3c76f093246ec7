"""The memory of flat buffers; other ranks of the node read the host's in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy

from ...support.arrays import Array, module_of

if TYPE_CHECKING:
    from ...communicator import Communicator


def zeros(size: int, like: Array, comm: Communicator) -> Array:
    """A vector of zeros, of the dtype of an array and where that is.

    Local. Raises ArgumentError without such memory.
    """
    module = module_of(like)
    array: Array = (
        comm.zeros(size, like.dtype) if module is numpy else module.zeros(size, like.dtype)
    )
    return array
