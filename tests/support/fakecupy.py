"""A stand-in for CuPy over host memory that is as strict as a device: for tests where there is no GPU.

Work is asynchronous: what a kernel or a copy writes is known to later work in the stream, but whoever reads the memory
by its pointer (MPI, say) finds poison until the stream is synchronised. NumPy may not touch an array at all. `log` has
what was done, in order.
"""

import weakref
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np

POISON = 0xFF  # NaN, or -1
log = []
_allocations = weakref.WeakSet()


class _Allocation:
    """Bytes as a pointer sees them, as the stream knows them, and which of them are still on their way."""

    def __init__(self, nbytes):
        self.visible = np.full(nbytes, POISON, np.uint8)
        self.coming = np.empty(nbytes, np.uint8)
        self.pending = np.zeros(nbytes, bool)
        _allocations.add(self)

    def arrive(self):
        self.visible[self.pending] = self.coming[self.pending]
        self.pending[:] = False


class ndarray:
    """The part of cupy.ndarray that is needed here; `view` is a NumPy array over the visible bytes."""

    def __init__(self, memory, view):
        self._memory, self._view = memory, view
        self.dtype, self.shape, self.strides, self.size = view.dtype, view.shape, view.strides, view.size
        self.nbytes, self.itemsize, self.ndim = view.nbytes, view.itemsize, view.ndim
        self.flags = SimpleNamespace(c_contiguous=view.flags.c_contiguous, f_contiguous=view.flags.f_contiguous)
        self.data = SimpleNamespace(ptr=view.__array_interface__["data"][0] if view.size else 0)

    @property
    def __cuda_array_interface__(self):
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (self.data.ptr, False), "version": 3,
                "strides": None if self.flags.c_contiguous else self.strides}  # fmt: skip

    def __array__(self, *_, **__):
        raise TypeError("Implicit conversion to a NumPy array is not allowed")

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, key):
        return ndarray(self._memory, self._view[key])

    def __setitem__(self, key, value):
        self[key]._write(value._read() if isinstance(value, ndarray) else _scalar(value))

    @property
    def T(self):
        return ndarray(self._memory, self._view.T)

    def view(self, dtype):
        return ndarray(self._memory, self._view.view(dtype))

    def reshape(self, *shape, order="C"):
        view = self._view.reshape(*shape, order=order)
        if view.size == 0 or np.shares_memory(view, self._memory.visible):
            return ndarray(self._memory, view)
        return _made(self._read().reshape(*shape, order=order))

    def ravel(self, order="C"):
        return self.reshape(-1, order=order)

    def get(self, out=None):
        """A copy on the host, ordered after the work in the stream."""
        return asnumpy(self, out=out)

    def set(self, values):
        self._write(np.asarray(values))

    def visible(self):
        """What a pointer sees now."""
        return self._view.copy()

    def _over(self, memory, dtype=None):
        """The same elements in another array of as many bytes; without a type, their bytes in a last dimension."""
        offset = self._view.__array_interface__["data"][0] - self._memory.visible.__array_interface__["data"][0]
        if dtype is None:
            return np.ndarray((*self.shape, self.itemsize), memory.dtype, memory, offset, (*self.strides, 1))
        return np.ndarray(self.shape, dtype, memory, offset, self.strides)

    def _read(self):
        if not self.size:
            return self._view.copy()
        memory = self._memory
        raw = np.where(self._over(memory.pending), self._over(memory.coming), self._over(memory.visible))
        return np.ascontiguousarray(raw).view(self.dtype).reshape(self.shape)

    def _write(self, values):
        if self.size:
            self._over(self._memory.coming, self.dtype)[...] = values
            self._over(self._memory.pending)[...] = True
            self._over(self._memory.visible)[...] = POISON


def _scalar(value):
    if isinstance(value, np.ndarray) and value.ndim:
        raise TypeError("non-scalar numpy.ndarray cannot be used for fill")
    return value


def _made(values):
    result = empty(values.shape, values.dtype)
    result._write(values)
    return result


def empty(shape, dtype=float):
    shape, dtype = (shape if isinstance(shape, tuple) else (shape,)), np.dtype(dtype)
    memory = _Allocation(int(np.prod(shape)) * dtype.itemsize)
    return ndarray(memory, memory.visible.view(dtype).reshape(shape))


def array(values, dtype=None):
    """A new array with these values."""
    return _made(values._read() if isinstance(values, ndarray) else np.array(values, dtype))


def asarray(values, dtype=None):
    """The array itself, the array that a __cuda_array_interface__ describes, or a copy of host memory."""
    if isinstance(values, ndarray):
        return values
    log.append("asarray")
    if hasattr(values, "__cuda_array_interface__"):
        return _described(values.__cuda_array_interface__)
    return array(values, dtype)


def _described(interface):
    location, dtype = interface["data"][0], np.dtype(interface["typestr"])
    memory = _owner(location)
    offset = location - memory.visible.__array_interface__["data"][0]
    return ndarray(memory, np.ndarray(interface["shape"], dtype, memory.visible, offset, interface.get("strides")))


def _owner(location):
    for memory in _allocations:
        start = memory.visible.__array_interface__["data"][0]
        if start <= location < start + memory.visible.nbytes:
            return memory
    return None


def asnumpy(values, out=None):
    log.append("asnumpy")
    if out is None:
        return values._read()
    out[...] = values._read().reshape(out.shape)
    return out


def copyto(target, source):
    log.append("copyto")
    target._write(source._read())


def __getattr__(name):
    """The ufuncs, under NumPy's names."""
    ufunc = getattr(np, name, None)
    if not isinstance(ufunc, np.ufunc):
        raise AttributeError(name)  # noqa: TRY004

    def kernel(one, other, out):
        log.append(name)
        out._write(ufunc(one._read(), other._read()))
        return out

    return kernel


def _synchronize():
    log.append("synchronize")
    for memory in _allocations:
        memory.arrive()


def _attributes(pointer):
    return SimpleNamespace(type=2 if _owner(pointer) is not None else 0)


cuda = SimpleNamespace(
    Device=nullcontext,
    get_current_stream=lambda: SimpleNamespace(synchronize=_synchronize),
    runtime=SimpleNamespace(pointerGetAttributes=_attributes, getDeviceCount=lambda: 1),
)
