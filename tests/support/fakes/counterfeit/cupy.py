"""CuPy for processes that find this folder on PYTHONPATH: `fakecupy`, in the state that
COUNTERFEIT_GPU names.

A healthy machine never shows these states:

- aware, unaware: MPI accepts device pointers; MPI is given pointers that lead nowhere.
- wild: pointers to memory that is not mapped, so that a process that touches them crashes.
- stuck: a kernel that never ends.
- missing, driverless, old, empty: no CuPy; no driver; a driver too old for CuPy; no device.
"""

import os
import sys
import time

from tests.support.fakes import fakecupy

STATE = os.environ["COUNTERFEIT_GPU"]


if STATE == "missing":
    raise ImportError("No module named 'cupy'")


def _raise(words):
    def count():
        raise RuntimeError(words)

    return count


def _wild(array):
    described = fakecupy.ndarray.honest.fget(array)
    return {**described, "data": (1 << 46, False)}


if trial := sys.modules.get("mpicoll.gpu.pointer_trial"):
    trial.SIZES = trial.SIZES[:4]  # of large ones the stand-in makes half a minute
fakecupy.aware = STATE == "aware"
if STATE == "wild":
    fakecupy.ndarray.honest = fakecupy.ndarray.__cuda_array_interface__
    fakecupy.ndarray.__cuda_array_interface__ = property(_wild)
if STATE == "stuck":
    fakecupy.asnumpy = lambda values, out=None: time.sleep(600)
if STATE in ("driverless", "old"):
    too_old = "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version"
    fakecupy.cuda.runtime.getDeviceCount = _raise(too_old)
    fakecupy.cuda.runtime.driverGetVersion = lambda: 12020 if STATE == "old" else 0
if STATE == "empty":
    fakecupy.cuda.runtime.getDeviceCount = _raise("cudaErrorNoDevice: no CUDA-capable device is detected")
sys.modules[__name__] = fakecupy
