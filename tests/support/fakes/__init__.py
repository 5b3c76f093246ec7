"""Stand-ins for libraries and hardware that a test machine lacks.

Each one serves what the tests need, and is stricter than the original, so that a mistake that a
device or a library tolerates most of the time fails every time. The docstring of each says what it
is stricter about.

- `fakecupy/`: CuPy, with two devices, over host memory. Memory that the host has not waited for is
  poison.
- `fakearithmetic.py`: the operators and functions of CuPy that training needs; counts how often the
  host waits.
- `fakenccl.py`: `cupy.cuda.nccl`. Results are poison until the messages of all ranks have arrived.
- `counterfeit/cupy.py`: CuPy for processes that a test starts, in the broken states that machines
  have.
- `arrays.py`: arrays of other libraries, each with only one way to get at its memory.
- `metering.py`: a clock, a communicator and a device for the meter, without MPI. Time moves only
  when the test says so.
- `progress.py`: the progress of tasks without its thread: a task moves only when the test polls.
"""

import sys
from contextlib import contextmanager

import pytest

from mpicoll.gpu.device import optional_cupy


@contextmanager
def cupy_is(module):
    """Within it `import cupy` gives this module; None: CuPy is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupy", module)
        optional_cupy.cache_clear()
        try:
            yield module
        finally:
            optional_cupy.cache_clear()
