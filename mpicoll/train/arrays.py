"""The array module (NumPy or CuPy) behind an array, so that no code here names a device."""

import sys


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
