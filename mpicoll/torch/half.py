"""Sums of 16 bits by PyTorch, which converts many numbers at a time; the bits are those of NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import torch

from ..buffers import ops

#: elements from which on PyTorch would use several threads, which others need
_ALONE = 1 << 15


def teach() -> None:
    """Let all reductions of 16 bits in host memory be PyTorch's. Once done it is done."""
    functions = {"add": torch.add, "multiply": torch.mul, "maximum": torch.maximum, "minimum": torch.minimum}
    for dtype in (torch.float16, torch.bfloat16):
        for ufunc, function in functions.items():
            ops.REDUCERS[ufunc, str(dtype).removeprefix("torch.")] = _reducer(function, dtype)


def _reducer(function: Callable[..., object], dtype: torch.dtype) -> ops.Reducer:
    def view(array: numpy.ndarray[Any, Any]) -> tuple[torch.Tensor, ...]:
        array = array if array.flags.writeable else array.copy()
        return torch.from_numpy(array.view(numpy.int16)).view(dtype).split(_ALONE)

    def reduce(lower: Any, higher: Any, out: Any) -> None:
        with torch._C._DisableTorchDispatch():  # modes of the user see the call, not what it is made of
            for one, other, result in zip(view(lower), view(higher), view(out)):
                function(one, other, out=result)

    return reduce
