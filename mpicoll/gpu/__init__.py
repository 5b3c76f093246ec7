"""GPUs through CuPy: arrays and streams of a device, and whether MPI takes device pointers."""

from .awareness import cuda_awareness, gpu_mode, gpu_mode_and_why, require_awareness, trials
from .device import (
    PAGE_LOCKED,
    as_if_on_host,
    at_device,
    computes,
    device_array,
    device_key,
    is_bfloat16,
    optional_cupy,
    require_current,
)
from .streams import (
    Arrival,
    DeviceCopy,
    Streams,
    caller_stream,
    current_streams,
    device_packing,
    on_stream,
    putting,
)

__all__ = [
    "PAGE_LOCKED",
    "Arrival",
    "DeviceCopy",
    "Streams",
    "as_if_on_host",
    "at_device",
    "caller_stream",
    "computes",
    "cuda_awareness",
    "current_streams",
    "device_array",
    "device_key",
    "device_packing",
    "gpu_mode",
    "gpu_mode_and_why",
    "is_bfloat16",
    "on_stream",
    "optional_cupy",
    "putting",
    "require_awareness",
    "require_current",
    "trials",
]
