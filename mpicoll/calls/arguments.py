"""What the arguments of each collective mean: one function per mpi4py method, from its arguments to a checked `Call`."""

from collections.abc import Sequence
from operator import index
from typing import Any, SupportsIndex

import numpy as np
from mpi4py import MPI

from .. import collectives, errors
from ..buffers import Operand, in_place, operand
from ..errors import ArgumentError
from .call import Call

Comm = MPI.Intracomm


def bcast(comm: Comm, buf: Any, root: SupportsIndex) -> Call:
    call = Call(comm, "Bcast", collectives.BCAST, (buf, root), root=root)
    return call.with_operands(None, operand(buf, writable=not call.is_root))


# Reductions.


def allreduce(comm: Comm, sendbuf: Any, recvbuf: Any, op: MPI.Op) -> Call:
    call = Call(comm, "Allreduce", collectives.ALLREDUCE, (sendbuf, recvbuf, op), op=op)
    return _reduction(call, sendbuf, recvbuf)


def reduce(comm: Comm, sendbuf: Any, recvbuf: Any, op: MPI.Op, root: SupportsIndex) -> Call:
    call = Call(comm, "Reduce", collectives.REDUCE, (sendbuf, recvbuf, op, root), root=root, op=op)
    if call.is_root:
        return _reduction(call, sendbuf, recvbuf)
    _only_at_root(call, sendbuf)
    return call.with_operands(operand(sendbuf), None).check_reduction()


def _reduction(call: Call, sendbuf: Any, recvbuf: Any) -> Call:
    recv, shared = operand(recvbuf, writable=True), in_place(sendbuf)
    send = None if shared else operand(sendbuf)
    return call.with_operands(send, recv, shared).check_reduction(send.nbytes if send else None)


def reduce_scatter_block(comm: Comm, sendbuf: Any, recvbuf: Any, op: MPI.Op) -> Call:
    call = Call(comm, "Reduce_scatter_block", collectives.REDUCE_SCATTER, (sendbuf, recvbuf, op), op=op)
    shared = in_place(sendbuf)
    send = None if shared else operand(sendbuf, call.size)
    recv = operand(recvbuf, call.size if shared else 0, writable=True)
    call.counts = _block_bytes(call, send or recv, vector=False)
    return call.with_operands(send, recv, shared).check_reduction(call.counts[call.rank])


def reduce_scatter(comm: Comm, sendbuf: Any, recvbuf: Any, recvcounts: Any, op: MPI.Op) -> Call:
    call = Call(comm, "Reduce_scatter", collectives.REDUCE_SCATTER, (sendbuf, recvbuf, recvcounts, op), op=op)
    shared = in_place(sendbuf)
    send, recv = None if shared else operand(sendbuf), operand(recvbuf, writable=True)
    itemsize = recv.datatype.Get_size() if recv.datatype is not None else recv.dtype.itemsize if recv.dtype else 1
    call.counts = [index(count) * itemsize for count in _counts(call, recvcounts, recv.nbytes // itemsize, shared)]
    whole = send or recv
    if whole.nbytes != sum(call.counts):
        raise errors.BufferError(
            f"Reduce_scatter: the input has {whole.nbytes} bytes, the receive counts ask for {sum(call.counts)}"
        )
    return call.with_operands(send, recv, shared).check_reduction(call.counts[call.rank])


def _counts(call: Call, counts: Any, mine: int, shared: bool) -> Sequence[int]:
    if counts is None and not shared:  # as mpi4py: every rank says how much it receives
        counts = np.empty(call.size, np.int64)
        MPI.Intracomm.Allgather(call.comm, np.array(mine, np.int64), counts)
    if not hasattr(counts, "__len__") or len(counts) != call.size or min(counts) < 0:
        raise errors.BufferError(f"Reduce_scatter: expected {call.size} receive counts, one per rank, got {counts}")
    given: Sequence[int] = counts
    return given


# Blocks that are gathered.


def allgather(comm: Comm, sendbuf: Any, recvbuf: Any) -> Call:
    call = Call(comm, "Allgather", collectives.ALLGATHER, (sendbuf, recvbuf))
    return _gathered(call, sendbuf, recvbuf, vector=False)


def allgatherv(comm: Comm, sendbuf: Any, recvbuf: Any) -> Call:
    call = Call(comm, "Allgatherv", collectives.ALLGATHER, (sendbuf, recvbuf))
    return _gathered(call, sendbuf, recvbuf, vector=True)


def gather(comm: Comm, sendbuf: Any, recvbuf: Any, root: SupportsIndex, *, vector: bool = False) -> Call:
    method = "Gatherv" if vector else "Gather"
    call = Call(comm, method, collectives.GATHER, (sendbuf, recvbuf, root), root=root)
    if call.is_root:
        return _gathered(call, sendbuf, recvbuf, vector)
    _only_at_root(call, sendbuf)
    send = operand(sendbuf)
    call.counts = None if vector else [send.nbytes] * call.size
    return call.with_operands(send, None)


def gatherv(comm: Comm, sendbuf: Any, recvbuf: Any, root: SupportsIndex) -> Call:
    return gather(comm, sendbuf, recvbuf, root, vector=True)


def _gathered(call: Call, sendbuf: Any, recvbuf: Any, vector: bool) -> Call:
    """A rank that gets all blocks."""
    recv, shared = operand(recvbuf, call.size, vector=vector, writable=True), in_place(sendbuf)
    call.counts = _block_bytes(call, recv, vector)
    send = None if shared else operand(sendbuf)
    return call.with_operands(send, recv, shared).check_block(call.send, "send")


# Blocks that are dealt out.


def scatter(comm: Comm, sendbuf: Any, recvbuf: Any, root: SupportsIndex, *, vector: bool = False) -> Call:
    method = "Scatterv" if vector else "Scatter"
    call = Call(comm, method, collectives.SCATTER, (sendbuf, recvbuf, root), root=root)
    if not call.is_root:
        _only_at_root(call, recvbuf)
        block = operand(recvbuf, writable=True)
        call.counts = None if vector else [block.nbytes] * call.size
        return call.with_operands(None, block)
    send, shared = operand(sendbuf, call.size, vector=vector), in_place(recvbuf)
    call.counts = _block_bytes(call, send, vector)
    recv = None if shared else operand(recvbuf, writable=True)
    return call.with_operands(send, recv, shared).check_block(recv, "receive")


def scatterv(comm: Comm, sendbuf: Any, recvbuf: Any, root: SupportsIndex) -> Call:
    return scatter(comm, sendbuf, recvbuf, root, vector=True)


# Blocks that all exchange.


def alltoall(comm: Comm, sendbuf: Any, recvbuf: Any) -> Call:
    call = Call(comm, "Alltoall", collectives.ALLTOALL, (sendbuf, recvbuf))
    return _exchanged(call, sendbuf, recvbuf, vector=False)


def alltoallv(comm: Comm, sendbuf: Any, recvbuf: Any) -> Call:
    call = Call(comm, "Alltoallv", collectives.ALLTOALL, (sendbuf, recvbuf))
    return _exchanged(call, sendbuf, recvbuf, vector=True)


def _exchanged(call: Call, sendbuf: Any, recvbuf: Any, vector: bool) -> Call:
    """A block for each rank, and one from each; of a rank to itself it says the bytes twice."""
    recv, shared = operand(recvbuf, call.size, vector=vector, writable=True), in_place(sendbuf)
    send = recv if shared else operand(sendbuf, call.size, vector=vector)
    call.counts, received = _block_bytes(call, send, vector), _block_bytes(call, recv, vector)
    sent, kept = call.counts[call.rank], received[call.rank]
    if sent != kept:
        which = f"rank {call.rank} has a block for itself" if vector else "the send buffer has blocks"
        raise errors.BufferError(f"{call.method}: {which} of {sent} bytes, the receive buffer room for {kept}")
    call.with_operands(None if shared else send, recv, shared)
    if call.shared and call.counts != received:
        raise errors.BufferError(f"{call.method}: one array for both, but other counts to receive than to send: take two")
    return call


# What several need.


def _only_at_root(call: Call, buffer: Any) -> None:
    if in_place(buffer):
        raise ArgumentError(f"{call.method}: MPI.IN_PLACE is for the root ({call.root}), this is rank {call.rank}")


def _block_bytes(call: Call, whole: Operand, vector: bool) -> list[int]:
    if vector:
        assert whole.counts is not None
        return whole.counts
    return [whole.nbytes // call.size] * call.size
