"""One collective call, parsed and checked: its buffers, blocks and selection query.

Parsing sends nothing: wrong arguments raise before any message.
"""

from collections.abc import Sequence
from copy import copy
from functools import cache
from operator import index
from typing import Any, SupportsIndex

import numpy as np
from mpi4py import MPI

from .. import collectives, engine, errors, nccl
from ..buffers import (
    Compression,
    FixedPoint,
    Operand,
    as_float32,
    cannot_be_compressed,
    cannot_be_fixed,
    coincide,
    compression_of,
    operand,
    ops,
    overlap,
    stage,
)
from ..algorithms import LIBRARIES
from ..collectives import Collective
from ..errors import ArgumentError, did_you_mean
from ..execute import BYTES, Context
from ..graphs import Neighborhood
from ..progress import PROGRESS
from ..schedule import offsets
from ..select import Query
from ..support import settings
from ..support.node import largest_count

#: bytes from which a bcast waits for the others anyway
_SMALL_BCAST = 1000
#: bytes of a plan inside a node, from where on its steps take longer than Python between them: to
#: start and to wait take 2 us more than with MPI's own
_SMALL_PLAN = 4096
#: the same, up to where: data that is only moved MPI copies once, and we twice
_LARGE_PLAN, _LARGE_MOVING_PLAN = 1 << 20, 256 << 10


#: an algorithm in which ranks exchange blocks with the root alone, and need their own count only
LINEAR = "linear"
#: the dtype of sums of a compressed call
_FLOAT = np.dtype(np.float32)
_COMPRESSED = (
    collectives.ALLREDUCE, collectives.REDUCE_SCATTER, collectives.ALLGATHER, collectives.BCAST,
    collectives.REDUCE,
)  # fmt: skip


class Call:
    """A call of one collective on one rank."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        method: str,
        collective: Collective | Neighborhood,
        arguments: Sequence[Any],
        *,
        root: SupportsIndex | None = None,
        op: MPI.Op | None = None,
    ) -> None:
        self.comm = comm
        #: the name of the blocking method
        self.method = method
        self.collective = collective
        #: the arguments of mpi4py's method
        self.arguments = arguments
        self.root = _rank(method, root) if collective.rooted or root is not None else None
        self.op = op
        self._check_comm_and_op()
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()
        self._check_root()
        self.is_root = self.root is None or self.root == self.rank
        self.send: Operand | None = None
        self.recv: Operand | None = None
        #: bytes of each block where blocks belong to ranks; None where only the root knows them
        self.counts: list[int] | None = None
        #: whether the ranks have told each other their counts
        self.counts_agreed = False
        #: whether the input is the receive buffer, or a part of it
        self.shared = False
        self.nonblocking = False
        self.persistent = False
        #: whether the ranks compare it with those of the others; else, whether they know that the
        #: extension would execute it on each of them
        self.is_new = False
        self.runs_in_c = False
        #: what is compared: see `Statement`
        self.what = ""
        self.context = Context.of(comm)
        #: the conversion of floats to fixed point and back, where the call sums in fixed point
        self.fixed: FixedPoint | None = None
        #: the compression that the caller allows, by name
        self.compression = ""
        #: what its messages have in the place of elements, see `in_codes`
        self.codes: Compression | None = None

    def _check_comm_and_op(self) -> None:
        if self.comm == MPI.COMM_NULL:
            raise ArgumentError(f"{self.method} on a communicator that was freed")
        op: object = self.op
        if not self.collective.reduces or (isinstance(op, MPI.Op) and op != MPI.OP_NULL):
            return
        hint = ""
        if isinstance(op, str):
            names = [f"MPI.{name.upper()}" for name in ops.PREDEFINED]
            hint = did_you_mean(f"MPI.{op}", names)
        raise ArgumentError(f"{self.method}: expected an MPI.Op such as MPI.SUM, got {op!r}{hint}")

    def _check_root(self) -> None:
        if self.root is not None and not 0 <= self.root < self.size:
            raise ArgumentError(
                f"{self.method}: root {self.root} is out of range, "
                f"this communicator has ranks 0 to {self.size - 1}"
            )

    # Operands.

    def with_operands(
        self, send: Operand | None, recv: Operand | None, shared: bool = False
    ) -> "Call":
        """Set both operands; where there are two, find out whether they are the same memory."""
        self.send = send
        self.recv = recv
        self.shared = shared
        for each in self.operands:
            self._check_operand(each)
        if send is not None and recv is not None:
            self._check_types(send, recv)
            self._check_overlap(send, recv)
        return self

    def _check_operand(self, operand: Operand) -> None:
        if self.op is not None and ops.host_only(self.op, operand):
            stage(operand)
        is_reproducible_sum = self.context.reproducible and self.op == MPI.SUM
        if operand.rows is not None and not is_reproducible_sum:
            raise ArgumentError(
                f"{self.method}: Contributions are for SUM on a Communicator(…, reproducible=True)"
            )

    def _check_types(self, send: Operand, recv: Operand) -> None:
        both_in_device_memory = send.device is not None and recv.device is not None
        if both_in_device_memory and send.on_device != recv.on_device:
            stage(send)
            stage(recv)
        if send.on_device != recv.on_device:
            raise errors.BufferError(
                f"{self.method}: one buffer is in host memory, the other on a device: "
                "copy one of them first"
            )
        if self.op is not None and not _same_type(send, recv):  # also where both are one array
            types = f"send buffer {type_name(send)}, receive buffer {type_name(recv)}"
            raise errors.BufferError(f"{self.method}: types differ: {types}")

    def _check_overlap(self, send: Operand, recv: Operand) -> None:
        if not overlap(send, recv):
            return
        if not coincide(send, recv):
            raise errors.BufferError(
                f"{self.method}: send and receive buffer overlap without being the same bytes in "
                "the same order: use MPI.IN_PLACE, one array for both, or two arrays"
            )
        self.shared = True
        if self.collective is collectives.SCATTER:  # of a single rank: its block stays in place
            self.recv = None
        else:
            self.send = None

    def check_reduction(self, expected: int | None = None) -> "Call":
        """Check that the operands of a reduction match, and that the op is defined for them.

        expected: bytes of the receive buffer.
        """
        first = self.operands[0]
        assert self.op is not None
        ops.check_op(self.op, first)
        if self.send and self.recv and self.recv.nbytes != expected:
            raise errors.BufferError(
                f"{self.method}: the receive buffer has {self.recv.nbytes} bytes, "
                f"expected {expected} for a send buffer of {self.send.nbytes}"
            )
        if self.context.reproducible and not ops.is_exact(self.op, first):
            self._sum_in_fixed_point(first)
        return self

    def _sum_in_fixed_point(self, source: Operand) -> None:
        """Replace the operands by words in fixed point, converted before and after the call."""
        assert self.op is not None
        if self.op in (MPI.MIN, MPI.MAX):  # they select an element and do not round
            return
        self._check_fixed_point(self.op, source)
        fixed = FixedPoint(source, source.edges)
        self.fixed = fixed
        operands = self.operands
        recv = self.recv
        if recv is None or not self.has_result:
            self.recv = None
            self.send = fixed.to_words(operands, source.nbytes)
        elif self.collective is collectives.REDUCE_SCATTER:
            assert self.counts is not None
            start = sum(self.counts[: self.rank])
            nbytes = self.counts[self.rank]
            self.send = fixed.to_words(operands, source.nbytes)
            self.recv = fixed.from_words(operands[::-1], recv, nbytes, start)
            self.counts = [fixed.bytes_of_words(count) for count in self.counts]
            self.shared = False
        else:
            self.send = None
            self.recv = fixed.from_words(operands[::-1], recv, source.nbytes)
            self.recv.pack = fixed.encode
            self.shared = True

    def _check_fixed_point(self, op: MPI.Op, source: Operand) -> None:
        if op == MPI.SUM:
            refusal = cannot_be_fixed(source)
        else:
            refusal = f"{ops.op_name(op)} rounds at each step"
        if refusal:
            raise ArgumentError(
                f"{self.method} on a reproducible communicator: {refusal}. "
                "a reproducible sum is made of whole numbers, which any order of adding leaves "
                "alone: use SUM, or an ordinary one"
            )

    def allow(self, name: str) -> "Call":
        """Let messages have codes of the elements; ArgumentError where that cannot be done."""
        compression_of(name)
        collective = self.collective
        if collective not in _COMPRESSED:
            names = ", ".join(each.name for each in _COMPRESSED)
            raise ArgumentError(f"{self.method}: compression={name!r} is for {names}")
        refusal = cannot_be_compressed(self.operands[0])
        if self.op is not None and self.op != MPI.SUM:
            refusal = f"{ops.op_name(self.op)} of quantised elements has no bound; SUM has"
        if self.fixed is not None:
            refusal = "the communicator is reproducible: its sums are made in fixed point"
        if refusal:
            raise ArgumentError(f"{self.method}: compression={name!r}: {refusal}")
        if collective is collectives.BCAST:  # the root gets what the others decode
            self.recv = operand(self.arguments[0], writable=True)
        self.compression = name
        return self

    def in_codes(self) -> "Call":
        """The call as a schedule with codes serves it: of elements in float32."""
        call = copy(self)
        call.codes = compression_of(self.compression)
        dtype = self.operands[0].dtype
        assert dtype is not None
        if dtype != _FLOAT:
            call.send = self.send and as_float32(self.send)
            call.recv = self.recv and as_float32(self.recv)
            if self.counts is not None:
                call.counts = [count // dtype.itemsize * _FLOAT.itemsize for count in self.counts]
        return call

    def check_block(self, operand: Operand | None, side: str) -> "Call":
        """Check that a send or receive buffer of one block has the bytes that the counts say."""
        if operand and self.counts and operand.nbytes != self.counts[self.rank]:
            raise errors.BufferError(
                f"{self.method}: the {side} buffer of rank {self.rank} has {operand.nbytes} bytes, "
                f"expected {self.counts[self.rank]} (one block)"
            )
        return self

    # Description.

    @property
    def native_arguments(self) -> Sequence[Any]:
        """The arguments of MPI's own call."""
        return self.arguments

    @property
    def form(self) -> str:
        """The name of the method that the user called."""
        if self.nonblocking:
            return f"I{self.method.lower()}"
        return f"{self.method}_init" if self.persistent else self.method

    @property
    def operands(self) -> list[Operand]:
        """The send and the receive operand, as far as there are such."""
        return [operand for operand in (self.send, self.recv) if operand is not None]

    @property
    def is_source(self) -> bool:
        """Whether this rank only reads its receive buffer: the root of a bcast has no other.

        Compressed, the root gets what the others decode.
        """
        return self.collective is collectives.BCAST and self.is_root and not self.compression

    @property
    def dtype(self) -> Any:
        """The dtype of the work vectors: that of the reduction, or bytes."""
        has_numbers = self.op is not None or self.codes is not None
        return self.operands[0].dtype if has_numbers else BYTES

    @property
    def keeps_sums(self) -> bool:
        """Whether the caller wants its own block of sums, too, as it was before it was coded."""
        return self.recv is not None and self.recv.sums is not None

    @property
    def on_device(self) -> bool:
        """Whether MPI gets device pointers, and the device reduces what arrives."""
        return any(operand.on_device for operand in self.operands)

    @property
    def has_size(self) -> bool:
        """Whether this rank can say how many bytes it moves; a barrier's are its own."""
        return self.nbytes is not None and self.collective is not collectives.BARRIER

    @property
    def has_result(self) -> bool:
        """Whether anything is written on this rank."""
        after = self.collective.postcondition(self.rank, self.size, self.size, self.root or 0)
        return after is not None

    @property
    def nbytes(self) -> int | None:
        """Bytes of the whole vector; None where only the root knows."""
        if self.collective.blocks_of_ranks:
            return sum(self.counts) if self.counts is not None and self.counts_shared else None
        return max((operand.nbytes for operand in self.operands), default=0)

    @property
    def explained_bytes(self) -> int | None:
        """Bytes that `explain` tells."""
        return self.nbytes

    @property
    def own_bytes(self) -> int:
        """Bytes of this rank's own block, where blocks belong to ranks."""
        return self.operands[0].nbytes if self.counts is None else self.counts[self.rank]

    @property
    def counts_shared(self) -> bool:
        """Whether all ranks know the bytes of every block without a message."""
        return self.method not in ("Gatherv", "Scatterv") and not self.is_uneven

    @property
    def is_uneven(self) -> bool:
        """Whether its blocks may have any sizes, which only sender and receiver know."""
        return self.method in ("Alltoallv", "Alltoallw")

    def counts_known(self, algorithm: str) -> bool:
        """Whether this rank knows the bytes of every block that it moves under an algorithm."""
        return self.counts is not None or not self.collective.blocks_of_ranks

    def counts_suffice(self, algorithm: str) -> bool:
        """Whether each rank knows all counts that it needs under an algorithm."""
        needs_own_only = (
            algorithm == LINEAR or algorithm in LIBRARIES or self.collective.personal)
        return self.counts_shared or needs_own_only

    @property
    def stated_size(self) -> str:
        """The size of the call in words, the same on all ranks that make it; "" for a barrier."""
        if self.collective is collectives.BARRIER:
            return ""
        if not self.collective.blocks_of_ranks:
            return f"{self.nbytes} bytes"
        if self.counts is None or not self.counts_shared:
            return "blocks"  # only the root knows those of other ranks, see `comparing`
        if len(set(self.counts)) == 1:
            return f"{len(self.counts)} blocks of {self.counts[0]} bytes"
        return f"blocks of {', '.join(map(str, self.counts))} bytes"

    @property
    def has_one_type(self) -> bool:
        """Whether all ranks move elements of one type, where they say one."""
        return True

    def common_edges(self, edges: list[int]) -> object:
        """What all ranks know of the blocks. edges: of the schedule."""
        # only the root may know all blocks, where it exchanges them with each rank directly
        return edges if self.counts_shared else ""

    @property
    def own_edges(self) -> dict[str, list[int]] | None:
        """Offsets in bytes of the blocks of input and output, where each has its own."""
        return None

    @property
    def edges_received(self) -> list[int] | None:
        """Offsets in bytes of the received blocks, where they differ from those of `counts`."""
        if not self.is_uneven or self.recv is None or self.recv.counts is None:
            return None
        return offsets(self.recv.counts)

    @property
    def type_name(self) -> str:
        """The type of the elements, for a person."""
        return f"{self.fixed.dtype} in fixed point" if self.fixed else type_name(self.operands[0])

    @property
    def text(self) -> str:
        """The call in a few words, the same on all ranks that make it."""
        words = [f"{self.form} of {self.nbytes} bytes" if self.has_size else self.form]
        if self.root is not None:
            words.append(f"root {self.root}")
        if self.op is not None:
            words += [ops.op_name(self.op), self.type_name]
        if self.compression:
            words.append(f"compression={self.compression!r}")
        return ", ".join(words)

    @property
    def repeatable(self) -> bool:
        """Whether a later call with the same `Key` needs the same checks, choice and plan.

        It must be so on all ranks.
        """
        if self.method == "Reduce_scatter" and not isinstance(self.arguments[2], (list, tuple)):
            # without counts the ranks exchange theirs; the contents of an array may change
            return False
        if self.fixed:
            is_packed = not self.fixed.repeatable
        else:
            is_packed = any(operand.packed and operand.typed is None for operand in self.operands)
        if any(operand.reaches_out for operand in self.operands):
            return False  # to memory that a key does not tell
        if self.compression and self.operands[0].dtype != _FLOAT:
            return False  # they are converted, and a plan that is kept would keep them alive
        return not is_packed and (self.op is None or self.op.is_predefined)

    @property
    def is_named_by_messages(self) -> bool:
        """Whether a message of any schedule has a hash of all calls up to this one.

        It has through shared memory, of which all ranks must be a part. The hash knows no types of
        elements that are only moved. Where results are compared, the calls are, each time.
        """
        links = self.context.links
        is_inside = links is not None and len(links.ranks) + 1 == self.size
        return self.op is not None and is_inside and not self.context.digest_every

    @property
    def would_run_in_c(self) -> bool:
        """Whether the extension would execute its schedule on this rank.

        On plain arrays, through shared memory or between nodes, from the second call on through a
        door.
        """
        context = self.context
        return (
            not self.nonblocking
            and not (context.lists_all if self.persistent else context.sees_all)
            and (context.check != settings.ALWAYS or self.is_named_by_messages)
            and (context.links is not None or context.topology.node_count > 1)
            and self.fixed is None
            and engine.has_doors()
            and all(operand.device is None and not operand.packed for operand in self.operands)
            and all(operand.typed is None for operand in self.operands)
            and (self.op is None or self._is_reduced_in_c)
            and not self._would_wait_for_cores
            and (not self.persistent or self._gains_as_a_plan)
        )

    @property
    def _gains_as_a_plan(self) -> bool:
        """Whether the extension serves a plan in less time than MPI's own plan (run/plans.py).

        Between nodes MPI's plans take less time than its blocking calls.
        """
        most = _LARGE_MOVING_PLAN if self.op is None else _LARGE_PLAN
        one_node = self.context.topology.node_count == 1
        return one_node and _SMALL_PLAN <= (self.nbytes or 0) <= most

    @property
    def _would_wait_for_cores(self) -> bool:
        """Whether it is a small bcast where ranks outnumber cores.

        MPI's root does not wait for the others there, ours does once the slots are full.
        """
        links = self.context.links
        is_small = (self.nbytes or 0) < _SMALL_BCAST and self.collective is collectives.BCAST
        return is_small and self.size > 2 and links is not None and links.is_crowded

    @property
    def _is_reduced_in_c(self) -> bool:
        dtype = self.operands[0].dtype
        assert self.op is not None
        return (
            self.op.is_predefined
            and dtype is not None
            and engine.reduces(ops.op_name(self.op), dtype.name)
        )

    # Selection.

    @property
    def query(self) -> Query:
        """What selection may know of this call."""
        without_progress = self._without_progress()
        nbytes = self.nbytes
        if nbytes is None:  # what ranks have agreed on, if they have
            nbytes = self.context.typical_bytes.get(self.method.lower())
        return Query(
            self.collective.name,
            self.context.topology,
            nbytes,
            commutative=self.op is None or self.op.Is_commutative(),
            obstacle=without_progress or self._unfit_for_schedules(),
            unfit=self._unfit_for_native(),
            nccl=without_progress or self._unfit_for_libraries() or nccl.refuses(self),
            once=self.nonblocking,
            uneven=self.is_uneven,
            typed=self.method == "Alltoallw",
            canonical=self._in_canonical_order(),
            engine=settings.C if self.runs_in_c else settings.PYTHON,
            compression=self.compression,
        )

    # Each of these returns a reason, empty where there is none.

    def _without_progress(self) -> str:
        """Why neither a schedule nor NCCL can serve a call that returns before its end."""
        if (self.nonblocking or self.persistent) and not PROGRESS.threaded:
            return (
                "MPI does not grant THREAD_MULTIPLE here, "
                "so that nothing would advance a schedule between calls"
            )
        return ""

    def _unfit_for_schedules(self) -> str:
        """Why no schedule can serve the call."""
        if self.op is None or ops.reducible(self.op, self.operands[0]):
            return ""
        return f"no schedule reduces {ops.op_name(self.op)} on {type_name(self.operands[0])}"

    def _unfit_for_libraries(self) -> str:
        """Why no library gives the bits that the communicator promises."""
        if self.fixed is not None:
            return (
                "the communicator is reproducible: its sums are made in fixed point, "
                "which no library does"
            )
        if self._in_canonical_order():
            return "the communicator is deterministic: no library says in which order it adds"
        return ""

    def _unfit_for_native(self) -> str:
        """Why MPI's own call cannot serve it."""
        datatype = self.operands[0].datatype
        if self.op is not None and datatype is None:
            return "MPI has no such reduction"
        if refusal := self._unfit_for_libraries():
            return refusal
        # Displacements are counts of the whole vector, too. Data that are only moved may be
        # counted in bytes on some rank.
        size = datatype.Get_size() if self.op is not None and datatype is not None else 1
        if (self.nbytes or 0) // max(1, size) > largest_count():
            return f"this MPI library takes no count above {largest_count()}"
        return ""

    def _in_canonical_order(self) -> bool:
        """Whether only the canonical order of the operands is allowed."""
        strict = self.context.deterministic or self.context.reproducible
        return strict and self.op is not None and not ops.is_exact(self.op, self.operands[0])


def _rank(method: str, root: Any) -> int:
    """The root as a plain integer."""
    try:
        return index(root)
    except TypeError:
        raise ArgumentError(f"{method}: expected a rank as root, got {root!r}") from None


@cache
def _dtype_name(dtype: object) -> str:
    return str(dtype)


def type_name(operand: Operand) -> str:
    """The type of an operand's elements, for a person."""
    if operand.dtype is not None:
        return _dtype_name(operand.dtype)
    name = "" if operand.datatype is None else operand.datatype.Get_name()
    return name or "a derived datatype"


def _same_type(send: Operand, recv: Operand) -> bool:
    if send.dtype is not None and recv.dtype is not None:
        return send.dtype == recv.dtype
    return send.datatype is not None and send.datatype == recv.datatype
