"""The GPUs of this host: what CuPy and the driver report, what is missing, which rank has which."""

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
#: the file with the driver's version
_KERNEL_MODULE = Path("/proc/driver/nvidia/version")


def working_cupy() -> Any:
    """CuPy, where it finds a driver and a device; it allocates no memory on a device.

    Raises LaunchError, which names what is missing: CuPy, the driver, a newer driver, or a device.
    """
    cupy = require("cupy", _PURPOSE)
    driver = 0
    reason = "it counts 0"
    try:
        driver = cupy.cuda.runtime.driverGetVersion()
        if cupy.cuda.runtime.getDeviceCount():
            return cupy
    except RuntimeError as error:  # CuPy's runtime errors are RuntimeErrors
        reason = str(error)
    host = MPI.Get_processor_name()
    if not driver:
        raise LaunchError(
            f"{_PURPOSE}: no CUDA driver on {host} ({reason}): install NVIDIA's, or start the "
            "container with the host's GPUs"
        )
    if "InsufficientDriver" in reason:
        raise LaunchError(
            f"{_PURPOSE}: the driver on {host} is for CUDA {_dotted(driver)}, too old for this "
            f"CuPy ({reason}): install a newer driver, or CuPy for an older CUDA "
            '(pip install "mpicoll[cuda12]")'
        )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    raise LaunchError(
        f"{_PURPOSE}: no CUDA device on {host} ({reason}); CUDA_VISIBLE_DEVICES is "
        f"{'not set' if visible is None else repr(visible)}, nvidia-smi -L lists what there is"
    )


class _Named:
    """A stream of another library, by its pointer, as CUDA's protocol for streams hands it over."""

    def __init__(self, pointer: int) -> None:
        self.pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.pointer  # the protocol's version


def stream_at(pointer: int) -> Any:
    """CuPy's object for a stream of another library."""
    cuda = require("cupy").cuda
    if hasattr(cuda.Stream, "from_external"):  # CuPy 14, which warns of ExternalStream
        return cuda.Stream.from_external(_Named(pointer))
    return cuda.ExternalStream(pointer)


def facts() -> dict[str, Any]:
    """What this process sees: versions, and name, uuid and bytes of each device; None if unknown.

    problem: what is missing where no device can be used.
    """
    seen: dict[str, Any] = {
        "problem": None,
        "driver": driver_version(),
        "cuda_driver": None,
        "cuda_runtime": None,
        "cupy": None,
        "nccl": None,
        "devices": [],
    }
    try:
        cupy = require("cupy", _PURPOSE)
        runtime = cupy.cuda.runtime
        seen |= {
            "cupy": cupy.__version__,
            "cuda_runtime": _dotted(runtime.runtimeGetVersion()),
            "nccl": _nccl_version(),
        }
        working_cupy()
        devices = range(runtime.getDeviceCount())
        seen |= {
            "cuda_driver": _dotted(runtime.driverGetVersion()),
            "devices": [_device(runtime, number) for number in devices],
        }
    except RuntimeError as error:  # a LaunchError is a RuntimeError
        seen["problem"] = str(error)
    return seen


def driver_version() -> str | None:
    """The version of NVIDIA's kernel module, as nvidia-smi shows it; None without the module."""
    try:
        match = re.search(r"NVRM version:.*?\s(\d+\.\d[\d.]*)", _KERNEL_MODULE.read_text())
    except OSError:
        return None
    return match[1] if match else None


def _dotted(version: int) -> str:
    """A CUDA version as text.

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
    """A version of NCCL as text.

    >>> nccl_text(22705)
    '2.27.5'
    """
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def _device(runtime: Any, number: int) -> dict[str, Any]:
    properties = runtime.getDeviceProperties(number)
    return {
        "name": properties["name"].decode(),
        "uuid": _uuid(properties["uuid"], number),
        "bytes": int(properties["totalGlobalMem"]),
    }


def _uuid(raw: bytes, number: int) -> str:
    """The UUID as nvidia-smi writes it.

    CuPy's bytes end before the first 0; then the driver is asked for all 16.
    """
    from uuid import UUID

    if len(raw) != 16:
        handle = ctypes.c_int()
        whole = (ctypes.c_ubyte * 16)()
        driver = ctypes.CDLL("libcuda.so.1")
        driver.cuDeviceGet(ctypes.byref(handle), number)
        driver.cuDeviceGetUuid(whole, handle)
        raw = bytes(whole)
    return f"GPU-{UUID(bytes=raw)}"


def place_among(comm: MPI.Comm) -> int:
    """How many lower ranks of this host see the same devices. Collective.

    Modulo the number of devices it is the device of this rank. Where CUDA_VISIBLE_DEVICES shows
    ranks different devices, each rank counts in its own. Hosts are told apart by name: where MPI
    must not use shared memory, each rank is a node of its own to MPI.
    """
    own = (MPI.Get_processor_name(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    return MPI.Comm.allgather(comm, own)[: comm.Get_rank()].count(own)


def use_local_device(comm: MPI.Intracomm | None = None) -> int:
    """Assign a GPU of its host to each rank, and make it the current device of this thread.

    Collective. It is current for CuPy and PyTorch alike. Ranks of a host take its devices in turn:
    they share devices where there are more ranks. Where CUDA_VISIBLE_DEVICES shows ranks different
    devices, as launchers can, each rank takes the first of its own.

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
        On all ranks, where any has no working GPU: CuPy, the driver, or a device is missing.

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
        host = MPI.Get_processor_name()
        text = f"{_PURPOSE}: GPU {number} of {host} cannot be used ({error})"
        raise LaunchError(text) from error
    return number


def device_module(device: str, comm: MPI.Intracomm) -> Any:
    """The array module for `cpu` (numpy) or `cuda` (cupy). Collective.

    CuPy uses the device that `use_local_device` assigns. Raises ArgumentError for another word, and
    LaunchError where CuPy or a GPU is missing.
    """
    check_word("device", device, DEVICES)
    if device == "cpu":
        return numpy
    use_local_device(comm)
    return require("cupy", _PURPOSE)
