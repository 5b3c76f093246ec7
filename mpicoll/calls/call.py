"""One collective call, understood and checked: its buffers, the bytes of its blocks, what selection may know of it.

Nothing is sent while a call is being understood, so whatever is wrong with it is one error before any traffic.
"""

from collections.abc import Sequence
from operator import index
from types import ModuleType
from typing import Any, SupportsIndex

import numpy as np
from mpi4py import MPI

from .. import errors
from ..buffers import Operand, ops, stage
from ..collectives import Collective
from ..errors import ArgumentError
from ..execute import BYTES, PROGRESS, Context
from ..select import Query


class Call:
    """A call of one collective on one rank.

    send, recv: its `Operand`s or None. counts: bytes of each block where blocks belong to ranks; None where only the
    root knows. shared: the input is (part of) the receive buffer. arguments: what mpi4py's method was given.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        method: str,
        collective: Collective,
        arguments: Sequence[Any],
        *,
        root: SupportsIndex | None = None,
        op: MPI.Op | None = None,
    ) -> None:
        self.comm, self.method, self.collective, self.arguments = comm, method, collective, arguments
        self.root, self.op = _rank(method, root), op
        if comm == MPI.COMM_NULL:
            raise ArgumentError(f"{method} on a communicator that was freed")
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        if self.root is not None and not 0 <= self.root < self.size:
            raise ArgumentError(f"{method}: root {root} is out of range, this communicator has ranks 0 to {self.size - 1}")
        self.is_root = self.root is None or self.root == self.rank
        self.send: Operand | None = None
        self.recv: Operand | None = None
        self.counts: list[int] | None = None
        self.shared = self.nonblocking = False

    # Understanding.

    def with_operands(self, send: Operand | None, recv: Operand | None, shared: bool = False) -> "Call":
        """Set both operands; where both are given, find out whether they are the same memory."""
        self.send, self.recv, self.shared = send, recv, shared
        if send is None or recv is None or send.foreign or recv.foreign:
            return self
        if send.device is not None and recv.device is not None and send.staged != recv.staged:
            stage(send)
            stage(recv)
        if send.module is not recv.module:
            raise errors.BufferError(
                f"{self.method}: one buffer is in host memory, the other on a device: copy one of them first"
            )
        if _overlap(send, recv):
            if send.nbytes != recv.nbytes or not _same_layout(send, recv):
                raise errors.BufferError(
                    f"{self.method}: send and receive buffer overlap without being the same: "
                    "use MPI.IN_PLACE, one array for both, or two arrays"
                )
            self.send, self.shared = None, True
        return self

    def check_reduction(self, expected: int | None = None) -> "Call":
        """The operands of a reduction agree with each other, and the op is defined for them; expected: bytes received."""
        send, recv = self.send, self.recv
        one = self.operands[0]
        if not one.foreign:
            assert self.op is not None
            ops.check_op(self.op, one)
        if send and recv and not (send.foreign or recv.foreign):
            if not _same_type(send, recv):
                kinds = f"send buffer {kind(send)}, receive buffer {kind(recv)}"
                raise errors.BufferError(f"{self.method}: types differ: {kinds}")
            if recv.nbytes != expected:
                raise errors.BufferError(
                    f"{self.method}: the receive buffer has {recv.nbytes} bytes, expected {expected} "
                    f"for a send buffer of {send.nbytes}"
                )
        return self

    def check_block(self, operand: Operand | None, whose: str) -> "Call":
        """A block that is sent or received has the bytes that the counts say."""
        if operand and self.counts and not operand.foreign and operand.nbytes != self.counts[self.rank]:
            raise errors.BufferError(
                f"{self.method}: the {whose} buffer of rank {self.rank} has {operand.nbytes} bytes, "
                f"expected {self.counts[self.rank]} (one block)"
            )
        return self

    # What it is about.

    @property
    def operands(self) -> list[Operand]:
        """The operands there are."""
        return [one for one in (self.send, self.recv) if one is not None]

    @property
    def dtype(self) -> Any:
        """Elements of the work vectors: the reduction's, or bytes."""
        return self.operands[0].dtype if self.op is not None else BYTES

    @property
    def module(self) -> ModuleType | Any:
        """What computes on the work vectors: NumPy, or CuPy where MPI gets device pointers."""
        return next((one.module for one in self.operands if not one.staged), np)

    @property
    def nbytes(self) -> int | None:
        """Bytes of the whole vector; None where only the root, or only MPI, knows."""
        if any(one.foreign for one in self.operands):
            return None
        if self.collective.blocks_of_ranks:
            return sum(self.counts) if self.counts is not None and self.counts_shared else None
        return max((one.nbytes for one in self.operands), default=0)

    @property
    def counts_shared(self) -> bool:
        """Whether all ranks know the bytes of every block without being told."""
        return self.method not in ("Gatherv", "Scatterv")

    @property
    def counts_known(self) -> bool:
        """Whether this rank knows the bytes of every block."""
        return self.counts is not None or not self.collective.blocks_of_ranks

    @property
    def repeatable(self) -> bool:
        """Whether a later call on the same memory is the same in all that matters, on this rank and on the others."""
        if self.method in ("Gatherv", "Scatterv", "Reduce_scatter"):  # ranks may have to tell each other their counts
            return False
        return not any(one.staged for one in self.operands) and (self.op is None or self.op.is_predefined)

    @property
    def query(self) -> Query:
        """What selection may know of this call."""
        obstacle, native, commutative = "", True, True
        if any(one.foreign for one in self.operands):
            obstacle = "the memory behind __cuda_array_interface__ is MPI's to judge (host memory, or CuPy is missing)"
        elif self.op is not None:
            one = self.operands[0]
            native, commutative = one.datatype is not None, self.op.Is_commutative()
            if not ops.reducible(self.op, one):
                obstacle = f"no schedule reduces {ops.op_name(self.op)} on {kind(one)}"
        if self.nonblocking and not PROGRESS.threaded:
            obstacle = "MPI does not grant THREAD_MULTIPLE here, so that nothing would advance a schedule between calls"
        topology = Context.of(self.comm).topology
        return Query(self.collective.name, topology, self.nbytes, commutative, obstacle, native, self.nonblocking)

    def release(self) -> None:
        """Free what the operands hold of MPI's."""
        for one in self.operands:
            one.release()


def _rank(method: str, root: SupportsIndex | None) -> int | None:
    """The root as a plain integer, whatever integer it is."""
    try:
        return None if root is None else index(root)
    except TypeError:
        raise ArgumentError(f"{method}: expected a rank as root, got {root!r}") from None


def kind(one: Operand) -> str:
    """How people call the type of an operand's elements."""
    if one.dtype is not None:
        return str(one.dtype)
    return one.datatype.Get_name() if one.datatype is not None and one.datatype.Get_name() else "a derived datatype"


def _overlap(one: Operand, other: Operand) -> bool:
    """Whether two operands share bytes."""
    if one.staged or other.staged:
        arrays = [o.vector if not o.staged else o.buffer for o in (one, other)]
        if not all(isinstance(array, np.ndarray) for array in arrays):
            return one.buffer is other.buffer
        return np.shares_memory(*arrays)
    if not one.nbytes or not other.nbytes:
        return False
    (a, n), (b, m) = one.key, other.key
    return a < b + m and b < a + n


def _same_layout(one: Operand, other: Operand) -> bool:
    if one.staged or other.staged:
        if not (isinstance(one.buffer, np.ndarray) and isinstance(other.buffer, np.ndarray)):
            return one.buffer is other.buffer
        return one.buffer.__array_interface__ == other.buffer.__array_interface__
    return one.key == other.key


def _same_type(one: Operand, other: Operand) -> bool:
    if one.dtype is not None and other.dtype is not None:
        return one.dtype == other.dtype
    return one.datatype is not None and one.datatype == other.datatype
