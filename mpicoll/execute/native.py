"""MPI's own calls, on the caller's buffers where MPI takes them and on packed ones otherwise."""

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from .. import collectives
from ..buffers import Operand, in_place
from ..support.arrays import synchronize
from .plan import LowerCase
from .staging import BYTES, Staging


def native_method(comm: MPI.Comm, name: str) -> Callable[..., Any]:
    """mpi4py's own method, bound to this communicator."""
    method: Callable[..., Any] = getattr(MPI.Intracomm, name).__get__(comm)
    return method


class NativeCall(Staging):
    """MPI's own call: its arguments are the caller's where MPI takes them, else packed bytes. call: a `calls.Call`."""

    def __init__(self, call: Any) -> None:
        super().__init__()
        self.comm, self.method = call.comm, call.method
        self._views = False  # whether arguments are views of ours, which must live as long as the call
        self.arguments = list(call.arguments)
        self.closing += [one.release for one in call.operands]
        device = next((one.module for one in call.operands if one.module is not np), None)
        if device is not None:
            self.packing.append(lambda: synchronize(device))  # MPI reads device memory when it likes
        if call.op is not None and any(one.dtype is None for one in call.operands):
            return  # reductions of derived datatypes: MPI knows them, packed bytes would not do
        names = ("recv",) if call.collective is collectives.BCAST else ("send", "recv")
        for position, name in enumerate(names):
            one = getattr(call, name)
            if one is None and call.shared and not in_place(self.arguments[position]):
                self.arguments[position] = MPI.IN_PLACE
            elif one is not None and not one.foreign and (one.staged or one.datatype is None):
                self.arguments[position] = self._bytes(one, name == "recv", call.op is not None)

    def _bytes(self, one: Operand, written: bool, reduces: bool) -> list[Any]:
        self._views, work = True, one.vector
        if one.staged:
            work = self.packed(one, np.empty(one.nbytes, BYTES).view(one.dtype or BYTES), written)
        if reduces:
            return [work, one.datatype]
        # as their own type where MPI has one: some libraries choose by it, and other ranks may not have to pack
        kind = one.datatype if one.dtype is not None and one.datatype is not None else MPI.BYTE
        size = kind.Get_size()
        message = [work.view(BYTES), kind]
        if one.counts is not None:
            message.insert(1, [count // size for count in one.counts])
        return message

    @property
    def staged(self) -> bool:
        """Whether something has to happen before or after it."""
        return bool(self.packing or self.unpacking)

    def is_given(self, arguments: Sequence[object]) -> bool:
        """Whether MPI gets just these arguments, the caller's own, and nothing else has to happen."""
        return not self.staged and all(map(operator.is_, self.arguments, arguments))

    def run(self) -> None:
        """The blocking call."""
        self.pack()
        self._call(self.method)
        self.unpack()
        self.close()

    def begin(self) -> MPI.Request:
        """The non-blocking call; `run_as_task` does what is left to do."""
        self.pack()
        request: MPI.Request = self._call(f"I{self.method.lower()}")
        return request

    def run_as_task(self, request: MPI.Request) -> Iterator[MPI.Request]:
        """What is left to do of a call that has begun, for a `Task`."""
        while not request.Test():
            yield request
        self.unpack()
        self.close()

    def persistent(self, info: MPI.Info) -> "MPI.Prequest | NativePlan":
        """MPI's own persistent request where it takes the caller's buffers, else one with packing around it."""
        request: MPI.Prequest = self._call(f"{self.method}_init", info)
        return NativePlan(request, self) if self.staged or self._views else request

    def _call(self, name: str, *more: object) -> Any:
        return native_method(self.comm, name)(*self.arguments, *more)


class NativePlan(LowerCase):
    """MPI's persistent collective on packed buffers: packs at Start, unpacks when it is done."""

    def __init__(self, request: MPI.Prequest, call: NativeCall) -> None:
        self.request, self.call, self.started = request, call, False

    def Start(self) -> None:
        """Pack and start."""
        self.call.pack()
        self.request.Start()
        self.started = True

    def Wait(self, status: MPI.Status | None = None) -> bool:
        """Wait and unpack."""
        self.request.Wait(status)
        return self._finish()

    def Test(self, status: MPI.Status | None = None) -> bool:
        """True when done and unpacked."""
        return bool(self.request.Test(status)) and self._finish()

    def _finish(self) -> bool:
        if self.started:
            self.call.unpack()
        self.started = False
        return True

    def Free(self) -> None:
        """Free MPI's request."""
        self.request.Free()
        self.call.close()
