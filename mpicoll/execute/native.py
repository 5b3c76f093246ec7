"""MPI's own calls, on the caller's buffers where MPI takes them and on packed ones otherwise."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from .. import buffers, collectives, gpu
from ..algorithms import NATIVE
from ..buffers import Operand, address, in_place, ops
from ..engine import address_of
from ..failure import Record, owning
from ..gpu import cuda_awareness
from ..schedule import offsets
from ..support.quirks import applies
from .library_call import LibraryCall
from .operation import array_of
from .staging import BYTES

if TYPE_CHECKING:
    from typing_extensions import Self

_SENT, _RECEIVED = ("send", "send_count", "send_type"), ("recv", "recv_count", "recv_type")
#: of MPI's own functions, what their parameters are
_PARAMETERS = {
    "Bcast": (*_RECEIVED, "root", "comm"),
    "Reduce": ("send", *_RECEIVED, "op", "root", "comm"),
    "Allreduce": ("send", *_RECEIVED, "op", "comm"),
    "Reduce_scatter_block": ("send", *_RECEIVED, "op", "comm"),
    "Scan": ("send", *_RECEIVED, "op", "comm"),
    "Exscan": ("send", *_RECEIVED, "op", "comm"),
    "Barrier": ("comm",),
    "Allgather": (*_SENT, *_RECEIVED, "comm"),
    "Alltoall": (*_SENT, *_RECEIVED, "comm"),
    "Gather": (*_SENT, *_RECEIVED, "root", "comm"),
    "Scatter": (*_SENT, *_RECEIVED, "root", "comm"),
    "Neighbor_allgather": (*_SENT, *_RECEIVED, "comm"),
    "Neighbor_alltoall": (*_SENT, *_RECEIVED, "comm"),
}
_MOST = 2**31 - 1
#: collectives of the quirk stale-persistent
_STALE = ("Allgather", "Gather", "Scatter")


def native_method(comm: MPI.Comm, name: str) -> Callable[..., Any]:
    """mpi4py's own method, bound to this communicator."""
    method: Callable[..., Any] = plain_method(name).__get__(comm)
    return method


def plain_method(name: str) -> Any:
    """mpi4py's own method of intracommunicators, with or without neighbours."""
    return getattr(MPI.Topocomm, name)


def stale_when_persistent(method: str) -> bool:
    """Whether this MPI library's persistent form of a method sends old data."""
    return method in _STALE and applies("stale-persistent")


class NativeCall(LibraryCall):
    """MPI's own call: its arguments are the caller's where MPI takes them, else packed bytes."""

    owner = "MPI's own"
    algorithm = NATIVE

    def __init__(self, call: Any) -> None:
        super().__init__(call)
        self.call = call
        self.comm = call.comm
        self.method = call.method
        self.arguments = list(call.native_arguments)
        #: MPI's own persistent request
        self._kept: MPI.Prequest | None = None
        #: whether MPI gets device pointers
        self._direct = self._may_have_pointers(call)
        reduces = call.op is not None
        # MPI knows the derived datatypes of reductions, and those of each block: packed bytes would
        # not do
        as_given = reduces and any(operand.dtype is None for operand in call.operands)
        as_given = as_given or call.method in ("Alltoallw", "Neighbor_alltoallw")
        # quirk: empty-buffers-alias
        alike = call.send is not None and call.recv is not None and _touch(call.send, call.recv)
        # two names of one type, as long and long long are: mpi4py wants the same for both buffers
        datatypes = [operand.datatype for operand in call.operands] if reduces else []
        datatype = datatypes[0] if datatypes else None
        differ = any(other != datatype for other in datatypes)
        for position, name in enumerate(_buffers(call)):
            operand = getattr(call, name)
            written = name == "recv"
            if self.arguments[position] is not call.arguments[position]:
                continue  # what MPI gets in place of the caller's
            if operand is None:
                if call.shared and not in_place(self.arguments[position]):
                    self.arguments[position] = MPI.IN_PLACE
            elif as_given:
                self.arguments[position] = self._mirror(
                    operand, self.arguments[position], written)
            elif self._must_pack(operand) or operand.datatype is None or differ or (
                not operand.nbytes and (alike or self._is_of_another_type(operand))
            ) or self._gathers_long_complex(operand.datatype):
                self.arguments[position] = self._bytes(operand, written, reduces, datatype)
        in_front = call.collective is collectives.REDUCE_SCATTER and call.shared
        if in_front and not as_given and not self._direct:
            self._move_input(call.recv, call.counts, call.rank)
        if call.shared and self._exchanges_in_place():
            self.arguments[0] = self._copy_of_input(call.recv)

    def _move_input(self, operand: Operand, counts: Sequence[int], rank: int) -> None:
        """Reduce_scatter in place gets a copy where a block would move over itself."""
        # quirk: reduce-scatter-in-place
        if not any(0 < start < count for start, count in zip(offsets(counts), counts)):
            return
        if self._must_pack(operand):
            recv, datatype = self.arguments[1]
        else:
            recv, datatype = operand.vector, operand.datatype
        send = np.empty_like(recv)
        self.packing.append(lambda: np.copyto(send, recv))
        block = recv[: counts[rank] // recv.itemsize]
        self.arguments[:2] = [send, datatype], [block, datatype]

    def _exchanges_in_place(self) -> bool:
        returns_early = self.call.nonblocking or self.call.persistent
        is_exchange = self.method in ("Alltoallv", "Alltoallw")
        return returns_early and is_exchange and applies("exchanges-in-place")

    def _copy_of_input(self, operand: Operand) -> list[Any]:
        """What an exchange sends in place of IN_PLACE."""
        # quirk: exchanges-in-place
        assert operand.counts is not None
        room = np.empty(operand.nbytes, BYTES)
        on_host = operand.device is None or operand.mirror is not None
        if operand.packed or not on_host:
            self.packed(buffers.host_copies(operand), room, written=False)
        else:
            self.packing.append(partial(np.copyto, room, buffers.bytes_of(operand)))
        if self.method == "Alltoallv":
            return [room, operand.counts, MPI.BYTE]
        types = [MPI.BYTE] * len(operand.counts)
        return [room, operand.counts, offsets(operand.counts)[:-1], types]

    def _may_have_pointers(self, call: Any) -> bool:
        """Whether MPI takes device pointers here, which it never does beyond blocking calls."""
        if not call.on_device or call.nonblocking or call.persistent or not cuda_awareness()[0]:
            return False
        for operand in call.operands:  # MPI reads device memory when it likes
            self.packing.append(partial(_synchronize, operand))
        return True

    def _must_pack(self, operand: Operand) -> bool:
        return operand.packed or (operand.device is not None and not self._direct)

    def _mirror(self, operand: Operand, argument: Any, written: bool) -> Any:
        """The same counts and type over the host's mirror of device memory; host memory itself."""
        if operand.mirror is None:
            return argument
        self.packing.append(operand.fetch)
        if written:
            self.unpacking.append(operand.put)
        return [operand.mirror, *argument[1:]]

    def _bytes(
        self, operand: Operand, written: bool, reduces: bool, datatype: MPI.Datatype | None
    ) -> list[Any]:
        dtype = operand.dtype or BYTES
        work = operand.vector if operand.nbytes else np.empty(0, dtype)
        if self._must_pack(operand) and operand.nbytes:
            module = np if operand.device is None else gpu.PAGE_LOCKED
            room = module.empty(operand.nbytes, BYTES)
            work = self.packed(buffers.host_copies(operand), room.view(dtype), written)
        if reduces:
            return [work, datatype]
        # as elements of their type: other ranks may not pack. quirk: algorithm-by-datatype
        typed = operand if operand.nbytes or self.call.recv is None else self.call.recv
        element = (typed.datatype and ops.element_of(typed.datatype)) or MPI.BYTE
        if self._gathers_long_complex(element):
            element = MPI.LONG_DOUBLE
        size = element.Get_size()
        message = [work.view(BYTES), element]
        if operand.counts is not None:
            message.insert(1, [count // size for count in operand.counts])
        return message

    def _is_of_another_type(self, empty: Operand) -> bool:
        """Whether what a rank sends, nothing, has another type than what it receives."""
        # quirk: algorithm-by-datatype
        return self.call.recv is not None and empty.datatype != self.call.recv.datatype

    def _gathers_long_complex(self, datatype: MPI.Datatype) -> bool:
        is_gather = self.method == "Gather" and datatype == MPI.C_LONG_DOUBLE_COMPLEX
        return is_gather and applies("gather-of-long-complex")

    def is_given(self, arguments: Sequence[object]) -> bool:
        """Whether MPI gets just these arguments, the caller's own, and nothing has to be copied."""
        return not self.staged and all(map(operator.is_, self.arguments, arguments))

    def open_door(  # noqa: D102
        self, door: Any, arguments: tuple[object, ...], mark: bytes, patience: float | None
    ) -> None:
        call = self.call
        names = _PARAMETERS.get(call.form, ())
        types = [operand.datatype for operand in call.operands]
        are_own = all(datatype is not None and datatype.is_predefined for datatype in types)
        # quirk: empty-buffers-alias
        is_empty = not all(operand.nbytes for operand in call.operands)
        if not (names and are_own and self.is_given(call.arguments)) or is_empty:
            return
        if self.context.timeout is not None:  # the watcher looks for how long it takes
            return
        if call.op is not None and not call.op.is_predefined:  # the user may free it
            return
        nbytes = call.own_bytes if call.collective.blocks_of_ranks else call.nbytes
        counts = [nbytes // datatype.Get_size() for datatype in types]
        if max(counts) > _MOST:
            return
        values = {
            "send_count": counts[0], "send_type": MPI._handleof(types[0]),
            "recv_count": counts[-1], "recv_type": MPI._handleof(types[-1]),
            "root": call.root, "comm": MPI._handleof(self.comm),
        }  # fmt: skip
        if call.op is not None:
            values["op"] = MPI._handleof(call.op)
        addresses, places = [], []
        for name, argument in zip(_buffers(call), call.arguments):
            is_read = getattr(call, name) is not None or call.shared
            values[name] = int(MPI.IN_PLACE) if is_read and in_place(argument) else 0
            if (array := array_of(argument)) is not None:
                addresses.append(names.index(name))
                places.append((address(array), 0, array.nbytes))
        function = address_of(f"MPI_{call.method}")
        parameters = tuple(values[name] for name in names)
        door.learn_native(arguments, function, parameters, tuple(addresses), mark, tuple(places))

    def run(self, record: Record | None = None) -> None:  # noqa: D102
        self.pack()
        self._call(self.method)
        self.unpack()

    def _issue(self) -> MPI.Request:
        request: MPI.Request = self._call(f"I{self.method.lower()}")
        return owning(request, self.arguments)

    def persistent(self, info: MPI.Info) -> Self | MPI.Prequest:
        """MPI's own where it takes the caller's buffers and no call has to be recorded."""
        if stale_when_persistent(self.method):
            return self
        try:
            request: MPI.Prequest = self._call(f"{self.method}_init", info)
        except NotImplementedError:  # quirk: no-persistent
            return self
        self._request = self._kept = request = owning(request, self.arguments)
        return self if self.staged or self.context.lists_all else request

    def _start(self) -> None:
        if self._kept is None:
            super()._start()
        else:
            self._kept.Start()

    def _give_up(self) -> None:
        super()._give_up()
        self._kept = None

    def Free(self) -> None:
        """Free MPI's request."""
        super().Free()
        if self._kept is not None:
            self._kept.Free()
            self._kept = None

    def _call(self, name: str, *more: object) -> Any:
        return native_method(self.comm, name)(*self.arguments, *more)


def _buffers(call: Any) -> tuple[str, ...]:
    """Which operands the first arguments of a call are."""
    if call.collective is collectives.BARRIER:
        return ()
    return ("recv",) if call.collective is collectives.BCAST else ("send", "recv")


def _touch(send: Operand, recv: Operand) -> bool:
    """Whether one is empty and its address lies in the memory of the other, or at the end of it."""
    if send.nbytes and recv.nbytes:
        return False
    arrays = send.buffer, recv.buffer
    if not all(isinstance(array, np.ndarray) and array.flags.forc for array in arrays):
        return True
    (start, end), (first, last) = buffers.span(send.buffer), buffers.span(recv.buffer)
    return start <= last and first <= end


def _synchronize(operand: Operand) -> None:
    operand.caller_stream().synchronize()
