"""NVIDIA's NCCL, through CuPy, for calls that ask for it: on arrays in device memory, one GPU per rank.

Between GPUs with NVLink it wins: data go from GPU to GPU and are reduced there, where schedules go through MPI, and
through the host unless MPI is CUDA-aware. So far this has run on a stand-in for NCCL only, never on a GPU.

NCCL runs calls in the order of the program, so each is put into its stream at the call, by the caller's thread, behind
what is in the caller's stream; its end is polled for. The first one of a kind may wait there until other ranks have
come to theirs, while NCCL connects them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from mpi4py import MPI

from ..buffers import Arrival, Operand, ops, optional_cupy
from ..collectives import ALLGATHER, BCAST, REDUCE, REDUCE_SCATTER
from ..support.gpus import nccl_text
from .context import Context
from .native import NativePlan
from .nccl_comm import HAS_BFLOAT16, NcclComm, missing
from .progress import PROGRESS
from .staging import Staging

#: by MPI's name of the op, and by NumPy's of the type, as nccl.h numbers them
OPS = {"SUM": 0, "PROD": 1, "MAX": 2, "MIN": 3}
TYPES = {"int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float16": 6, "float32": 7,
         "float64": 8, "bfloat16": 9}  # fmt: skip
#: data that is only moved goes as this
_BYTE = TYPES["uint8"]


# What it can serve.


def refuses(call: Any) -> str:
    """Why NCCL cannot serve a call, as far as this rank knows; empty where it can. call: a `calls.Call`."""
    if any(one.device is None for one in call.operands):
        return f"NCCL takes device memory, and a buffer of rank {call.rank} is in host memory: pass CuPy arrays"
    if call.counts and len(set(call.counts)) > 1:
        return f"NCCL cuts a vector into equal blocks, these have {', '.join(map(str, call.counts))} bytes"
    refusal = _refuses_reduction(call) if call.op is not None else ""
    if refusal:
        return refusal
    if any(one.mirror is not None for one in call.operands):
        return "NCCL takes whole arrays, without displacements and derived types: pass a slice of the array"
    made = _found(call)
    if made is not None and not made.refusal and call.dtype.name == "bfloat16" and made.version < HAS_BFLOAT16:
        return f"NCCL {nccl_text(made.version)} has no bfloat16, {nccl_text(HAS_BFLOAT16)} has"
    return made.refusal if made is not None else ""


def _refuses_reduction(call: Any) -> str:
    name, dtype = ops.op_name(call.op), call.operands[0].dtype
    if name not in OPS:
        has = f"it has {', '.join(OPS)}"
        return f"NCCL has no {name}, {has}" if call.op.is_predefined else f"NCCL takes no user-defined op, {has}"
    if dtype is None or dtype.name not in TYPES:
        return f"NCCL reduces no {dtype or 'derived datatype'}, it reduces {', '.join(TYPES)}"
    return ""


def lacks(call: Any) -> str:
    """Why there is no NCCL on this rank; empty where there is. Local: calls tell each other."""
    return missing(optional_cupy())


def _device(call: Any) -> int:
    number: int = call.operands[0].device.device.id
    return number


def _found(call: Any) -> NcclComm | None:
    found: NcclComm | None = call.context.nccl.get(_device(call))
    return found


def is_unmet(call: Any) -> bool:
    """Whether no call has asked NCCL for this communicator and device before: the same on all ranks."""
    return _found(call) is None


def meet(call: Any) -> Iterator[MPI.Request]:
    """Find out together whether NCCL serves this communicator on this device, from now on. Requests to be awaited."""
    context = call.context
    made = NcclComm(context, optional_cupy())
    yield from made.make()
    context.nccl[_device(call)] = made


# Serving it.


class _Vector(NamedTuple):
    """An operand as NCCL sees it: contiguous memory. before, after: copies to it and from it, in NCCL's stream."""

    array: Any
    before: Callable[[], object] | None = None
    after: Callable[[], object] | None = None

    @classmethod
    def of(cls, one: Operand) -> _Vector:
        array = one.device
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
    """A call of NCCL's, as a request: Start, then Wait or Test, any number of times; Free. It waits by polling."""

    def __init__(self, comm: NcclComm, launch: Callable[[], Any]) -> None:
        self._comm, self._launch = comm, launch
        self._done: Arrival | None = None

    @property
    def in_flight(self) -> bool:
        """Whether it was started and not awaited."""
        return self._done is not None

    def Start(self) -> None:
        """Put it into NCCL's stream."""
        if self.in_flight:
            raise RuntimeError("Start on a plan in flight, call Wait first")
        self._done = Arrival(self._launch())

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Whether the result is there; raises what NCCL has met."""
        if self._done is not None:
            if self._done.Test():
                self._done = None
            else:
                self._comm.check()
        return self._done is None

    def Wait(self, status: MPI.Status | None = None) -> bool:
        """Poll until the result is there; schedules under way go on meanwhile."""
        while not self.Test():
            PROGRESS.poll()
            os.sched_yield()
        return True

    def Free(self) -> None:
        """Never to be started again."""
        if self.in_flight:
            raise RuntimeError("Free on a plan in flight, call Wait first")
        self._launch = _freed


def _freed() -> None:
    raise RuntimeError("Start on a plan that was freed")


class NcclCall(Staging):
    """A call that NCCL serves, with the interface of `NativeCall`. call: a `calls.Call`, after `meet`."""

    #: something happens before and after it
    staged = True
    runs_ahead, step = False, None

    def __init__(self, call: Any) -> None:
        super().__init__()
        found = _found(call)
        assert found is not None
        self.comm, self.context, self.text = found, call.context, call.text
        self._owned = call.operands
        with found.device, found.stream:  # what is packed lies in memory of that stream
            operands = {"send": call.send, "recv": call.recv}
            self._vectors = {name: _Vector.of(one) for name, one in operands.items() if one is not None}
        self._work = self._bind(call)
        self._empty = all(one.nbytes == 0 for one in call.operands)
        self.request: Any = NcclRequest(found, self._launch)
        self.unfinished = False

    def _bind(self, call: Any) -> Callable[[Any, int], object]:
        """A function (NCCL's communicator, stream) that makes the call."""
        send, recv = (self._vectors.get(name) for name in ("send", "recv"))
        first, last = (one.pointer if one else 0 for one in (send or recv, recv))
        nbytes, rank, root = call.operands[0].nbytes, call.rank, call.root
        block = call.counts[rank] if call.counts else 0
        if call.collective is BCAST:
            return lambda comm, stream: comm.broadcast(last, last, nbytes, _BYTE, root, stream)
        if call.collective is ALLGATHER:
            mine = first if send else last + rank * block
            return lambda comm, stream: comm.allGather(mine, last, block, _BYTE, stream)
        kind, op, size = TYPES[call.dtype.name], OPS[ops.op_name(call.op)], call.dtype.itemsize
        if call.collective is REDUCE:
            return lambda comm, stream: comm.reduce(first, last, nbytes // size, kind, op, root, stream)
        if call.collective is REDUCE_SCATTER:
            result = last if send else last + rank * block  # where NCCL has it in place; MPI has it at the front
            if not send and rank:
                self._bring_to_front(rank, block // size)
            return lambda comm, stream: comm.reduceScatter(first, result, block // size, kind, op, stream)
        return lambda comm, stream: comm.allReduce(first, last, nbytes // size, kind, op, stream)

    def _bring_to_front(self, rank: int, count: int) -> None:
        vector = self._vectors["recv"]
        front, block = vector.array[:count], vector.array[rank * count : (rank + 1) * count]
        cupy = optional_cupy()

        def bring() -> None:
            cupy.copyto(front, block)
            if vector.after:
                vector.after()

        self._vectors["recv"] = vector._replace(after=bring)

    def _launch(self) -> Any:
        def work(comm: Any, stream: int) -> None:
            for one in self._vectors.values():
                if one.before:
                    one.before()
            if not self._empty:
                self._work(comm, stream)
            recv = self._vectors.get("recv")
            if recv and recv.after:
                recv.after()

        return self.comm.launch(work, lambda: [one.caller_stream() for one in self._owned])

    def is_given(self, arguments: object) -> bool:
        """Never: no later call is served without being looked at."""
        return False

    def run(self) -> None:
        """The blocking call."""
        self.request.Start()
        self.unfinished, self.context.recorder.blocking.plan = True, self
        self.context.wait_for([self.request], self)
        self.unfinished = False

    def begin(self) -> Any:
        """The non-blocking call, in NCCL's stream from here on; `run_as_task` waits for it."""
        self.request.Start()
        return self.request

    def run_as_task(self, request: Any) -> Iterator[Any]:
        """What is left to do of a call that has begun, for a `Task`."""
        while not request.Test():
            yield request

    def persistent(self, info: MPI.Info, context: Context, text: str) -> NcclPlan:
        """A plan of it; NCCL knows no info."""
        return NcclPlan(self.request, self, context, text)

    def where(self) -> str:
        """What it is: NCCL alone knows more."""
        return f"NCCL's {self.text}"

    def peer(self) -> int | None:
        """NCCL alone knows."""
        return None


class NcclPlan(NativePlan):
    """A persistent collective that NCCL serves: it goes behind what is in the caller's stream at Start."""

    @property
    def in_flight(self) -> bool:
        """Whether it was started and not awaited."""
        return bool(self.request.in_flight)

    def where(self) -> str:
        """What it is: NCCL alone knows more."""
        return f"NCCL's {self.text}"
