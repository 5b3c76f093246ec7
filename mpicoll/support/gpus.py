"""The GPUs of this host: what CuPy and the driver say of them, what is missing where there are none, and whose is which."""

import ctypes
import os
import re
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy
from mpi4py import MPI

from ..errors import LaunchError
from .checks import check_word, together
from .optional import require

DEVICES = ("cpu", "cuda")
_PURPOSE = "device cuda"
#: where the driver tells its version
_KERNEL_MODULE = Path("/proc/driver/nvidia/version")


def working_cupy() -> Any:
    """CuPy, where it finds a driver and a device; no memory is taken on any.

    Raises LaunchError that names what is missing: CuPy, the driver, a newer driver, or a device.
    """
    cupy, host, driver, reason = require("cupy", _PURPOSE), MPI.Get_processor_name(), 0, "it counts 0"
    try:
        driver = cupy.cuda.runtime.driverGetVersion()
        if cupy.cuda.runtime.getDeviceCount():
            return cupy
    except RuntimeError as error:  # CuPy's runtime errors are RuntimeErrors
        reason = str(error)
    if not driver:
        raise LaunchError(f"{_PURPOSE}: no CUDA driver on {host} ({reason}): install NVIDIA's, or start the container with "
                          "the host's GPUs")  # fmt: skip
    if "InsufficientDriver" in reason:
        raise LaunchError(f"{_PURPOSE}: the driver on {host} is for CUDA {_dotted(driver)}, too old for this CuPy ({reason}): "
                          'install a newer driver, or CuPy for an older CUDA (pip install "mpicoll[cuda12]")')  # fmt: skip
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    raise LaunchError(f"{_PURPOSE}: no CUDA device on {host} ({reason}); CUDA_VISIBLE_DEVICES is "
                      f"{'not set' if visible is None else repr(visible)}, nvidia-smi -L lists what there is")  # fmt: skip


def facts() -> dict[str, Any]:
    """What this process sees: versions, and a list of devices with name, uuid and bytes; None for what it cannot know.

    problem: what is missing where no device can be used.
    """
    found: dict[str, Any] = {"problem": None, "driver": driver_version(), "cuda_driver": None, "cuda_runtime": None,
                             "cupy": None, "nccl": None, "devices": []}  # fmt: skip
    try:
        cupy = require("cupy", _PURPOSE)
        runtime = cupy.cuda.runtime
        found |= {"cupy": cupy.__version__, "cuda_runtime": _dotted(runtime.runtimeGetVersion()), "nccl": _nccl_version()}
        working_cupy()
        found |= {"cuda_driver": _dotted(runtime.driverGetVersion()),
                  "devices": [_device(runtime, number) for number in range(runtime.getDeviceCount())]}  # fmt: skip
    except RuntimeError as error:  # LaunchError is one too
        found["problem"] = str(error)
    return found


def driver_version() -> str | None:
    """Of NVIDIA's kernel module, as nvidia-smi shows it; None where there is none."""
    try:
        found = re.search(r"NVRM version:.*?\s(\d+\.\d[\d.]*)", _KERNEL_MODULE.read_text())
    except OSError:
        return None
    return found[1] if found else None


def _dotted(version: int) -> str:
    """How people write a CUDA version.

    >>> _dotted(12040), _dotted(13000)
    ('12.4', '13.0')
    """
    return f"{version // 1000}.{version % 1000 // 10}"


def _nccl_version() -> str | None:
    with warnings.catch_warnings():  # CuPy's advice on how to install it
        warnings.simplefilter("ignore")
        try:
            nccl = import_module("cupy.cuda.nccl")
        except ImportError:
            return None
    if not getattr(nccl, "available", False):
        return None
    return nccl_text(nccl.get_version())


def nccl_text(version: Any) -> str:
    """How people write a version of NCCL.

    >>> nccl_text(22705)
    '2.27.5'
    """
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def _device(runtime: Any, number: int) -> dict[str, Any]:
    found = runtime.getDeviceProperties(number)
    return {"name": found["name"].decode(), "uuid": _uuid(found["uuid"], number), "bytes": int(found["totalGlobalMem"])}


def _uuid(raw: bytes, number: int) -> str:
    """As nvidia-smi writes it. CuPy's bytes end before the first 0: the driver then tells all 16."""
    from uuid import UUID

    if len(raw) != 16:
        handle, whole = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        driver = ctypes.CDLL("libcuda.so.1")
        driver.cuDeviceGet(ctypes.byref(handle), number)
        driver.cuDeviceGetUuid(whole, handle)
        raw = bytes(whole)
    return f"GPU-{UUID(bytes=raw)}"


def place_among(comm: MPI.Comm) -> int:
    """How many lower ranks of this host see the same devices: the device of this rank, modulo their number. Collective.

    Hosts go by name: where MPI was told not to use shared memory, each rank is a node to it. Where CUDA_VISIBLE_DEVICES
    gives ranks different devices, each begins with the first of its own.
    """
    mine = MPI.Get_processor_name(), os.environ.get("CUDA_VISIBLE_DEVICES")
    return MPI.Comm.allgather(comm, mine)[: comm.Get_rank()].count(mine)


def use_local_device(comm: MPI.Intracomm | None = None) -> int:
    """Give each rank a GPU of its host, and make it the current device of this thread, for CuPy and PyTorch alike.

    Ranks of a host take its devices in turn: several share one where there are more ranks than devices. Where
    CUDA_VISIBLE_DEVICES shows ranks different devices, as launchers can, each takes the first of its own. Collective.

    Parameters
    ----------
    comm : MPI.Intracomm, optional
        All ranks that use the GPUs of these hosts; MPI.COMM_WORLD by default.

    Returns
    -------
    int
        The number of the device, among those that this process sees.

    Raises
    ------
    LaunchError
        On all ranks, where one has no GPU that works: CuPy, the driver, or a device is missing.

    Examples
    --------
    >>> torch.cuda.set_device(mpicoll.use_local_device())
    """
    comm = MPI.COMM_WORLD if comm is None else comm
    place = place_among(comm)
    return together(comm, lambda: _use(place))


def _use(place: int) -> int:
    cupy = working_cupy()
    number: int = place % cupy.cuda.runtime.getDeviceCount()
    try:
        cupy.cuda.Device(number).use()
        cupy.empty(1)
    except RuntimeError as error:
        raise LaunchError(f"{_PURPOSE}: GPU {number} of {MPI.Get_processor_name()} cannot be used ({error})") from error
    return number


def device_module(device: str, comm: MPI.Intracomm) -> Any:
    """The array module for `cpu` (numpy) or `cuda` (cupy, on the device that `use_local_device` gives). Collective.

    Raises ArgumentError for another word, and LaunchError where CuPy or a GPU is missing.
    """
    check_word("device", device, DEVICES)
    if device == "cpu":
        return numpy
    use_local_device(comm)
    return require("cupy", _PURPOSE)
