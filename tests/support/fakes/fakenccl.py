"""A stand-in for `cupy.cuda.nccl` on the stand-in for CuPy: real reductions, over MPI.

Stricter than NCCL:

- A call puts an operation into its stream and returns. Its result is poison until the messages of
  all ranks have arrived, which the host learns only from an event that was recorded after the call.
- What NCCL leaves undefined fails at once: overlapping buffers, memory beyond an allocation, memory
  of another device, a communicator that is destroyed while operations are under way.
- NCCL's own refusals are immediate: two ranks on one GPU, types and operations that it lacks.

`log` lists what was called. Tests change the rest: `gpu` says which GPU a device of this rank is,
`failing` makes calls or communicators fail, `broken` is an error that NCCL finds later.
"""

import threading
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
from mpi4py import MPI

from tests.support.fakes.fakecupy import memory, streams

available = True
log = []
version = 22705
failing = ""
broken = ""
WORLD = MPI.COMM_WORLD
_UFUNCS = np.add, np.multiply, np.maximum, np.minimum
_TYPES = "i1", "u1", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "bfloat16"
_PLACES = {}
#: operations that have not ended, by the memory that they write
_writing = {}


def gpu(device):
    """By default each device of each rank is a GPU of its own."""
    return f"{WORLD.Get_rank()}.{device}"


class NcclError(RuntimeError):
    pass


def get_version():
    return version


def get_unique_id():
    """As CuPy 14 has it."""
    return bytes(range(128))


def get_unique_id_before_14():
    return tuple(range(-64, 64))


_ending = threading.RLock()


class Event(streams.Event):
    """An event that also waits for NCCL's messages."""

    def record(self, stream=None):
        super().record(stream)
        self.behind = list((stream or streams.get_current_stream()).__dict__.get("nccl", ()))

    @property
    def done(self):
        return all([one.test() for one in self.behind]) and super().done


class _Operation:
    """Each rank sends its input to all; `result(inputs)` is written to `out`, unless that is None."""

    def __init__(self, comm, stream, given, out, result):
        number = stream.operate()
        self.comm = comm
        self.ended = False
        #: the stream as it is now: others may use it before this ends
        self.moment = SimpleNamespace(
            number=stream.number, clock=stream.clock.copy(), knows=stream.knows
        )
        assert number == self.moment.clock[stream.number]
        self.given = _read(*given, self.moment)
        self.result = result
        self.out = out
        if out:
            self.owner, self.where = _located(*out)
            self.owner.write(self.where, np.full(out[1], memory.POISON, np.uint8), self.moment)
        messages = comm.messages
        peers = range(messages.Get_size())
        tag = len(comm.operations) + 1
        self.inputs = [np.empty(self.given.size + 1, np.uint8)[: self.given.size] for _ in peers]
        self.requests = [messages.Irecv(self.inputs[peer], peer, tag) for peer in peers]
        self.requests += [messages.Isend(self.given, peer, tag) for peer in peers]
        # at last: other threads test and end what they find there
        comm.operations.append(self)
        if out:
            _writing.setdefault(id(self.owner), []).append(self)
        stream.__dict__.setdefault("nccl", []).append(self)

    def test(self):
        """MPI allows one thread at a time to test a request."""
        if not self.ended and not self.comm.aborted and _ending.acquire(blocking=False):
            try:
                if not self.ended and MPI.Request.Testall(self.requests):
                    self.end()
            finally:
                _ending.release()
        return self.ended

    def end(self):
        with _ending:  # the thread of progress and a waiting one may both find it done
            if not self.ended:
                MPI.Request.Waitall(self.requests)
                if self.out:
                    values = self.result(self.inputs)
                    self.owner.coming[self.where] = np.frombuffer(values.tobytes(), np.uint8)
                    self.forget()
                self.ended = True

    def forget(self):
        """It writes no more: one thread may end it while another aborts the communicator."""
        with suppress(ValueError):
            _writing[id(self.owner)].remove(self)


class NcclCommunicator:
    def __init__(self, ndev, commId, rank):
        log.append("init")
        if failing == "init":
            raise NcclError("NCCL_ERROR_SYSTEM_ERROR: unhandled system error")
        assert type(commId) is type(get_unique_id()) and commId == get_unique_id()
        self.messages = WORLD.Dup() if ndev > 1 else MPI.COMM_SELF.Dup()
        self.device = streams.current_device()
        self.operations = []
        self.aborted = False
        self.freed = False
        if len(set(self.messages.allgather(gpu(self.device)))) < ndev and version < 23000:
            raise NcclError("NCCL_ERROR_INVALID_USAGE: Duplicate GPU detected")
        assert (ndev, rank) == (self.messages.Get_size(), self.messages.Get_rank())

    def _start(self, name, stream, given, out, result):
        log.append(name)
        stream = streams.of_pointer(stream)
        if failing == name or self.freed:
            raise NcclError("NCCL_ERROR_INVALID_USAGE: invalid usage")
        assert stream.device_id == streams.current_device() == self.device and not stream.blocks
        _Operation(self, stream, given, out, result)

    def allReduce(self, sendbuf, recvbuf, count, datatype, op, stream):
        nbytes, total = _reduced(count, datatype, op)
        self._start("allReduce", stream, (sendbuf, nbytes), (recvbuf, nbytes), total)

    def reduce(self, sendbuf, recvbuf, count, datatype, op, root, stream):
        nbytes, total = _reduced(count, datatype, op)
        out = (recvbuf, nbytes) if root == self.messages.Get_rank() else None
        self._start("reduce", stream, (sendbuf, nbytes), out, total)

    def reduceScatter(self, sendbuf, recvbuf, recvcount, datatype, op, stream):
        rank, size = self.messages.Get_rank(), self.messages.Get_size()
        nbytes, total = _reduced(recvcount, datatype, op)
        inside = recvbuf - sendbuf
        assert inside == rank * nbytes or not -nbytes < inside < size * nbytes, "overlap"
        block = slice(rank * nbytes, (rank + 1) * nbytes)
        result = lambda inputs: total([one[block] for one in inputs])
        self._start("reduceScatter", stream, (sendbuf, nbytes * size), (recvbuf, nbytes), result)

    def allGather(self, sendbuf, recvbuf, count, datatype, stream):
        rank, size = self.messages.Get_rank(), self.messages.Get_size()
        nbytes = count * _type(datatype).itemsize
        inside = sendbuf - recvbuf
        assert inside == rank * nbytes or not -nbytes < inside < size * nbytes, "overlap"
        out = (recvbuf, nbytes * size)
        self._start("allGather", stream, (sendbuf, nbytes), out, np.concatenate)

    def broadcast(self, sendbuff, recvbuff, count, datatype, root, stream):
        nbytes = count * _type(datatype).itemsize
        result = lambda inputs: inputs[root]
        self._start("broadcast", stream, (sendbuff, nbytes), (recvbuff, nbytes), result)

    def check_async_error(self):
        if broken:
            raise NcclError(broken)

    def abort(self):
        log.append("abort")
        self.aborted = self.freed = True
        for one in self.operations:
            if not one.ended:
                for request in one.requests[: len(one.inputs)]:
                    request.Cancel()
                if one.out:
                    one.forget()

    def destroy(self):
        log.append("destroy")
        assert all(one.ended for one in self.operations)
        self.freed = True
        self.messages.Free()


def _type(datatype):
    if _TYPES[datatype] != "bfloat16":
        return np.dtype(_TYPES[datatype])
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def _reduced(count, datatype, op):
    """Bytes, and a function that reduces the inputs of the ranks."""
    dtype, ufunc = _type(datatype), _UFUNCS[op]
    assert count > 0

    def total(inputs):
        return ufunc.reduce([one.view(dtype) for one in inputs], dtype=dtype)

    return count * dtype.itemsize, total


def _located(location, nbytes):
    found = memory.owner(location)
    assert found.device == streams.current_device(), "NCCL takes memory of its device"
    start = location - found.pointer
    assert start + nbytes <= found.visible.size
    return found, np.arange(start, start + nbytes)


def _read(location, nbytes, moment):
    found, where = _located(location, nbytes)
    return found.read(where, moment)


def install(monkeypatch, cupy):
    """Put it into the stand-in for CuPy, for one test."""
    import sys

    plain = memory.Allocation.read

    def read(self, where, stream):
        """What comes behind NCCL in its stream finds its result."""
        for one in list(_writing.get(id(self), ())):
            one.end()
        return plain(self, where, stream)

    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", sys.modules[__name__])
    monkeypatch.setattr(memory.Allocation, "read", read)
    monkeypatch.setattr(cupy.cuda, "Event", Event)
    answers = {
        "getDeviceProperties": lambda device: {"uuid": gpu(device).encode()},
        "deviceGetPCIBusId": lambda device: f"0000:{device:02}:00.0",
    }
    for name, answer in answers.items():
        monkeypatch.setattr(cupy.cuda.runtime, name, answer, raising=False)
    log.clear()
    _writing.clear()
    return sys.modules[__name__]
