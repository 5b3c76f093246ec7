"""Reductions of 16-bit floats by PyTorch, which converts vectors of them; same bits as NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import torch

from ..buffers import ops

#: elements of a piece; with more PyTorch would use several threads, and take cores of other ranks
_PIECE = 1 << 15


def teach() -> None:
    """Let PyTorch serve all reductions of 16-bit floats in host memory."""
    functions = {
        "add": torch.add,
        "multiply": torch.mul,
        "maximum": torch.maximum,
        "minimum": torch.minimum,
    }
    for dtype in (torch.float16, torch.bfloat16):
        for ufunc, function in functions.items():
            ops.REDUCERS[ufunc, str(dtype).removeprefix("torch.")] = _reducer(function, dtype)


def _reducer(function: Callable[..., object], dtype: torch.dtype) -> ops.Reducer:
    def view(array: numpy.ndarray[Any, Any]) -> tuple[torch.Tensor, ...]:
        array = array if array.flags.writeable else array.copy()
        return torch.from_numpy(array.view(numpy.int16)).view(dtype).split(_PIECE)

    def reduce(lower: Any, higher: Any, out: Any) -> None:
        pieces = zip(view(lower), view(higher), view(out))
        with torch._C._DisableTorchDispatch():  # modes of the user see the collective alone
            for a, b, result in pieces:
                function(a, b, out=result)

    return reduce
