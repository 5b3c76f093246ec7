"""The arrays in the memory of tensors: what collectives read and write, where it lies."""

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

#: the last step of a call: tensors get what came in other memory
Finish = Callable[[], object]

_KNOWN = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
          "complex64", "complex128")  # fmt: skip


@cache
def elements(dtype: torch.dtype) -> numpy.dtype[Any] | None:
    """The type of its elements as NumPy has it; None where it has none, and they can only be moved."""
    name = str(dtype).removeprefix("torch.")
    if name == "bool":
        return numpy.dtype("uint8")
    if name == "bfloat16":
        return element_type(name)
    return numpy.dtype(name) if name in _KNOWN else None


class Arrays:
    """Arrays over the host memory of tensors, found again by where that is: a call is repeated more often than not.

    They do not keep the memory: `tensor.numpy()` would, and no storage that NumPy has seen may be resized ever after.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, torch.dtype], Any] = {}

    def of(self, tensor: torch.Tensor) -> Array:
        """That of a contiguous tensor."""
        if not tensor.is_cpu:
            return array_of(tensor)
        key = tensor.data_ptr(), tensor.numel(), tensor.dtype
        array = self._known.get(key)
        if array is None:
            if len(self._known) >= 256:
                self._known.clear()
            array = self._known[key] = array_at(tensor)
        return array


def array_at(tensor: torch.Tensor) -> Array:
    """A new array over a contiguous tensor in host memory; of bytes where NumPy lacks its type, of int16 for bfloat16."""
    kind = numpy.dtype("int16") if tensor.dtype is torch.bfloat16 else elements(tensor.dtype)
    nbytes = tensor.numel() * tensor.element_size()
    return at(tensor.data_ptr(), nbytes, numpy.dtype("uint8") if kind is None else kind)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The values in contiguous memory: the tensor itself where it lies so."""
    if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        return tensor
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def writing(target: torch.Tensor, read: bool = False) -> tuple[torch.Tensor, list[Finish]]:
    """Contiguous memory that stands for a tensor, and what is to be done for it to have what was written there.

    read: what it has counts.
    """
    values = plain(target)
    if values is target:
        return target, []
    values = values if read else torch.empty_like(values)
    return values, [lambda: target.copy_(values)]


def joined(tensors: Sequence[torch.Tensor], read: bool = True) -> torch.Tensor:
    """The tensors one after the other in memory: their own where they lie so. read: with their values."""
    if _follow_each_other(tensors):
        total = sum(one.numel() for one in tensors)
        return tensors[0].detach().as_strided((total,), (1,))
    if read:
        return torch.cat([plain(one.detach()).reshape(-1) for one in tensors])
    return tensors[0].new_empty(sum(one.numel() for one in tensors))


def parting(whole: torch.Tensor, tensors: Sequence[torch.Tensor]) -> list[Finish]:
    """What is to be done for the tensors to have what is in the whole, made by `joined`."""
    if whole.data_ptr() == tensors[0].data_ptr() and whole.numel():
        return []

    def part() -> None:
        for one, values in zip(tensors, whole.split([one.numel() for one in tensors])):
            one.copy_(values.view(one.shape))

    return [part]


def _follow_each_other(tensors: Sequence[torch.Tensor]) -> bool:
    storage, place = tensors[0].untyped_storage().data_ptr(), tensors[0].data_ptr()
    for one in tensors:
        if one.data_ptr() != place or one.untyped_storage().data_ptr() != storage or plain(one) is not one:
            return False
        place += one.numel() * one.element_size()
    return True


def finish_all(finishes: Sequence[Finish]) -> Finish | None:
    """One function for all of them, if there are any; in any thread, and on tensors of inference too."""
    if not finishes:
        return None

    def finish() -> None:
        with torch.inference_mode():
            for one in finishes:
                one()

    return finish


def check_types(name: str, *tensors: torch.Tensor) -> None:
    """Raise BufferError where tensors of a call are not of one type: elements are never converted."""
    if len({one.dtype for one in tensors}) > 1:
        found = ", ".join(str(one.dtype) for one in tensors)
        raise BufferError(f"{name}: expected tensors of one type, got {found}: convert them first")


def lies_at(tensor: torch.Tensor, whole: torch.Tensor, number: int) -> bool:
    """Whether a tensor is the block of this number of another one."""
    nbytes = tensor.numel() * tensor.element_size()
    return bool(tensor.data_ptr() == whole.data_ptr() + number * nbytes and nbytes)


def overlaps(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two contiguous tensors share memory."""
    end, other_end = (each.data_ptr() + each.numel() * each.element_size() for each in (one, other))
    return bool(one.data_ptr() < other_end and other.data_ptr() < end)
