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

#: an array of numbers on the host or on a device; CuPy's have the interface of NumPy's
Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class Device(AbstractContextManager[object], Protocol):
    """A GPU, as CuPy has it: current in this thread from `use` on, or as a context manager, which gives back the last."""

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
    """Wait until the device has done what was asked of it, so that a clock read next is true; no-op for NumPy."""
    if hasattr(module, "cuda"):
        module.cuda.get_current_stream().synchronize()


def element_type(text: str) -> np.dtype[Any]:
    """The NumPy dtype of this name, bfloat16 among them. Raises ArgumentError; LaunchError without ml_dtypes."""
    name: "DTypeLike" = require("ml_dtypes", "bfloat16").bfloat16 if text == "bfloat16" else text
    try:
        found = np.dtype(name)
    except (TypeError, ValueError, SyntaxError):
        found = np.dtype("O")
    if not found.isnative or not (found.kind in "biufc" or found.name == "bfloat16"):  # of text, dates, records …
        raise ArgumentError(f"expected an element type such as float32, int32 or bfloat16, got {shown(text)}")
    return found
