"""A stand-in for CuPy over host memory, with two devices: `memory` has allocations and copies,
`streams` the order of work.

Stricter than CuPy:

- Kernels and copies write when the host waits for them, and not before. Until then MPI, or whatever
  else reads the memory by its pointer, finds poison.
- Between streams only events make an order. Work that was not ordered raises `Race`; a device would
  be silently wrong.
- Unless MPI is `aware`, a pointer leads to memory that nothing else looks at: MPI reads poison, and
  what it writes is lost.
- An array computes only on its own device, and only where that is the current device of the thread.
- NumPy cannot convert an array; `get()` and `asnumpy` are the only ways to the host.

`log` lists what was done, in order; `copies` the (kind, bytes) of copies between host and device;
`contexts` the devices that any thread made current or took memory of, where CUDA takes memory for a
context.
"""

from types import SimpleNamespace

import numpy as np

from . import memory as _memory
from . import streams as _streams

__version__ = "14.0.1"
Race = _memory.Race
log = []
copies = []
aware = False
contexts = set()


class Device:
    """One of two; by default the thread's current one."""

    def __init__(self, number=None):
        self.id = _streams.current_device() if number is None else number
        self._before = []

    def __eq__(self, other):
        return self.id == other.id

    def use(self):
        _streams.use_device(self.id)
        contexts.add(self.id)

    def __enter__(self):
        self._before.append(Device())
        self.use()

    def __exit__(self, *_):
        self._before.pop().use()


class ndarray:
    """The part of cupy.ndarray that is needed here; `view` is a NumPy array over the visible bytes."""

    __module__ = "cupy"

    def __init__(self, memory, view):
        self._memory, self._view = memory, view
        self.dtype, self.shape, self.strides, self.size = view.dtype, view.shape, view.strides, view.size
        self.nbytes, self.itemsize, self.ndim = view.nbytes, view.itemsize, view.ndim
        self.flags = SimpleNamespace(c_contiguous=view.flags.c_contiguous, f_contiguous=view.flags.f_contiguous)
        self.data = SimpleNamespace(ptr=memory.pointer + memory.offset(view) if view.size else 0)

    @property
    def __cuda_array_interface__(self):
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (self.data.ptr, False), "version": 3,
                "strides": None if self.flags.c_contiguous else self.strides,
                "stream": _streams.get_current_stream().ptr or 1}  # fmt: skip

    def __array__(self, *_, **__):
        raise TypeError("Implicit conversion to a NumPy array is not allowed")

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, key):
        return ndarray(self._memory, self._view[key])

    def __setitem__(self, key, value):
        self[key]._write(value._read() if isinstance(value, ndarray) else _scalar(value))

    @property
    def device(self):
        return Device(self._memory.device)

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

    def _places(self):
        """Where each byte of each element lies in the memory, a row for each element."""
        spans = [np.arange(count) * stride for count, stride in zip(self.shape, self.strides)]
        places = np.full(1, self._memory.offset(self._view))
        for span in spans:
            places = (places[:, None] + span).reshape(-1)
        return places[:, None] + np.arange(self.itemsize)

    def _read(self, stream=None):
        """The values, for an operation of this stream that has begun; without one it begins here."""
        stream = stream or _begun()
        if not self.size:
            return self._view.copy()
        places = self._places()
        raw = self._memory.read(places.reshape(-1), stream)
        return raw.view(self.dtype).reshape(self.shape)

    def _require_current(self):
        current = _streams.current_device()
        if self._memory.device != current:
            raise ValueError(f"Array device must be same as the current device: {self._memory.device}, {current}")

    def _write(self, values, where=True, stream=None):
        self._require_current()
        stream = stream or _begun()
        if self.size:
            raw, places = np.empty(self.shape, self.dtype), self._places()
            np.copyto(raw, values, casting="unsafe")
            raw, chosen = raw.reshape(-1).view(np.uint8).reshape(places.shape), np.broadcast_to(where, self.shape).reshape(-1)
            self._memory.write(places[chosen].reshape(-1), raw[chosen].reshape(-1), stream)


def _begun():
    """The current stream, after a new operation has begun in it."""
    stream = _streams.get_current_stream()
    stream.operate()
    return stream


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
    device = _streams.current_device()
    contexts.add(device)
    memory = _memory.Allocation(int(np.prod(shape)) * dtype.itemsize, device)
    return ndarray(memory, memory.visible.view(dtype).reshape(shape))


def array(values, dtype=None):
    """A new array with these values."""
    return _made(values._read() if isinstance(values, ndarray) else np.array(values, dtype))


def asarray(values, dtype=None):
    """The array itself, the array that a __cuda_array_interface__ describes, or a copy of memory that is elsewhere."""
    if not isinstance(values, ndarray):
        log.append("asarray")
        if hasattr(values, "__cuda_array_interface__"):
            values = _described(values.__cuda_array_interface__)
    if isinstance(values, ndarray) and values.device == Device():
        return values
    return array(values, dtype)


def _described(interface):
    location, dtype = interface["data"][0], np.dtype(interface["typestr"])
    memory = _memory.owner(location)
    if interface.get("stream"):
        _streams.of_pointer(interface["stream"]).synchronize()
    view = np.ndarray(interface["shape"], dtype, memory.visible, location - memory.pointer, interface.get("strides"))
    return ndarray(memory, view)


def asnumpy(values, out=None):
    log.append("asnumpy")
    with values.device:
        stream = _begun()
        found = values._read(stream)
        stream.synchronize()
    if out is None:
        return found
    out[...] = found.reshape(out.shape)
    return out


def copyto(target, source, where=None):
    log.append("copyto")
    source._require_current()
    stream = _begun()
    target._write(source._read(stream), True if where is None else where._read(stream), stream)


def __getattr__(name):
    """The ufuncs, under NumPy's names."""
    ufunc = getattr(np, name, None)
    if not isinstance(ufunc, np.ufunc):
        raise AttributeError(name)  # noqa: TRY004

    def kernel(one, other, out):
        log.append(name)
        one._require_current()
        other._require_current()
        stream = _begun()
        out._write(ufunc(one._read(stream), other._read(stream)), True, stream)
        return out

    return kernel


def _attributes(pointer):
    owner = _memory.owner(pointer)
    device = None if owner is None else owner.device
    kind = 0 if owner is None else 1 if device is None else 2  # memory of the host, page-locked there, a device's
    return SimpleNamespace(type=kind, device=-2 if device is None else device)


def _properties(number):
    return {"name": b"a stand-in", "uuid": bytes([number + 1] * 16), "totalGlobalMem": 8 << 30}


cuda = SimpleNamespace(
    Device=Device,
    Stream=_streams.Stream,
    Event=_streams.Event,
    get_current_stream=_streams.get_current_stream,
    alloc_pinned_memory=_memory.alloc_pinned_memory,
    runtime=SimpleNamespace(
        pointerGetAttributes=_attributes,
        getDeviceCount=lambda: 2,
        getDevice=_streams.current_device,
        getDeviceProperties=_properties,
        driverGetVersion=lambda: 13000,
        runtimeGetVersion=lambda: 13000,
        memcpyAsync=_memory.memcpy_async,
        memcpyDefault=4,
    ),
)
