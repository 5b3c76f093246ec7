"""PyTorch tensors and arrays (NumPy on the host, CuPy on a device) that share memory."""

import numpy

from ...support.arrays import module_of
from ...support.optional import require

torch = require("torch")


def array_of(tensor):
    """The array in the memory of a contiguous tensor; bfloat16, which NumPy lacks, is that of ml_dtypes."""
    if tensor.dtype == torch.bfloat16:
        return array_of(tensor.view(torch.int16)).view(require("ml_dtypes").bfloat16)
    tensor = tensor.detach()
    return require("cupy").from_dlpack(tensor) if tensor.is_cuda else tensor.numpy()


def tensor_of(array):
    """The tensor in the memory of a contiguous array."""
    if array.dtype.name == "bfloat16":
        return tensor_of(array.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(array) if module_of(array) is numpy else torch.from_dlpack(array)


@torch.no_grad()
def broadcast(tensor, comm):
    """Give the tensor the values of rank 0, whatever its type and strides. Collective; one copy of it."""
    octets = tensor.reshape(-1).contiguous().view(torch.uint8)
    comm.Bcast(array_of(octets), root=0)
    tensor.copy_(octets.view(tensor.dtype).reshape(tensor.shape))
