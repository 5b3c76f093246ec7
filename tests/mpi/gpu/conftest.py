"""A device for each rank, by its number on the node; without one these tests are skipped."""

import numpy
import pytest

from mpicoll.errors import LaunchError
from mpicoll.gpu import trials
from mpicoll.support.gpus import device_module
from tests.support.cases import RANK, WORLD


@pytest.fixture(scope="package")
def cupy():
    try:
        return device_module("cuda", WORLD)
    except LaunchError as error:  # on all ranks
        pytest.skip(f"needs CuPy and a CUDA device on every node: {error}")


@pytest.fixture(scope="package")
def trial(cupy):
    """What device pointers do here, in a job of its own."""
    return trials(WORLD)[RANK]


@pytest.fixture
def xp(cupy):
    """CuPy, on the device that it found, in the stream that it begins with."""
    number = cupy.cuda.runtime.getDevice()
    yield cupy
    cupy.cuda.Device(number).use()


@pytest.fixture(params=["staged", "direct"])
def mode(request, trial, monkeypatch):
    if request.param == "direct" and not trial.passed:
        pytest.skip(f"needs an MPI that takes device pointers; a trial said: {trial.said}")
    monkeypatch.setenv("MPICOLL_GPU", request.param)
    return request.param


@pytest.fixture
def slow(xp):
    """A function that keeps the current stream busy for about 30 ms: what is asked of it next comes late."""
    code = 'extern "C" __global__ void spin(long long n) { long long s = clock64(); while (clock64() - s < n); }'
    spin = xp.RawKernel(code, "spin")
    return lambda: spin((1,), (1,), (numpy.int64(50_000_000),))
