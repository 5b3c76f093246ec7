"""Arrays in the memory of tensors, for collectives to read and write in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy
import torch

from ..buffers import at
from ..errors import BufferError
from ..support.arrays import Array, element_type
from ..support.tensors import array_of

#: a last step of a call, which copies results from other memory into tensors, for example
Finish = Callable[[], object]

#: types that NumPy has by the same name
_SHARED_TYPES = set(
    "float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 complex64 "
    "complex128".split()
)


@cache
def elements(dtype: torch.dtype) -> numpy.dtype[Any] | None:
    """NumPy's type of the elements; None where there is none, so that they can only be moved."""
    name = str(dtype).removeprefix("torch.")
    if name == "bool":
        return numpy.dtype("uint8")
    if name == "bfloat16":
        return element_type(name)
    return numpy.dtype(name) if name in _SHARED_TYPES else None


class Arrays:
    """A cache of arrays over the host memory of tensors, for calls that are repeated.

    The arrays do not own the memory. That is why they are not made by `tensor.numpy()`: PyTorch
    refuses to resize a storage that NumPy shares.
    """

    def __init__(self) -> None:
        self._cache: dict[tuple[int, int, torch.dtype], Any] = {}

    def of(self, tensor: torch.Tensor) -> Array:
        """The array of a contiguous tensor."""
        if not tensor.is_cpu:
            return array_of(tensor)
        key = tensor.data_ptr(), tensor.numel(), tensor.dtype
        array = self._cache.get(key)
        if array is None:
            if len(self._cache) >= 256:
                self._cache.clear()
            array = array_at(tensor)
            self._cache[key] = array
        return array


def array_at(tensor: torch.Tensor) -> Array:
    """A new array over a contiguous tensor in host memory.

    It has bytes where NumPy lacks the type of the elements, and int16 for bfloat16.
    """
    kind = numpy.dtype("int16") if tensor.dtype is torch.bfloat16 else elements(tensor.dtype)
    if kind is None:
        kind = numpy.dtype("uint8")
    return at(tensor.data_ptr(), tensor.numel() * tensor.element_size(), kind)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The values in contiguous memory: the tensor itself where it is contiguous."""
    if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        return tensor
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def writing(target: torch.Tensor, read: bool = False) -> tuple[torch.Tensor, list[Finish]]:
    """Contiguous memory in the place of a tensor, and the steps that copy it into the tensor.

    read: the memory starts with the tensor's values.
    """
    values = plain(target)
    if values is target:
        return target, []
    values = values if read else torch.empty_like(values)
    return values, [lambda: target.copy_(values)]


def joined(tensors: Sequence[torch.Tensor], read: bool = True) -> torch.Tensor:
    """The tensors as a single vector: in their own memory where that is contiguous.

    read: with their values.
    """
    total = sum(tensor.numel() for tensor in tensors)
    if _follow_each_other(tensors):
        return tensors[0].detach().as_strided((total,), (1,))
    if read:
        return torch.cat([plain(tensor.detach()).reshape(-1) for tensor in tensors])
    return tensors[0].new_empty(total)


def parting(whole: torch.Tensor, tensors: Sequence[torch.Tensor]) -> list[Finish]:
    """The steps that copy a vector, made by `joined`, into its tensors."""
    if whole.data_ptr() == tensors[0].data_ptr() and whole.numel():
        return []

    def part() -> None:
        parts = whole.split([tensor.numel() for tensor in tensors])
        for tensor, values in zip(tensors, parts):
            tensor.copy_(values.view(tensor.shape))

    return [part]


def _follow_each_other(tensors: Sequence[torch.Tensor]) -> bool:
    storage = tensors[0].untyped_storage().data_ptr()
    address = tensors[0].data_ptr()
    for tensor in tensors:
        if tensor.data_ptr() != address or tensor.untyped_storage().data_ptr() != storage:
            return False
        if plain(tensor) is not tensor:
            return False
        address += tensor.numel() * tensor.element_size()
    return True


def finish_all(finishes: Sequence[Finish]) -> Finish | None:
    """A function for all steps, or None; in any thread, and for tensors of inference mode too."""
    if not finishes:
        return None

    def finish() -> None:
        with torch.inference_mode():
            for step in finishes:
                step()

    return finish


def check_types(name: str, *tensors: torch.Tensor) -> None:
    """Raise BufferError unless the tensors of a call have the same type: mpicoll converts none."""
    if len({tensor.dtype for tensor in tensors}) > 1:
        types = ", ".join(str(tensor.dtype) for tensor in tensors)
        raise BufferError(f"{name}: expected tensors of one type, got {types}: convert them first")


def lies_at(tensor: torch.Tensor, whole: torch.Tensor, number: int) -> bool:
    """Whether a tensor is the block of this number of a whole."""
    nbytes = tensor.numel() * tensor.element_size()
    return bool(tensor.data_ptr() == whole.data_ptr() + number * nbytes and nbytes)


def overlaps(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two contiguous tensors share memory."""
    return bool(a.data_ptr() < _end(b) and b.data_ptr() < _end(a))


def _end(tensor: torch.Tensor) -> int:
    return tensor.data_ptr() + tensor.numel() * tensor.element_size()
