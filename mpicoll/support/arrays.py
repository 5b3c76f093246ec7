"""Array kinds: the module (NumPy or CuPy) behind an array, and element types by name."""

import sys

import numpy as np

from ..errors import ArgumentError


def module_of(array):
    """The module that made `array`: numpy for a NumPy array, cupy for a CuPy array.

    >>> import numpy
    >>> module_of(numpy.zeros(1)) is numpy
    True
    """
    return sys.modules[type(array).__module__.partition(".")[0]]


def synchronize(module):
    """Wait until the device has done what was asked of it, so that a clock read next is true; no-op for NumPy."""
    if hasattr(module, "cuda"):
        module.cuda.get_current_stream().synchronize()


def element_type(text):
    """The NumPy dtype of this name, bfloat16 among them. Raises ArgumentError."""
    try:
        if text == "bfloat16":
            import ml_dtypes

            return np.dtype(ml_dtypes.bfloat16)
        return np.dtype(text)
    except ImportError:
        raise ArgumentError('bfloat16 needs ml_dtypes; install it with: pip install "mpicoll[bf16]"') from None
    except TypeError:
        raise ArgumentError(f"expected an element type such as float32, int32 or bfloat16, got {text!r}") from None
