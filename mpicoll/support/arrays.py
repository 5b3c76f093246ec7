"""Array kinds: the module (NumPy or CuPy) behind an array, and element types by name."""

import sys
from contextlib import AbstractContextManager
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from ..errors import ArgumentError
from .optional import require
from .units import shown

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

#: an array of numbers on the host or on a device; CuPy arrays have the interface of NumPy arrays
Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class Device(AbstractContextManager[object], Protocol):
    """A GPU, as CuPy has it: `use` makes it current in this thread, `with` for a block."""

    @property
    def id(self) -> int: ...

    def use(self) -> object: ...


def module_of(array: object) -> ModuleType:
    """The module that made `array`: numpy for a NumPy array, cupy for a CuPy array.

    >>> import numpy
    >>> module_of(numpy.zeros(1)) is numpy
    True
    """
    return sys.modules[type(array).__module__.partition(".")[0]]


def synchronize(module: ModuleType) -> None:
    """Wait until the device has finished its work, for timing; no-op for NumPy."""
    if hasattr(module, "cuda"):
        module.cuda.get_current_stream().synchronize()


def element_type(text: str) -> np.dtype[Any]:
    """The NumPy dtype of a name such as float32 or bfloat16.

    Raises ArgumentError, also for types of text, dates or records; LaunchError without ml_dtypes.
    """
    name: "DTypeLike" = text
    if text == "bfloat16":
        name = require("ml_dtypes", "bfloat16").bfloat16
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError, SyntaxError):
        dtype = np.dtype("O")
    if not dtype.isnative or not (dtype.kind in "biufc" or dtype.name == "bfloat16"):
        raise ArgumentError(
            f"expected an element type such as float32, int32 or bfloat16, got {shown(text)}"
        )
    return dtype
