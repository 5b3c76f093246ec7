"""MPI's datatypes and operations in NumPy's terms, and what reduces what."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from mpi4py import MPI
from mpi4py.util import dtlib

from .. import errors
from ..gpu import computes
from .operand import Operand

Reducer = Callable[[Any, Any, Any], object]  # lower, higher, out

#: by name: the op, and NumPy's ufunc
PREDEFINED = {
    "sum": (MPI.SUM, "add"),
    "prod": (MPI.PROD, "multiply"),
    "max": (MPI.MAX, "maximum"),
    "min": (MPI.MIN, "minimum"),
    "land": (MPI.LAND, "logical_and"),
    "lor": (MPI.LOR, "logical_or"),
    "lxor": (MPI.LXOR, "logical_xor"),
    "band": (MPI.BAND, "bitwise_and"),
    "bor": (MPI.BOR, "bitwise_or"),
    "bxor": (MPI.BXOR, "bitwise_xor"),
}
_UFUNCS = {op.handle: ufunc for op, ufunc in PREDEFINED.values()}
_NAMES = {op.handle: name.upper() for name, (op, _) in PREDEFINED.items()}
_NAMES |= {MPI.MINLOC.handle: "MINLOC", MPI.MAXLOC.handle: "MAXLOC"}
_NAMES |= {MPI.REPLACE.handle: "REPLACE", MPI.NO_OP.handle: "NO_OP"}
#: handles of predefined datatypes; MPI reuses handles of derived datatypes once they are freed
OWN_TYPES = frozenset(
    value.handle
    for value in vars(MPI).values()
    if isinstance(value, MPI.Datatype) and value != MPI.DATATYPE_NULL
)
#: faster functions than NumPy's ufuncs, by (ufunc, dtype); `torch/half.py` registers them
REDUCERS: dict[tuple[str, str], Reducer] = {}
#: dtypes without an MPI type; mpicoll reduces them, in float32, and rounds once per addition
HALF = ("float16", "bfloat16")


def mpi_type(dtype: "np.dtype[Any]") -> MPI.Datatype | None:
    """The predefined MPI datatype of a NumPy dtype, or None where MPI has none."""
    if not dtype.isnative or dtype.kind not in "biufc" or dtype.name in HALF:
        return None  # dates, strings and records move as bytes
    return _type_of_code(dtype.char)


@lru_cache(maxsize=None)
def _type_of_code(code: str) -> MPI.Datatype | None:
    # not by dtype: NumPy's long and long long are equal, MPI's are not
    try:
        return MPI.Datatype.fromcode(code)
    except (ValueError, KeyError):
        return None


@lru_cache(maxsize=None)
def numpy_type(handle: int) -> "np.dtype[Any] | None":
    """The NumPy dtype of a predefined MPI datatype (by handle).

    None for pairs, packed bytes and types that NumPy lacks.
    """
    datatype = MPI.Datatype.fromhandle(handle)
    if datatype.Get_size() != datatype.Get_extent()[1]:
        return None
    try:
        dtype = np.dtype(dtlib.to_numpy_dtype(datatype))
    except (ValueError, TypeError):
        return None
    # MPI_CHAR is a string for NumPy, and a sum of strings joins them
    if dtype.names or dtype.kind in "SU" or dtype.itemsize != datatype.Get_size():
        return None
    return dtype


def element_of(datatype: MPI.Datatype) -> MPI.Datatype | None:
    """The predefined datatype of all elements of a datatype, or None where there are several."""
    if datatype.is_predefined:
        return datatype
    *_, parts = datatype.Get_contents()
    elements = [element_of(part) for part in parts]
    for part in parts:
        if not part.is_predefined:
            part.Free()
    first = elements[0] if elements else None
    return first if all(element == first for element in elements) else None


def op_name(op: MPI.Op) -> str:
    """The name of this operation in messages."""
    return _NAMES.get(op.handle, "a user-defined op")


@lru_cache(maxsize=None)
def _defined(op_handle: int, type_handle: int) -> bool:
    """Whether the MPI library defines this predefined op on this datatype."""
    op = MPI.Op.fromhandle(op_handle)
    datatype = MPI.Datatype.fromhandle(type_handle)
    left = np.zeros(datatype.Get_extent()[1], np.uint8)
    right = left.copy()
    try:
        op.Reduce_local([left, 1, datatype], [right, 1, datatype])
    except MPI.Exception:
        return False
    return True


def check_op(op: MPI.Op, operand: Operand) -> None:
    """Raise BufferError where MPI does not define `op` on the operand's type."""
    dtype = operand.dtype
    datatype = operand.datatype
    kind: object
    if datatype is not None:
        defined = not op.is_predefined or _defined(op.handle, datatype.handle)
        kind = dtype or datatype.Get_name() or "a derived datatype"
    else:
        half = dtype is not None and dtype.name in HALF
        defined = half and _NAMES.get(op.handle) in ("SUM", "PROD", "MAX", "MIN")
        kind = dtype
    if not defined:
        instead = "use another op or convert the data"
        raise errors.BufferError(f"MPI does not define {op_name(op)} on {kind}: {instead}")


def reducible(op: MPI.Op, operand: Operand) -> bool:
    """Whether schedules can reduce this: a ufunc, or a user's function on NumPy elements."""
    if operand.dtype is None:
        return False
    return op.handle in _UFUNCS or (not op.is_predefined and operand.datatype is not None)


def is_exact(op: MPI.Op, operand: Operand) -> bool:
    """Whether any order of operands has the same result, bit for bit (integers, MINLOC, MAXLOC)."""
    if not op.is_predefined:
        return False
    if operand.dtype is None:
        return op in (MPI.MINLOC, MPI.MAXLOC)
    return operand.dtype.kind in "biu"


def host_only(op: MPI.Op, operand: Operand) -> bool:
    """Whether only the host can reduce this: a user's function, or a type that CuPy lacks."""
    if not op.is_predefined:
        return True
    dtype = operand.dtype
    return dtype is not None and operand.device is not None and not computes(dtype)


def reducer(op: MPI.Op, operand: Operand, module: Any = np) -> Reducer:
    """A function (lower, higher, out) that reduces arrays of the operand's dtype.

    module: NumPy, or CuPy on a device.
    """
    if op.handle in _UFUNCS:
        name = _UFUNCS[op.handle]
        if module is np and (faster := REDUCERS.get((name, str(operand.dtype)))):
            return faster
        ufunc = getattr(module, name)
        # by name: NumPy deprecates a positional `out` of maximum and minimum
        return lambda lower, higher, out: ufunc(lower, higher, out=out)
    datatype = operand.datatype

    def reduce(lower: Any, higher: Any, out: Any) -> None:
        # Reduce_local(a, b) writes a∘b into b, so `result` starts as a copy of the higher operand
        result = out if out is higher or not np.shares_memory(out, lower) else np.empty_like(out)
        if result is not higher:
            np.copyto(result, higher)
        op.Reduce_local([lower, datatype], [result, datatype])
        if result is not out:
            np.copyto(out, result)

    return reduce
