"""PyTorch tensors and arrays (NumPy on the host, CuPy on a device) that share memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import numpy

from .arrays import Array, element_type, module_of
from .gpus import stream_at
from .optional import require

__all__ = ["array_of", "broadcast", "in_torchs_stream", "tensor_of", "torch", "torchs_stream"]

if TYPE_CHECKING:
    import torch
    from mpi4py import MPI
else:
    torch = require("torch")


def array_of(tensor: torch.Tensor) -> Array:
    """The array in the memory of a contiguous tensor; ml_dtypes has bfloat16, which NumPy lacks."""
    if tensor.dtype == torch.bfloat16:
        return array_of(tensor.view(torch.int16)).view(element_type("bfloat16"))
    tensor = tensor.detach()
    array: Array = require("cupy").from_dlpack(tensor) if tensor.is_cuda else tensor.numpy()
    return array


def tensor_of(array: Array) -> torch.Tensor:
    """The tensor in the memory of a contiguous array."""
    if array.dtype.name == "bfloat16":
        return tensor_of(array.view("int16")).view(torch.bfloat16)
    if module_of(array) is numpy:
        return torch.from_numpy(array)
    return torch.utils.dlpack.from_dlpack(array)


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@contextmanager
def torchs_stream(device: torch.device) -> Iterator[None]:
    """Let CuPy use this device and PyTorch's current stream, which each thread has of its own."""
    if device.type != "cuda":
        yield
        return
    stream = stream_at(torch.cuda.current_stream(device).cuda_stream)
    with torch.cuda.device(device), stream:
        yield


def in_torchs_stream(
    method: Callable[Concatenate[Any, Arguments], Result],
) -> Callable[Concatenate[Any, Arguments], Result]:
    """Wrap a method of an object with a `device`; PyTorch may call it in threads of its own."""

    @wraps(method)
    def run(self: Any, *arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        with torchs_stream(self.device):
            return method(self, *arguments, **named)

    return run


@torch.no_grad()
def broadcast(tensor: torch.Tensor, comm: MPI.Intracomm) -> None:
    """Give the tensor the values of rank 0; any type and strides. Collective; it makes a copy."""
    octets = tensor.reshape(-1).contiguous().view(torch.uint8)
    comm.Bcast(array_of(octets), root=0)
    tensor.copy_(octets.view(tensor.dtype).reshape(tensor.shape))
