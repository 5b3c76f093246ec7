"""One collective call, understood and checked: its buffers, the bytes of its blocks, what selection may know of it.

Nothing is sent while a call is being understood, so whatever is wrong with it is one error before any traffic.
"""

from collections.abc import Sequence
from functools import cache
from operator import index
from typing import Any, SupportsIndex

from mpi4py import MPI

from .. import collectives, errors
from ..buffers import FixedPoint, Operand, cannot_be_fixed, coincide, ops, overlap, stage
from ..collectives import Collective
from ..errors import ArgumentError, did_you_mean
from ..execute import BYTES, PROGRESS, Context, nccl
from ..schedule import offsets
from ..select import Query
from ..support.node import largest_count


class Call:
    """A call of one collective on one rank.

    send, recv: its `Operand`s or None. counts: bytes of each block where blocks belong to ranks; None where only the
    root knows. shared: the input is (part of) the receive buffer. arguments: what mpi4py's method was given.
    fixed: how its numbers become whole ones and back, where they are summed in fixed point.
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
        if collective.reduces and (not isinstance(op, MPI.Op) or op == MPI.OP_NULL):
            hint = did_you_mean(f"MPI.{op}", [f"MPI.{name.upper()}" for name in ops.PREDEFINED]) if isinstance(op, str) else ""
            raise ArgumentError(f"{method}: expected an MPI.Op such as MPI.SUM, got {op!r}{hint}")
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        if self.root is not None and not 0 <= self.root < self.size:
            raise ArgumentError(f"{method}: root {root} is out of range, this communicator has ranks 0 to {self.size - 1}")
        self.is_root = self.root is None or self.root == self.rank
        self.send: Operand | None = None
        self.recv: Operand | None = None
        self.counts: list[int] | None = None
        self.shared = self.nonblocking = self.persistent = False
        self.counts_agreed = False
        self.context = Context.of(comm)
        self.fixed: FixedPoint | None = None

    # Understanding.

    def with_operands(self, send: Operand | None, recv: Operand | None, shared: bool = False) -> "Call":
        """Set both operands; where both are given, find out whether they are the same memory."""
        self.send, self.recv, self.shared = send, recv, shared
        for one in self.operands:
            if self.op is not None and ops.host_only(self.op, one):
                stage(one)
            if one.rows is not None and not (self.context.reproducible and self.op == MPI.SUM):
                raise ArgumentError(f"{self.method}: Contributions are for SUM on a Communicator(…, reproducible=True)")
        if send is None or recv is None:
            return self
        if send.device is not None and recv.device is not None and send.on_device != recv.on_device:
            stage(send)
            stage(recv)
        if send.on_device != recv.on_device:
            raise errors.BufferError(
                f"{self.method}: one buffer is in host memory, the other on a device: copy one of them first"
            )
        if self.op is not None and not _same_type(send, recv):  # also where both are one array's memory
            kinds = f"send buffer {kind(send)}, receive buffer {kind(recv)}"
            raise errors.BufferError(f"{self.method}: types differ: {kinds}")
        if overlap(send, recv):
            if not coincide(send, recv):
                raise errors.BufferError(
                    f"{self.method}: send and receive buffer overlap without being the same bytes in the same order: "
                    "use MPI.IN_PLACE, one array for both, or two arrays"
                )
            self.shared = True
            if self.collective is collectives.SCATTER:  # one rank: its block stays where it is
                self.recv = None
            else:
                self.send = None
        return self

    def check_reduction(self, expected: int | None = None) -> "Call":
        """The operands of a reduction agree with each other, and the op is defined for them; expected: bytes received."""
        send, recv = self.send, self.recv
        one = self.operands[0]
        assert self.op is not None
        ops.check_op(self.op, one)
        if send and recv and recv.nbytes != expected:
            raise errors.BufferError(
                f"{self.method}: the receive buffer has {recv.nbytes} bytes, expected {expected} "
                f"for a send buffer of {send.nbytes}"
            )
        if self.context.reproducible and not ops.is_exact(self.op, one):
            self._sum_in_fixed_point(one)
        return self

    def _sum_in_fixed_point(self, source: Operand) -> None:
        """Let whole numbers take the place of floats, which are brought there and back around the call."""
        assert self.op is not None
        if self.op in (MPI.MIN, MPI.MAX):  # one of all: no number is changed
            return
        refusal = cannot_be_fixed(source) if self.op == MPI.SUM else f"{ops.op_name(self.op)} rounds at each step"
        if refusal:
            text = "a reproducible sum is made of whole numbers, which any order of adding leaves alone"
            raise ArgumentError(f"{self.method} on a reproducible communicator: {refusal}. {text}: use SUM, or an ordinary one")
        fixed = self.fixed = FixedPoint(source, source.edges)
        given, target = self.operands, self.recv
        if self.collective is collectives.REDUCE_SCATTER:
            assert self.counts is not None and target is not None
            first = sum(self.counts[: self.rank])
            self.send = fixed.to_words(given, source.nbytes)
            self.recv = fixed.from_words(given[::-1], target, self.counts[self.rank], first)
            self.counts, self.shared = [fixed.bytes_of_words(count) for count in self.counts], False
        elif target is None:
            self.send = fixed.to_words(given, source.nbytes)
        else:
            self.send, self.recv = None, fixed.from_words(given[::-1], target, source.nbytes)
            self.recv.pack, self.shared = fixed.encode, True

    def check_block(self, operand: Operand | None, whose: str) -> "Call":
        """A block that is sent or received has the bytes that the counts say."""
        if operand and self.counts and operand.nbytes != self.counts[self.rank]:
            raise errors.BufferError(
                f"{self.method}: the {whose} buffer of rank {self.rank} has {operand.nbytes} bytes, "
                f"expected {self.counts[self.rank]} (one block)"
            )
        return self

    # What it is about.

    @property
    def form(self) -> str:
        """The method as the user called it."""
        return f"I{self.method.lower()}" if self.nonblocking else f"{self.method}_init" if self.persistent else self.method

    @property
    def operands(self) -> list[Operand]:
        """The operands there are."""
        return [one for one in (self.send, self.recv) if one is not None]

    @property
    def dtype(self) -> Any:
        """Elements of the work vectors: the reduction's, or bytes."""
        return self.operands[0].dtype if self.op is not None else BYTES

    @property
    def on_device(self) -> bool:
        """Whether MPI gets device pointers, and what arrives is reduced on the device."""
        return any(one.on_device for one in self.operands)

    @property
    def nbytes(self) -> int | None:
        """Bytes of the whole vector; None where only the root knows."""
        if self.collective.blocks_of_ranks:
            return sum(self.counts) if self.counts is not None and self.counts_shared else None
        return max((one.nbytes for one in self.operands), default=0)

    @property
    def counts_shared(self) -> bool:
        """Whether all ranks know the bytes of every block without being told."""
        return self.method not in ("Gatherv", "Scatterv", "Alltoallv")

    @property
    def kind(self) -> str:
        """How people call the type of its elements."""
        return f"{self.fixed.dtype} in fixed point" if self.fixed else kind(self.operands[0])

    @property
    def text(self) -> str:
        """The call in a few words, the same on all ranks that make it."""
        said = [f"{self.form} of {self.nbytes} bytes" if self.nbytes is not None else self.form]
        if self.root is not None:
            said.append(f"root {self.root}")
        if self.op is not None:
            said += [ops.op_name(self.op), self.kind]
        return ", ".join(said)

    @property
    def own_bytes(self) -> int:
        """Bytes of this rank's own block, where blocks belong to ranks."""
        return self.operands[0].nbytes if self.counts is None else self.counts[self.rank]

    @property
    def counts_known(self) -> bool:
        """Whether this rank knows the bytes of every block."""
        return self.counts is not None or not self.collective.blocks_of_ranks

    @property
    def edges_received(self) -> list[int] | None:
        """Where the blocks begin that it gets, where they are others than those of `counts`: in bytes."""
        received = self.recv.counts if self.method == "Alltoallv" and self.recv is not None else None
        return None if received is None else offsets(received)

    @property
    def repeatable(self) -> bool:
        """Whether a later call on the same memory is the same in all that matters, on this rank and on the others."""
        if self.method == "Reduce_scatter" and not isinstance(self.arguments[2], (list, tuple)):
            return False  # without counts ranks tell each other theirs; what an array has, may change
        packed = not self.fixed.repeatable if self.fixed else any(one.packed for one in self.operands)
        return not packed and (self.op is None or self.op.is_predefined)

    @property
    def query(self) -> Query:
        """What selection may know of this call."""
        obstacle, native, commutative = "", self._unfit_for_native(), True
        if self.op is not None:
            one = self.operands[0]
            commutative = self.op.Is_commutative()
            if not ops.reducible(self.op, one):
                obstacle = f"no schedule reduces {ops.op_name(self.op)} on {kind(one)}"
        waits_alone = (self.nonblocking or self.persistent) and not PROGRESS.threaded
        if waits_alone:
            obstacle = "MPI does not grant THREAD_MULTIPLE here, so that nothing would advance a schedule between calls"
        topology = self.context.topology
        of_nccl = (obstacle if waits_alone else "") or self._unfit_for_libraries() or nccl.refuses(self)
        uneven, canonical = self.method == "Alltoallv", self._in_canonical_order()
        once = self.nonblocking
        facts = commutative, obstacle, native, of_nccl, once, uneven, canonical
        return Query(self.collective.name, topology, self.nbytes, *facts)

    def _in_canonical_order(self) -> bool:
        """Whether it may be reduced in the canonical order alone."""
        strict = self.context.deterministic or self.context.reproducible
        return strict and self.op is not None and not ops.is_exact(self.op, self.operands[0])

    def _unfit_for_libraries(self) -> str:
        """Why no library's own call can give the bits that were asked for; empty where it can."""
        if self.fixed is not None:
            return "the communicator is reproducible: its sums are made in fixed point, which no library does"
        if self._in_canonical_order():
            return "the communicator is deterministic: no library says in which order it adds"
        return ""

    def _unfit_for_native(self) -> str:
        """Why MPI's own call cannot serve it; empty where it can."""
        one = self.operands[0]
        if self.op is not None and one.datatype is None:
            return "MPI has no such reduction"
        if refusal := self._unfit_for_libraries():
            return refusal
        # of the whole vector, as displacements are such counts too; what is moved may be counted in bytes on any rank
        size = one.datatype.Get_size() if self.op is not None and one.datatype is not None else 1
        if (self.nbytes or 0) // max(1, size) > largest_count():
            return f"this MPI library takes no count above {largest_count()}"
        return ""


def _rank(method: str, root: SupportsIndex | None) -> int | None:
    """The root as a plain integer, whatever integer it is."""
    try:
        return None if root is None else index(root)
    except TypeError:
        raise ArgumentError(f"{method}: expected a rank as root, got {root!r}") from None


@cache
def _name(dtype: object) -> str:
    return str(dtype)


def kind(one: Operand) -> str:
    """How people call the type of an operand's elements."""
    if one.dtype is not None:
        return _name(one.dtype)
    return one.datatype.Get_name() if one.datatype is not None and one.datatype.Get_name() else "a derived datatype"


def _same_type(one: Operand, other: Operand) -> bool:
    if one.dtype is not None and other.dtype is not None:
        return one.dtype == other.dtype
    return one.datatype is not None and one.datatype == other.datatype
