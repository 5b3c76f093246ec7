"""The checks of device memory on a real device: staged always, direct where MPI is CUDA-aware and says so."""

import os

import pytest

from tests.support.devices import DeviceArrays

pytestmark = [pytest.mark.mpi, pytest.mark.gpu]


def _devices():
    try:
        import cupy

        return cupy.cuda.runtime.getDeviceCount()
    except Exception:  # noqa: BLE001 CuPy is missing, or there is no driver or no device: each is another error
        return 0


@pytest.fixture(scope="module")
def xp():
    if not _devices():
        pytest.skip("needs CuPy and a CUDA device")
    import cupy

    cupy.cuda.Device(int(os.environ.get("MPI_LOCALRANKID", "0")) % _devices()).use()
    return cupy


@pytest.fixture(params=["staged", "direct"])
def mode(request, monkeypatch):
    if request.param == "direct" and os.environ.get("MPICOLL_GPU") != "direct":
        pytest.skip("needs a CUDA-aware MPI: set MPICOLL_GPU=direct where there is one")
    monkeypatch.setenv("MPICOLL_GPU", request.param)
    return request.param


class TestDevice(DeviceArrays):
    pass
