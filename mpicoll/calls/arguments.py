"""Arguments: for each mpi4py method a function that parses them and returns a checked `Call`."""

from collections.abc import Callable, Sequence
from functools import cache
from operator import index
from typing import Any, SupportsIndex

import numpy as np
from mpi4py import MPI

from .. import collectives, errors
from ..buffers import Operand, in_place, operand, typed_blocks
from ..errors import ArgumentError
from .call import Call

Comm = MPI.Intracomm
Root = SupportsIndex
Parse = Callable[..., Call]


def bcast(comm: Comm, buf: object, root: Root) -> Call:
    call = Call(comm, "Bcast", collectives.BCAST, (buf, root), root=root)
    buffer = operand(buf, writable=not call.is_root)
    if call.is_root:
        buffer.leave_as_it_is()
    return call.with_operands(None, buffer)


# Compression.


def allowing(parse: Parse, compression: object) -> Parse:
    """The function that parses the same arguments, and lets messages have such codes; None: none.

    One for each compression, by which repeated calls are recognised.
    """
    if compression is None:
        return parse
    return _allowing(parse, compression if isinstance(compression, str) else repr(compression))


@cache
def _allowing(parse: Parse, compression: str) -> Parse:
    def parse_and_allow(*args: Any) -> Call:
        return parse(*args).allow(compression)

    # no door of calls without compression knows it
    parse_and_allow.__name__ = f"{parse.__name__} {compression}"
    return parse_and_allow


# Reductions.


def allreduce(comm: Comm, sendbuf: object, recvbuf: object, op: MPI.Op) -> Call:
    call = Call(comm, "Allreduce", collectives.ALLREDUCE, (sendbuf, recvbuf, op), op=op)
    return _reduction(call, sendbuf, recvbuf)


def reduce(comm: Comm, sendbuf: object, recvbuf: object, op: MPI.Op, root: Root) -> Call:
    args = sendbuf, recvbuf, op, root
    call = Call(comm, "Reduce", collectives.REDUCE, args, root=root, op=op)
    if call.is_root:
        return _reduction(call, sendbuf, recvbuf)
    _only_at_root(call, sendbuf)
    return call.with_operands(operand(sendbuf), None).check_reduction()


def scan(comm: Comm, sendbuf: object, recvbuf: object, op: MPI.Op) -> Call:
    call = Call(comm, "Scan", collectives.SCAN, (sendbuf, recvbuf, op), op=op)
    return _reduction(call, sendbuf, recvbuf)


def exscan(comm: Comm, sendbuf: object, recvbuf: object, op: MPI.Op) -> Call:
    call = Call(comm, "Exscan", collectives.EXSCAN, (sendbuf, recvbuf, op), op=op)
    return _reduction(call, sendbuf, recvbuf)


def _reduction(call: Call, sendbuf: object, recvbuf: object) -> Call:
    recv = operand(recvbuf, writable=True)
    send = _unless_in_place(sendbuf)
    call.with_operands(send, recv, shared=send is None)
    return call.check_reduction(send.nbytes if send else None)


def reduce_scatter_block(comm: Comm, sendbuf: object, recvbuf: object, op: MPI.Op) -> Call:
    args = sendbuf, recvbuf, op
    call = Call(comm, "Reduce_scatter_block", collectives.REDUCE_SCATTER, args, op=op)
    send = _unless_in_place(sendbuf, call.size)
    shared = send is None
    recv = operand(recvbuf, call.size if shared else 0, writable=True)
    call.counts = _block_bytes(call, send or recv, vector=False)
    return call.with_operands(send, recv, shared).check_reduction(call.counts[call.rank])


def reduce_scatter(
    comm: Comm, sendbuf: object, recvbuf: object, recvcounts: object, op: MPI.Op
) -> Call:
    args = sendbuf, recvbuf, recvcounts, op
    call = Call(comm, "Reduce_scatter", collectives.REDUCE_SCATTER, args, op=op)
    send = _unless_in_place(sendbuf)
    shared = send is None
    recv = operand(recvbuf, writable=True)
    itemsize = _itemsize(recv)
    counts = _receive_counts(call, recvcounts, recv.nbytes // itemsize, shared)
    call.counts = [index(count) * itemsize for count in counts]
    input_bytes = (send or recv).nbytes
    if input_bytes != sum(call.counts):
        raise errors.BufferError(
            f"Reduce_scatter: the input has {input_bytes} bytes, "
            f"the receive counts ask for {sum(call.counts)}"
        )
    return call.with_operands(send, recv, shared).check_reduction(call.counts[call.rank])


def _itemsize(recv: Operand) -> int:
    if recv.datatype is not None:
        return recv.datatype.Get_size()
    return recv.dtype.itemsize if recv.dtype else 1


def _receive_counts(call: Call, counts: Any, own_count: int, shared: bool) -> Sequence[int]:
    """One count per rank. Collective where the caller passed none, as in mpi4py."""
    if counts is None and not shared:
        counts = np.empty(call.size, np.int64)
        MPI.Intracomm.Allgather(call.comm, np.array(own_count, np.int64), counts)
    if not hasattr(counts, "__len__") or len(counts) != call.size or min(counts) < 0:
        expected = f"expected {call.size} receive counts, one per rank"
        raise errors.BufferError(f"Reduce_scatter: {expected}, got {counts}")
    return list(counts)


# Collectives that gather blocks.


def allgather(comm: Comm, sendbuf: object, recvbuf: object) -> Call:
    call = Call(comm, "Allgather", collectives.ALLGATHER, (sendbuf, recvbuf))
    return _gathered(call, sendbuf, recvbuf, vector=False)


def allgatherv(comm: Comm, sendbuf: object, recvbuf: object) -> Call:
    call = Call(comm, "Allgatherv", collectives.ALLGATHER, (sendbuf, recvbuf))
    return _gathered(call, sendbuf, recvbuf, vector=True)


def gather(comm: Comm, sendbuf: object, recvbuf: object, root: Root) -> Call:
    return _gather(comm, sendbuf, recvbuf, root, vector=False)


def gatherv(comm: Comm, sendbuf: object, recvbuf: object, root: Root) -> Call:
    return _gather(comm, sendbuf, recvbuf, root, vector=True)


def _gather(comm: Comm, sendbuf: object, recvbuf: object, root: Root, vector: bool) -> Call:
    method = "Gatherv" if vector else "Gather"
    call = Call(comm, method, collectives.GATHER, (sendbuf, recvbuf, root), root=root)
    if call.is_root:
        return _gathered(call, sendbuf, recvbuf, vector)
    _only_at_root(call, sendbuf)
    send = operand(sendbuf)
    call.counts = None if vector else [send.nbytes] * call.size
    return call.with_operands(send, None)


def _gathered(call: Call, sendbuf: object, recvbuf: object, vector: bool) -> Call:
    """The call of a rank that receives all blocks."""
    recv = operand(recvbuf, call.size, vector=vector, writable=True)
    call.counts = _block_bytes(call, recv, vector)
    send = _unless_in_place(sendbuf)
    call.with_operands(send, recv, shared=send is None)
    return call.check_block(call.send, "send")


# Collectives that distribute blocks.


def scatter(comm: Comm, sendbuf: object, recvbuf: object, root: Root) -> Call:
    return _scatter(comm, sendbuf, recvbuf, root, vector=False)


def scatterv(comm: Comm, sendbuf: object, recvbuf: object, root: Root) -> Call:
    return _scatter(comm, sendbuf, recvbuf, root, vector=True)


def _scatter(comm: Comm, sendbuf: object, recvbuf: object, root: Root, vector: bool) -> Call:
    method = "Scatterv" if vector else "Scatter"
    call = Call(comm, method, collectives.SCATTER, (sendbuf, recvbuf, root), root=root)
    if not call.is_root:
        _only_at_root(call, recvbuf)
        block = operand(recvbuf, writable=True)
        call.counts = None if vector else [block.nbytes] * call.size
        return call.with_operands(None, block)
    send = operand(sendbuf, call.size, vector=vector)
    call.counts = _block_bytes(call, send, vector)
    recv = None if in_place(recvbuf) else operand(recvbuf, writable=True)
    return call.with_operands(send, recv, shared=recv is None).check_block(recv, "receive")


# Collectives in which all ranks exchange blocks.


def alltoall(comm: Comm, sendbuf: object, recvbuf: object) -> Call:
    call = Call(comm, "Alltoall", collectives.ALLTOALL, (sendbuf, recvbuf))
    recv = operand(recvbuf, call.size, writable=True)
    return _exchanged(call, _unless_in_place(sendbuf, call.size), recv)


def alltoallv(comm: Comm, sendbuf: object, recvbuf: object) -> Call:
    call = Call(comm, "Alltoallv", collectives.ALLTOALL, (sendbuf, recvbuf))
    recv = operand(recvbuf, call.size, vector=True, writable=True)
    send = None if in_place(sendbuf) else operand(sendbuf, call.size, vector=True)
    return _exchanged(call, send, recv)


def alltoallw(comm: Comm, sendbuf: object, recvbuf: object) -> Call:
    call = Call(comm, "Alltoallw", collectives.ALLTOALL, (sendbuf, recvbuf))
    recv = typed_blocks(recvbuf, call.size, writable=True)
    send = None if in_place(sendbuf) else typed_blocks(sendbuf, call.size)
    return _exchanged(call, send, recv)


def _exchanged(call: Call, send: Operand | None, recv: Operand) -> Call:
    """Both arguments of a rank name the bytes of its block to itself, which must be equal."""
    vector = call.is_uneven
    call.counts = _block_bytes(call, send or recv, vector)
    received = _block_bytes(call, recv, vector)
    own_sent = call.counts[call.rank]
    own_received = received[call.rank]
    if own_sent != own_received:
        own = f"rank {call.rank} has a block for itself" if vector else "the send buffer has blocks"
        raise errors.BufferError(
            f"{call.method}: {own} of {own_sent} bytes, "
            f"the receive buffer room for {own_received}"
        )
    call.with_operands(send, recv, shared=send is None)
    if call.shared and call.counts != received:
        raise errors.BufferError(
            f"{call.method}: one array for both, but other counts to receive than to send: take two"
        )
    return call


# Without data.


def barrier(comm: Comm) -> Call:
    call = Call(comm, "Barrier", collectives.BARRIER, ())
    call.counts = [1] * call.size
    own, everyone = call.context.tokens
    return call.with_operands(operand(own), operand(everyone))


# Helpers.


def _unless_in_place(sendbuf: object, blocks: int = 0) -> Operand | None:
    """The operand of an input; None where the input is in the receive buffer."""
    return None if in_place(sendbuf) else operand(sendbuf, blocks)


def _only_at_root(call: Call, buffer: object) -> None:
    if in_place(buffer):
        raise ArgumentError(
            f"{call.method}: MPI.IN_PLACE is for the root ({call.root}), this is rank {call.rank}"
        )


def _block_bytes(call: Call, whole: Operand, vector: bool) -> list[int]:
    if vector:
        assert whole.counts is not None
        return whole.counts
    return [whole.nbytes // call.size] * call.size
