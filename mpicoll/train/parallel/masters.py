"""Masters: what a rank updates where the parameters that ranks compute with have fewer bits."""

from __future__ import annotations

import numpy
from numpy.typing import DTypeLike

from ...buffers import compression_of
from ...codes import CompressionName
from ...support.arrays import Array, module_of
from ..optim import pieces


def take_written(masters: Array, parameters: Array, compression: CompressionName | None) -> None:
    """Give the masters the values that the program has written to parameters since they were sent.

    An element was written where it is not what ranks have of its master. compression: of what was
    sent; None where it was only rounded.
    """
    for part in pieces(masters):  # whole groups of codes, which stay in the cache
        written = parameters[part] != _sent(masters[part], parameters.dtype, compression)
        masters[part][written] = parameters[part][written]


def _sent(masters: Array, dtype: DTypeLike, compression: CompressionName | None) -> Array:
    """What the ranks have of them after they were sent."""
    with numpy.errstate(over="ignore"):
        rounded = masters.astype(dtype, copy=False)
    if compression is None:
        return rounded
    kind = compression_of(compression)
    module = module_of(masters)
    decoded = rounded.astype("float32")
    codes = module.empty(kind.groups(len(decoded)) * kind.nbytes, "uint8")
    kind.quantise(decoded, codes, module)
    sent: Array = decoded.astype(dtype, copy=False)
    return sent
