"""NVIDIA's NCCL, through CuPy, for calls that ask for it: on device arrays, one GPU per rank.

Between GPUs with NVLink it is faster: data go from GPU to GPU and are reduced there, where
schedules go through MPI, and through the host unless MPI is CUDA-aware. On a GPU this has run with
one rank only; with several, on a stand-in for NCCL.

NCCL runs calls in the order of the program, so the caller's thread puts each call into NCCL's
stream, behind what is in the caller's stream, and polls for its end. The first call of a kind may
wait there until other ranks have reached theirs, while NCCL connects them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from mpi4py import MPI

from ..algorithms import NCCL
from ..buffers import Operand, ops
from ..gpu import Arrival, optional_cupy
from ..collectives import ALLGATHER, BCAST, REDUCE, REDUCE_SCATTER
from ..execute import LibraryCall
from ..failure import Record
from ..progress import PROGRESS
from ..support.gpus import nccl_text
from .nccl_comm import HAS_BFLOAT16, NcclComm, missing

#: the numbers of ops in nccl.h, by MPI's name
OPS = {"SUM": 0, "PROD": 1, "MAX": 2, "MIN": 3}
#: the numbers of types in nccl.h, by NumPy's name
TYPES = {
    "int8": 0,
    "uint8": 1,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}
#: data that is only moved goes as this
_BYTE = TYPES["uint8"]


# What it can serve.


def refuses(call: Any) -> str:
    """Why NCCL cannot serve a call, as far as this rank knows; empty where it can.

    call: a `calls.Call`.
    """
    if any(operand.device is None for operand in call.operands):
        return (
            f"NCCL takes device memory, and a buffer of rank {call.rank} is in host memory: "
            "pass CuPy arrays"
        )
    if call.counts and len(set(call.counts)) > 1:
        sizes = ", ".join(map(str, call.counts))
        return f"NCCL cuts a vector into equal blocks, these have {sizes} bytes"
    refusal = _refuses_reduction(call) if call.op is not None else ""
    if refusal:
        return refusal
    if any(operand.mirror is not None for operand in call.operands):
        return (
            "NCCL takes whole arrays, without displacements and derived types: pass a slice of "
            "the array"
        )
    comm = _comm_of(call)
    if comm is None:
        return ""
    if comm.refusal:
        return comm.refusal
    if call.dtype.name == "bfloat16" and comm.version < HAS_BFLOAT16:
        return f"NCCL {nccl_text(comm.version)} has no bfloat16, {nccl_text(HAS_BFLOAT16)} has"
    return ""


def _refuses_reduction(call: Any) -> str:
    name, dtype = ops.op_name(call.op), call.operands[0].dtype
    if name not in OPS:
        what = f"has no {name}" if call.op.is_predefined else "takes no user-defined op"
        return f"NCCL {what}, it has {', '.join(OPS)}"
    if dtype is None or dtype.name not in TYPES:
        return f"NCCL reduces no {dtype or 'derived datatype'}, it reduces {', '.join(TYPES)}"
    return ""


def lacks(call: Any) -> str:
    """Why there is no NCCL on this rank; empty where there is. Local: calls tell each other."""
    return missing(optional_cupy())


def _device(call: Any) -> int:
    number: int = call.operands[0].device.device.id
    return number


def _comm_of(call: Any) -> NcclComm | None:
    comm: NcclComm | None = call.context.nccl.get(_device(call))
    return comm


def is_unmet(call: Any) -> bool:
    """Whether NCCL was not asked for this communicator and device yet: alike on all ranks."""
    return _comm_of(call) is None


def meet(call: Any) -> Iterator[MPI.Request]:
    """Find out together whether NCCL serves this communicator on this device, from now on.

    A generator of requests to be awaited.
    """
    context = call.context
    comm = NcclComm(context, optional_cupy())
    yield from comm.make()
    context.nccl[_device(call)] = comm


# Serving it.


class _Contiguous(NamedTuple):
    """An operand in contiguous memory. before, after: copies to and from it, in NCCL's stream."""

    array: Any
    before: Callable[[], object] | None = None
    after: Callable[[], object] | None = None

    @classmethod
    def of(cls, operand: Operand) -> _Contiguous:
        array = operand.device
        if array.flags.c_contiguous or array.flags.f_contiguous:
            return cls(array.reshape(-1, order="A"))
        cupy = optional_cupy()
        work = cupy.empty(array.size, array.dtype)
        shaped = work.reshape(array.shape)
        return cls(work, lambda: cupy.copyto(shaped, array), lambda: cupy.copyto(array, shaped))

    @property
    def pointer(self) -> int:
        location: int = self.array.data.ptr
        return location


class NcclRequest:
    """A call in NCCL's stream, as a request. It polls."""

    def __init__(self, comm: NcclComm, event: Any) -> None:
        """event: recorded after the call."""
        self._comm = comm
        self._end = Arrival(event)

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Whether the result is there; raises what NCCL has met."""
        done = self._end.Test()
        if not done:
            self._comm.check()
        return done

    def Wait(self, status: MPI.Status | None = None) -> bool:
        """Poll until the result is there; schedules under way go on meanwhile."""
        while not self.Test():
            PROGRESS.poll()
            os.sched_yield()
        return True


class NcclCall(LibraryCall):
    """A call that NCCL serves, behind what is in the caller's stream; after `meet`."""

    owner = "NCCL's"
    algorithm = NCCL

    def __init__(self, call: Any) -> None:
        super().__init__(call)
        comm = _comm_of(call)
        assert comm is not None
        self.comm = comm
        operands = {"send": call.send, "recv": call.recv}
        with comm.device, comm.stream:  # packed operands lie in memory of that stream
            self._vectors = {
                name: _Contiguous.of(operand)
                for name, operand in operands.items()
                if operand is not None
            }
        self._work = self._bind(call)
        self._empty = all(operand.nbytes == 0 for operand in call.operands)

    def _bind(self, call: Any) -> Callable[[Any, int], object]:
        """A function (NCCL's communicator, stream) that makes the call."""
        send = self._vectors.get("send")
        recv = self._vectors.get("recv")
        first, last = (vector.pointer if vector else 0 for vector in (send or recv, recv))
        nbytes = call.operands[0].nbytes
        rank = call.rank
        root = call.root
        block = call.counts[rank] if call.counts else 0
        if call.collective is BCAST:
            return lambda comm, stream: comm.broadcast(last, last, nbytes, _BYTE, root, stream)
        if call.collective is ALLGATHER:
            own = first if send else last + rank * block
            return lambda comm, stream: comm.allGather(own, last, block, _BYTE, stream)
        kind = TYPES[call.dtype.name]
        op = OPS[ops.op_name(call.op)]
        count = nbytes // call.dtype.itemsize
        if call.collective is REDUCE:
            return lambda comm, stream: comm.reduce(first, last, count, kind, op, root, stream)
        if call.collective is REDUCE_SCATTER:
            count = block // call.dtype.itemsize
            # in place, NCCL has the result at the rank's block, MPI at the front
            own = last if send else last + rank * block
            if not send and rank:
                self._bring_to_front(rank, count)
            return lambda comm, stream: comm.reduceScatter(first, own, count, kind, op, stream)
        return lambda comm, stream: comm.allReduce(first, last, count, kind, op, stream)

    def _bring_to_front(self, rank: int, count: int) -> None:
        vector = self._vectors["recv"]
        front, block = vector.array[:count], vector.array[rank * count : (rank + 1) * count]
        cupy = optional_cupy()

        def bring() -> None:
            cupy.copyto(front, block)
            if vector.after:
                vector.after()

        self._vectors["recv"] = vector._replace(after=bring)

    @property
    def staged(self) -> bool:
        """Always: somebody has to look whether it has ended."""
        return True

    def _issue(self) -> NcclRequest:
        def work(comm: Any, stream: int) -> None:
            for vector in self._vectors.values():
                if vector.before:
                    vector.before()
            if not self._empty:
                self._work(comm, stream)
            recv = self._vectors.get("recv")
            if recv and recv.after:
                recv.after()

        event = self.comm.launch(work, lambda: [one.caller_stream() for one in self.owned])
        return NcclRequest(self.comm, event)

    def run(self, record: Record | None = None) -> None:  # noqa: D102
        request = self.begin()
        self._record = record = record or self.context.recorder.blocking
        record.plan = self
        self.context.wait_for([request], self)
        self._record = None
