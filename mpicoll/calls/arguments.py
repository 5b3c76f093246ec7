"""What the arguments of each collective mean: one function per mpi4py method, from its arguments to a checked `Call`."""

import numpy as np
from mpi4py import MPI

from .. import collectives
from ..buffers import in_place, operand
from ..errors import ArgumentError, BufferError
from .call import Call


def allreduce(comm, sendbuf, recvbuf, op):
    call = Call(comm, "Allreduce", collectives.ALLREDUCE, (sendbuf, recvbuf, op), op=op)
    return _reduction(call, sendbuf, recvbuf)


def reduce(comm, sendbuf, recvbuf, op, root):
    call = Call(comm, "Reduce", collectives.REDUCE, (sendbuf, recvbuf, op, root), root=root, op=op)
    if call.is_root:
        return _reduction(call, sendbuf, recvbuf)
    _only_at_root(call, sendbuf)
    return call.take(operand(sendbuf), None).check_reduction()


def _reduction(call, sendbuf, recvbuf):
    recv, shared = operand(recvbuf, writable=True), in_place(sendbuf)
    send = None if shared else operand(sendbuf)
    return call.take(send, recv, shared).check_reduction(send and send.nbytes)


def _only_at_root(call, buffer):
    if in_place(buffer):
        raise ArgumentError(f"{call.method}: MPI.IN_PLACE is for the root ({call.root}), this is rank {call.rank}")


def reduce_scatter_block(comm, sendbuf, recvbuf, op):
    call = Call(comm, "Reduce_scatter_block", collectives.REDUCE_SCATTER, (sendbuf, recvbuf, op), op=op)
    if shared := in_place(sendbuf):
        send, recv = None, operand(recvbuf, call.size, writable=True)
    else:
        send, recv = operand(sendbuf, call.size), operand(recvbuf, writable=True)
    call.counts = _block_bytes(call, send or recv, vector=False)
    return call.take(send, recv, shared).check_reduction(call.counts[call.rank])


def reduce_scatter(comm, sendbuf, recvbuf, recvcounts, op):
    call = Call(comm, "Reduce_scatter", collectives.REDUCE_SCATTER, (sendbuf, recvbuf, recvcounts, op), op=op)
    shared = in_place(sendbuf)
    send, recv = None if shared else operand(sendbuf), operand(recvbuf, writable=True)
    if recv.foreign or (send and send.foreign):
        call.counts = [recv.nbytes or 0] * call.size
        return call.take(send, recv, shared)
    itemsize = recv.datatype.Get_size() if recv.datatype is not None else recv.dtype.itemsize
    call.counts = [int(count) * itemsize for count in _counts(call, recvcounts, recv.nbytes // itemsize, shared)]
    whole = send or recv
    if whole.nbytes != sum(call.counts):
        raise BufferError(f"Reduce_scatter: the input has {whole.nbytes} bytes, the receive counts ask for {sum(call.counts)}")
    return call.take(send, recv, shared).check_reduction(call.counts[call.rank])


def _counts(call, counts, mine, shared):
    if counts is None and not shared:  # as mpi4py: every rank says how much it receives
        counts = np.empty(call.size, np.int64)
        MPI.Intracomm.Allgather(call.comm, np.array(mine, np.int64), counts)
    if not hasattr(counts, "__len__") or len(counts) != call.size or min(counts) < 0:
        raise BufferError(f"Reduce_scatter: expected {call.size} receive counts, one per rank, got {counts}")
    return counts


def allgather(comm, sendbuf, recvbuf):
    call = Call(comm, "Allgather", collectives.ALLGATHER, (sendbuf, recvbuf))
    return _gathered(call, sendbuf, recvbuf, vector=False)


def allgatherv(comm, sendbuf, recvbuf):
    call = Call(comm, "Allgatherv", collectives.ALLGATHER, (sendbuf, recvbuf))
    return _gathered(call, sendbuf, recvbuf, vector=True)


def gather(comm, sendbuf, recvbuf, root, *, vector=False):
    call = Call(comm, "Gatherv" if vector else "Gather", collectives.GATHER, (sendbuf, recvbuf, root), root=root)
    if call.is_root:
        return _gathered(call, sendbuf, recvbuf, vector)
    _only_at_root(call, sendbuf)
    send = operand(sendbuf)
    call.counts = None if vector else [send.nbytes or 0] * call.size
    return call.take(send, None)


def _gathered(call, sendbuf, recvbuf, vector):
    """A rank that gets all blocks."""
    recv, shared = operand(recvbuf, call.size, vector=vector, writable=True), in_place(sendbuf)
    call.counts = _block_bytes(call, recv, vector)
    send = None if shared else operand(sendbuf)
    return call.take(send, recv, shared).check_block(call.send, "send")


def _block_bytes(call, whole, vector):
    return whole.counts if vector and not whole.foreign else [(whole.nbytes or 0) // call.size] * call.size


def gatherv(comm, sendbuf, recvbuf, root):
    return gather(comm, sendbuf, recvbuf, root, vector=True)


def scatter(comm, sendbuf, recvbuf, root, *, vector=False):
    call = Call(comm, "Scatterv" if vector else "Scatter", collectives.SCATTER, (sendbuf, recvbuf, root), root=root)
    if not call.is_root:
        _only_at_root(call, recvbuf)
        recv = operand(recvbuf, writable=True)
        call.counts = None if vector else [recv.nbytes or 0] * call.size
        return call.take(None, recv)
    send, shared = operand(sendbuf, call.size, vector=vector), in_place(recvbuf)
    call.counts = _block_bytes(call, send, vector)
    recv = None if shared else operand(recvbuf, writable=True)
    return call.take(send, recv, shared).check_block(recv, "receive")


def scatterv(comm, sendbuf, recvbuf, root):
    return scatter(comm, sendbuf, recvbuf, root, vector=True)


def bcast(comm, buf, root):
    call = Call(comm, "Bcast", collectives.BCAST, (buf, root), root=root)
    return call.take(None, operand(buf, writable=not call.is_root))
