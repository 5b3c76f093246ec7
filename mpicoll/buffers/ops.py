"""MPI's datatypes and operations in NumPy's terms, and what reduces what."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from mpi4py import MPI
from mpi4py.util import dtlib

from .. import errors
from .device import computes
from .operand import Operand

Reducer = Callable[[Any, Any, Any], object]  # lower, higher, out

PREDEFINED = {
    "sum": (MPI.SUM, "add"), "prod": (MPI.PROD, "multiply"), "max": (MPI.MAX, "maximum"), "min": (MPI.MIN, "minimum"),
    "land": (MPI.LAND, "logical_and"), "lor": (MPI.LOR, "logical_or"), "lxor": (MPI.LXOR, "logical_xor"),
    "band": (MPI.BAND, "bitwise_and"), "bor": (MPI.BOR, "bitwise_or"), "bxor": (MPI.BXOR, "bitwise_xor"),
}  # fmt: skip
_UFUNCS = {op.handle: ufunc for op, ufunc in PREDEFINED.values()}
_NAMES = {op.handle: name.upper() for name, (op, _) in PREDEFINED.items()}
_NAMES |= {MPI.MINLOC.handle: "MINLOC", MPI.MAXLOC.handle: "MAXLOC"}
#: handles of MPI's own datatypes; those of derived ones are used again once they are freed
OWN_TYPES = frozenset(
    one.handle for one in vars(MPI).values() if isinstance(one, MPI.Datatype) and one != MPI.DATATYPE_NULL
)
#: better ones than NumPy's, by (ufunc, dtype): of 16 bits NumPy converts one number at a time. Filled by whoever has them
REDUCERS: dict[tuple[str, str], Reducer] = {}
#: dtypes MPI has no type for; the library reduces them itself, in float32, rounding once per addition
HALF = ("float16", "bfloat16")


def mpi_type(dtype: "np.dtype[Any]") -> MPI.Datatype | None:
    """The predefined MPI datatype of a NumPy dtype, or None where MPI has none."""
    if not dtype.isnative or dtype.kind not in "biufc" or dtype.name in HALF:  # dates, strings, records move as bytes
        return None
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
    """The NumPy dtype of a predefined MPI datatype (by handle), or None: pairs, packed bytes, types unknown to NumPy."""
    datatype = MPI.Datatype.fromhandle(handle)
    if datatype.Get_size() != datatype.Get_extent()[1]:
        return None
    try:
        dtype = np.dtype(dtlib.to_numpy_dtype(datatype))
    except (ValueError, TypeError):
        return None
    # NumPy "adds" strings, which MPI_CHAR would be, by joining them
    return None if dtype.names or dtype.kind in "SU" or dtype.itemsize != datatype.Get_size() else dtype


def element_of(datatype: MPI.Datatype) -> MPI.Datatype | None:
    """The predefined datatype that a datatype is made of, or None where it is made of several."""
    if datatype.is_predefined:
        return datatype
    *_, parts = datatype.Get_contents()
    elements = [element_of(part) for part in parts]
    for part in parts:
        if not part.is_predefined:
            part.Free()
    first = elements[0] if elements else None
    return first if all(one == first for one in elements) else None


def op_name(op: MPI.Op) -> str:
    """How people write this operation."""
    return _NAMES.get(op.handle, "a user-defined op")


@lru_cache(maxsize=None)
def _defined(op_handle: int, type_handle: int) -> bool:
    """Whether MPI itself defines this predefined op on this datatype; asked of the library, once."""
    op, datatype = MPI.Op.fromhandle(op_handle), MPI.Datatype.fromhandle(type_handle)
    left, right = (np.zeros(datatype.Get_extent()[1], np.uint8) for _ in range(2))
    try:
        op.Reduce_local([left, 1, datatype], [right, 1, datatype])
    except MPI.Exception:
        return False
    return True


def check_op(op: MPI.Op, operand: Operand) -> None:
    """Raise BufferError where MPI does not define `op` on the operand's type, whatever the size or the algorithm."""
    dtype, datatype = operand.dtype, operand.datatype
    kind: object
    if datatype is not None:
        known = not op.is_predefined or _defined(op.handle, datatype.handle)
        kind = dtype or datatype.Get_name()
    else:
        half = dtype is not None and dtype.name in HALF
        known = half and _NAMES.get(op.handle) in ("SUM", "PROD", "MAX", "MIN")
        kind = dtype
    if not known:
        raise errors.BufferError(f"MPI does not define {op_name(op)} on {kind}: use another op or convert the data")


def reducible(op: MPI.Op, operand: Operand) -> bool:
    """Whether schedules can reduce this: a ufunc or a user's function on elements that NumPy can hold."""
    if operand.dtype is None:
        return False
    return op.handle in _UFUNCS or (not op.is_predefined and operand.datatype is not None)


def is_exact(op: MPI.Op, operand: Operand) -> bool:
    """Whether the result is the same bits in whatever order this op is applied: on integers, and where one of all is taken."""
    if not op.is_predefined:
        return False
    return operand.dtype.kind in "biu" if operand.dtype is not None else op in (MPI.MINLOC, MPI.MAXLOC)


def host_only(op: MPI.Op, operand: Operand) -> bool:
    """Whether only the host can reduce this: a user's function is Python's, and CuPy may not know the type."""
    return not op.is_predefined or (operand.dtype is not None and operand.device is not None and not computes(operand.dtype))


def reducer(op: MPI.Op, operand: Operand, module: Any = np) -> Reducer:
    """A function (lower, higher, out) that reduces arrays of the operand's dtype; module: NumPy, or CuPy on a device."""
    if op.handle in _UFUNCS:
        if module is np and (better := REDUCERS.get((_UFUNCS[op.handle], str(operand.dtype)))):
            return better
        ufunc = getattr(module, _UFUNCS[op.handle])
        return lambda lower, higher, out: ufunc(lower, higher, out=out)  # maximum and minimum want it by name
    datatype = operand.datatype

    def reduce(lower: Any, higher: Any, out: Any) -> None:
        # Reduce_local(a, b) leaves a∘b in b, so the higher operand's place must be the result's
        result = out if out is higher or not np.shares_memory(out, lower) else np.empty_like(out)
        if result is not higher:
            np.copyto(result, higher)
        op.Reduce_local([lower, datatype], [result, datatype])
        if result is not out:
            np.copyto(out, result)

    return reduce
