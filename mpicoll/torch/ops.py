"""PyTorch's reductions in MPI's terms."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy
import torch
from mpi4py import MPI

from ..errors import ArgumentError
from ..support.arrays import Array
from .memory import Finish, array_at, elements

ReduceOp = torch.distributed.ReduceOp

#: by the numbers of PyTorch's operations
_OPS = {hash(op): ours for op, ours in (
    (ReduceOp.SUM, MPI.SUM), (ReduceOp.AVG, MPI.SUM), (ReduceOp.PREMUL_SUM, MPI.SUM), (ReduceOp.PRODUCT, MPI.PROD),
    (ReduceOp.MIN, MPI.MIN), (ReduceOp.MAX, MPI.MAX), (ReduceOp.BAND, MPI.BAND), (ReduceOp.BOR, MPI.BOR),
    (ReduceOp.BXOR, MPI.BXOR),
)}  # fmt: skip
#: those that are the same each time; PREMUL_SUM has a factor
_GIVEN = {hash(op): op for op in (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.BAND,
                                  ReduceOp.BOR, ReduceOp.BXOR)}  # fmt: skip
#: on bool, which is bytes of 0 and 1
_OF_BOOL = {hash(op): ours for op, ours in (
    (ReduceOp.SUM, MPI.MAX), (ReduceOp.PRODUCT, MPI.MIN), (ReduceOp.BAND, MPI.MIN), (ReduceOp.BOR, MPI.MAX),
)}  # fmt: skip
_BITWISE = (MPI.BAND, MPI.BOR, MPI.BXOR)
_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
#: who serves the largest and the smallest of floats, where MPI's own would drop NaN or not, by the order of ranks; in bytes
_SMALL, _LARGE, _FEW = {"Allreduce": "recursive_doubling"}, "circulant", 1 << 16
_AVG, _PREMUL_SUM = hash(ReduceOp.AVG), hash(ReduceOp.PREMUL_SUM)


class Unsupported(ArgumentError):
    """What no backend of PyTorch reduces, or only others."""


class Reduction:
    """An operation on tensors of one type. op: MPI's."""

    def __init__(self, given: Any, dtype: torch.dtype, size: int) -> None:
        self._given, self._dtype, self._size = given, dtype, size
        self._number = hash(given)
        op = _OPS.get(self._number)
        if op is None or elements(dtype) is None:
            raise Unsupported(f"mpicoll cannot reduce {dtype} by {given}: use another type or operation")
        if dtype is torch.bool:
            op = _OF_BOOL.get(self._number, op)
        elif op in _BITWISE and (dtype.is_floating_point or dtype.is_complex):
            raise Unsupported(f"cannot use {op_name(given)} with {dtype}: it is for integers and bool")
        self.op: MPI.Op = op

    def array(self, array: Array) -> Array:
        """The array with the type that is reduced: bfloat16 is that of ml_dtypes."""
        return array.view(elements(self._dtype)) if self._dtype is torch.bfloat16 else array

    def before(self, tensor: torch.Tensor) -> torch.Tensor:
        """What is reduced in the place of a tensor: its multiple, where the operation says so."""
        if self._number != _PREMUL_SUM:
            return tensor
        factor = self._given.factor if hasattr(self._given, "factor") else self._given.__getstate__()[1]
        return tensor * factor

    def after(self, result: torch.Tensor) -> list[Finish]:
        """What is left to do of a sum: to divide it."""
        if self._number != _AVG:
            return []
        if result.is_floating_point() or result.is_complex():
            return [lambda: result.div_(self._size)]
        if result.dtype in _UNSIGNED:  # which PyTorch does not divide
            return [lambda: numpy.floor_divide(array_at(result), self._size, out=array_at(result))]
        return [lambda: result.div_(self._size, rounding_mode="trunc")]

    def algorithm(self, method: str, nbytes: int) -> str | None:
        """What serves a call; None: it is chosen. The largest of numbers of which one is NaN is NaN, in ours alone."""
        if self.op not in (MPI.MAX, MPI.MIN) or not self._dtype.is_floating_point:
            return None
        return _SMALL.get(method, _LARGE) if nbytes < _FEW else _LARGE


@cache
def _usual(number: int, dtype: torch.dtype, size: int) -> Reduction:
    return Reduction(_GIVEN[number], dtype, size)


def reduction(given: Any, dtype: torch.dtype, size: int) -> Reduction:
    """What an operation means. Raises Unsupported."""
    number = hash(given)
    return _usual(number, dtype, size) if number in _GIVEN else Reduction(given, dtype, size)


def op_name(given: Any) -> str:
    """How people call it."""
    return next((name for name in ("BAND", "BOR", "BXOR") if hash(getattr(ReduceOp, name)) == hash(given)), str(given))
