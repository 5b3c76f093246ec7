"""Arrays of other libraries, each with only one way to get at its memory: whoever takes a short cut
fails.

A real tensor of PyTorch has attributes, methods and protocols beside the documented one; these have
nothing else.
"""

import ctypes
import sys
from types import SimpleNamespace

HOST_PAGE_LOCKED = 3  # kDLCUDAHost


class Foreign:
    """A device array that has nothing but `__cuda_array_interface__`, with `changes` in it."""

    def __init__(self, array, read_only=False, **changes):
        described = array.__cuda_array_interface__
        data = (described["data"][0], read_only)
        self.__cuda_array_interface__ = {**described, "data": data, **changes}


class Named:
    """An array as PyTorch shows a tensor of bfloat16: two bytes, and the name of its type."""

    def __init__(self, array, name):
        self.array = array
        self.dtype = f"torch.{name}"

    @property
    def __cuda_array_interface__(self):
        return {**self.array.__cuda_array_interface__, "typestr": "|V2"}


class OnlyDLPack:
    """Host memory that has nothing but DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Pinned:
    """A tensor in page-locked host memory. It has nothing but DLPack, which says so."""

    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return HOST_PAGE_LOCKED, 0

    def __dlpack__(self, stream=None):
        capsule = self.array.__dlpack__()
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype = ctypes.c_void_p
        get.argtypes = [ctypes.py_object, ctypes.c_char_p]
        device_type = get(capsule, b"dltensor") + ctypes.sizeof(ctypes.c_void_p)
        ctypes.c_int32.from_address(device_type).value = HOST_PAGE_LOCKED
        return capsule


class OnDevice:
    """An array of one dimension whose values only `get()` returns: NumPy cannot convert it."""

    ndim = 1

    def __init__(self, host):
        self.host = host
        self.dtype = host.dtype
        self.shape = host.shape
        self.nbytes = host.nbytes

    def __len__(self):
        return self.shape[0]

    def get(self):
        return self.host


def interface(array, **changes):
    """Host memory behind `__cuda_array_interface__`, such as page-locked memory: no device."""
    described = {**array.__array_interface__, "version": 3, **changes}
    return type("Array", (), {"__cuda_array_interface__": described, "owner": array})()


def torch_in_stream(monkeypatch, stream):
    """Make this PyTorch's current stream, for a test; returns a class of tensors.

    Their interface names no stream. Of PyTorch nothing but `torch.cuda.current_stream` is there.
    """
    current = SimpleNamespace(cuda_stream=stream.ptr)
    cuda = SimpleNamespace(current_stream=lambda: current)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    return type("Tensor", (Foreign,), {"__module__": "torch"})
