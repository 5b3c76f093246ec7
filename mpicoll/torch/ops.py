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

#: MPI's operations; an operation of PyTorch is found by its hash
_OPS = {
    hash(ReduceOp.SUM): MPI.SUM,
    hash(ReduceOp.AVG): MPI.SUM,
    hash(ReduceOp.PREMUL_SUM): MPI.SUM,
    hash(ReduceOp.PRODUCT): MPI.PROD,
    hash(ReduceOp.MIN): MPI.MIN,
    hash(ReduceOp.MAX): MPI.MAX,
    hash(ReduceOp.BAND): MPI.BAND,
    hash(ReduceOp.BOR): MPI.BOR,
    hash(ReduceOp.BXOR): MPI.BXOR,
}
#: on bool, which is bytes of 0 and 1
_OPS_OF_BOOL = {
    hash(ReduceOp.SUM): MPI.MAX,
    hash(ReduceOp.PRODUCT): MPI.MIN,
    hash(ReduceOp.MIN): MPI.MIN,
    hash(ReduceOp.MAX): MPI.MAX,
    hash(ReduceOp.BAND): MPI.MIN,
    hash(ReduceOp.BOR): MPI.MAX,
    hash(ReduceOp.BXOR): MPI.BXOR,
}
_BITWISE = (MPI.BAND, MPI.BOR, MPI.BXOR)
_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
#: operations that have no state
_STATELESS = {
    hash(op): op
    for op in (
        ReduceOp.SUM,
        ReduceOp.AVG,
        ReduceOp.PRODUCT,
        ReduceOp.MIN,
        ReduceOp.MAX,
        ReduceOp.BAND,
        ReduceOp.BOR,
        ReduceOp.BXOR,
    )
}
_AVG = hash(ReduceOp.AVG)
#: it has a state, its factor
_PREMUL_SUM = hash(ReduceOp.PREMUL_SUM)
#: algorithms for the maximum and the minimum of floats, where MPI's own call propagates or drops
#: NaN depending on the order of ranks: below so many bytes, and from there on
_FEW_BYTES = 1 << 16
_SMALL = {"Allreduce": "recursive_doubling"}
_LARGE = "circulant"


class Unsupported(ArgumentError):
    """A reduction that no backend of PyTorch supports, or only others."""


class Reduction:
    """An operation on tensors of a type."""

    def __init__(self, operation: Any, dtype: torch.dtype, size: int) -> None:
        #: PyTorch's
        self._operation = operation
        self._number = hash(operation)
        self._dtype = dtype
        self._size = size
        name = getattr(operation, "op", operation).name
        op = (_OPS_OF_BOOL if dtype is torch.bool else _OPS).get(self._number)
        if op is None or elements(dtype) is None:
            raise Unsupported(
                f"mpicoll cannot reduce {dtype} by {name}: use another type or operation"
            )
        if op in _BITWISE and (dtype.is_floating_point or dtype.is_complex):
            raise Unsupported(f"cannot use {name} with {dtype}: it is for integers and bool")
        #: MPI's
        self.op: MPI.Op = op

    def array(self, array: Array) -> Array:
        """The array with the type that is reduced: for bfloat16 the type of ml_dtypes."""
        return array.view(elements(self._dtype)) if self._dtype is torch.bfloat16 else array

    def before(self, tensor: torch.Tensor) -> torch.Tensor:
        """The operand of a rank: the tensor, or its product with the factor of PREMUL_SUM.

        The product has the type of the tensor, whatever the type of the factor.
        """
        if self._number != _PREMUL_SUM:
            return tensor
        operation = self._operation
        has_factor = hasattr(operation, "factor")
        factor = operation.factor if has_factor else operation.__getstate__()[1]
        if isinstance(factor, torch.Tensor):
            factor = factor.reshape(())  # like a number it then has no part in the type and shape
        return (tensor * factor).to(tensor.dtype)

    def after(self, result: torch.Tensor) -> list[Finish]:
        """The steps that make an average of a sum: its division."""
        if self._number != _AVG:
            return []
        if result.is_floating_point() or result.is_complex():
            return [lambda: result.div_(self._size)]
        if result.dtype in _UNSIGNED:
            return [lambda: _divide_unsigned(result, self._size)]
        return [lambda: result.div_(self._size, rounding_mode="trunc")]

    def algorithm(self, method: str, nbytes: int) -> str | None:
        """The algorithm of a call; None: it is selected.

        With mpicoll's algorithms alone the maximum of numbers of which any is NaN is NaN.
        """
        if self.op not in (MPI.MAX, MPI.MIN) or not self._dtype.is_floating_point:
            return None
        return _SMALL.get(method, _LARGE) if nbytes < _FEW_BYTES else _LARGE


def _divide_unsigned(tensor: torch.Tensor, divisor: int) -> None:
    """Divide in place, with NumPy: PyTorch does not divide these types."""
    array = array_at(tensor)
    numpy.floor_divide(array, divisor, out=array)


@cache
def _stateless(number: int, dtype: torch.dtype, size: int) -> Reduction:
    return Reduction(_STATELESS[number], dtype, size)


def reduction(operation: Any, dtype: torch.dtype, size: int) -> Reduction:
    """The meaning of an operation of PyTorch. Raises Unsupported."""
    number = hash(operation)
    if number in _STATELESS:
        return _stateless(number, dtype, size)
    return Reduction(operation, dtype, size)
