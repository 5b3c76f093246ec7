"""One collective call, understood and checked: its buffers, the bytes of its blocks, and how MPI or a schedule serves it.

Nothing is sent while a call is being understood, so whatever is wrong with it is one error before any traffic.
"""

import sys
from functools import partial

import numpy as np
from mpi4py import MPI

from .. import algorithms, buffers, collectives, select
from ..buffers import in_place, operand, ops
from ..errors import ArgumentError, BufferError
from ..execute import BYTES, PROGRESS, Lane, NativePlan, NativeWork, Wire, Work, bind, native_method
from ..schedule import bounds, offsets
from ..select import probe
from ..support import settings


class Call:
    """A call of one collective on one rank.

    send, recv: its `Operand`s or None. counts: bytes of each block where blocks belong to ranks; None where only the
    root knows. shared: the input is (part of) the receive buffer. arguments: what mpi4py's method was given.
    """

    def __init__(self, comm, method, collective, arguments, *, root=None, op=None):
        self.comm, self.method, self.collective, self.arguments = comm, method, collective, arguments
        self.root, self.op = root, op
        if comm == MPI.COMM_NULL:
            raise ArgumentError(f"{method} on a communicator that was freed")
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        if root is not None and not 0 <= root < self.size:
            raise ArgumentError(f"{method}: root {root} is out of range, this communicator has ranks 0 to {self.size - 1}")
        self.is_root = root is None or root == self.rank
        self.send = self.recv = self.counts = None
        self.shared = self.nonblocking = False

    # understanding

    def take(self, send, recv, shared=False):
        """Set both operands; where both are given, find out whether they are the same memory."""
        self.send, self.recv, self.shared = send, recv, shared
        if send is None or recv is None or send.foreign or recv.foreign:
            return self
        if send.device is not None and recv.device is not None and send.staged != recv.staged:
            send.stage(), recv.stage()
        if send.module is not recv.module:
            raise BufferError(f"{self.method}: one buffer is in host memory, the other on a device: copy one of them first")
        if _overlap(send, recv):
            if send.nbytes == recv.nbytes and _same_layout(send, recv):
                self.send, self.shared = None, True
            else:
                raise BufferError(
                    f"{self.method}: send and receive buffer overlap without being the same: "
                    "use MPI.IN_PLACE, one array for both, or two arrays"
                )
        return self

    def check_reduction(self, expected=None):
        """The operands of a reduction agree with each other, and the op is defined for them; expected: bytes received."""
        send, recv = self.send, self.recv
        one = send or recv
        if not one.foreign:
            ops.check_op(self.op, one)
        if send and recv and not (send.foreign or recv.foreign):
            if not _same_type(send, recv):
                raise BufferError(f"{self.method}: types differ: send buffer {_kind(send)}, receive buffer {_kind(recv)}")
            if recv.nbytes != expected:
                raise BufferError(
                    f"{self.method}: the receive buffer has {recv.nbytes} bytes, expected {expected} "
                    f"for a send buffer of {send.nbytes}"
                )
        return self

    def check_block(self, operand, whose):
        """A block that is sent or received has the bytes that the counts say."""
        if operand and self.counts and not operand.foreign and operand.nbytes != self.counts[self.rank]:
            raise BufferError(
                f"{self.method}: the {whose} buffer of rank {self.rank} has {operand.nbytes} bytes, "
                f"expected {self.counts[self.rank]} (one block)"
            )
        return self

    @property
    def operands(self):
        """The operands there are."""
        return [one for one in (self.send, self.recv) if one is not None]

    @property
    def dtype(self):
        """Elements of the work vectors: the reduction's, or bytes."""
        return self.operands[0].dtype if self.op is not None else BYTES

    @property
    def module(self):
        """What computes on the work vectors: NumPy, or CuPy where MPI gets device pointers."""
        return next((one.module for one in self.operands if not one.staged), np)

    @property
    def nbytes(self):
        """Bytes of the whole vector; None where only the root, or only MPI, knows."""
        if any(one.foreign for one in self.operands):
            return None
        if self.collective.blocks_of_ranks:
            return sum(self.counts) if self._all_know() else None
        return max((one.nbytes for one in self.operands), default=0)

    def _all_know(self):
        return self.method not in ("Gatherv", "Scatterv")

    @property
    def counts_known(self):
        """Whether this rank knows the bytes of every block."""
        return self.counts is not None or not self.collective.blocks_of_ranks

    @property
    def request(self):
        """What selection may know of this call."""
        obstacle, native, commutative = "", True, True
        if any(one.foreign for one in self.operands):
            obstacle = "the memory behind __cuda_array_interface__ is MPI's to judge (host memory, or CuPy is missing)"
        elif self.op is not None:
            one = self.operands[0]
            native = one.datatype is not None
            commutative = self.op.Is_commutative()
            if not ops.reducible(self.op, one):
                obstacle = f"no schedule reduces {ops.op_name(self.op)} on {_kind(one)}"
        if self.nonblocking and not PROGRESS.threaded:
            obstacle = "MPI does not grant THREAD_MULTIPLE here, so that nothing would advance a schedule between calls"
        topology = Wire.of(self.comm).topology
        return select.Request(self.collective.name, topology, self.nbytes, commutative, obstacle, native, self.nonblocking)

    # serving

    def run(self, algorithm=None, segment_bytes=None, key=None):
        """Serve the call, blocking; key: what the next call on the same memory will be recognised by."""
        name, segment_bytes, _ = self.choose(algorithm, segment_bytes)
        wire = Wire.of(self.comm)
        keep = key is not None and self._repeatable()
        if name == algorithms.NATIVE:
            if keep and not any(one.datatype is None for one in self.operands) and not self._rewritten():
                wire.keep(key, None, getattr(MPI.Intracomm, self.method))
            return self._native()
        wire.connect(self.comm)
        self._share_counts(name)
        plan = self.plan(name, segment_bytes)
        plan.run()
        if keep:
            wire.keep(key, plan)
        else:
            plan.Free()

    def init(self, info, algorithm=None, segment_bytes=None):
        """A persistent plan of the call."""
        name, segment_bytes, _ = self.choose(algorithm, segment_bytes)
        if name == algorithms.NATIVE:
            return NativePlan.of(self, info)
        wire = Wire.of(self.comm)
        wire.connect(self.comm)
        self._share_counts(name)
        plan = self.plan(name, segment_bytes, wire.next_tag())
        plan.owned, plan.around = self.operands, self.around()  # the caller may forget the arrays
        return plan

    def around(self):
        """The context in which any thread may serve the call, or None; what the device still computes for it is waited for."""
        if all(one.device is None for one in self.operands):
            return None
        buffers.synchronize()
        return buffers.current_device()

    def choose(self, algorithm, segment_bytes, measured=probe.best):
        """The `Choice` that serves the call; measured: how the probe is asked, which may communicate."""
        from .trial import trial

        choice = select.choose(self.request, algorithm, segment_bytes, partial(measured, self.comm, trial))
        if algorithm is None and self.rank == 0 and settings.verbose():
            print(f"mpicoll: {self.method} of {self.nbytes} bytes on {self.size} ranks: {choice}", file=sys.stderr, flush=True)
        return choice

    def _repeatable(self):
        """Whether a later call on the same memory is the same in all that matters, on this rank and on the others."""
        if self.method in ("Gatherv", "Scatterv", "Reduce_scatter"):  # ranks may have to tell each other their counts
            return False
        return not any(one.staged for one in self.operands) and (self.op is None or self.op.is_predefined)

    def _rewritten(self):
        """Whether MPI must get other arguments than the caller's (one array for both buffers)."""
        return self.shared and not any(in_place(argument) for argument in self.arguments[:2])

    def _share_counts(self, name):
        """`sharing_counts`, blocking."""
        if not self._all_know():
            PROGRESS.wait(PROGRESS.launch(self.sharing_counts(name, Wire.of(self.comm).next_tag()), Lane()))

    def sharing_counts(self, name, tag):
        """Trees of Gatherv and Scatterv need the root's counts: a flight that broadcasts them first, down such a tree."""
        if self._all_know():
            return
        if self.counts is None:
            self.counts = [0] * self.size
            self.counts[self.rank] = self.operands[0].nbytes
        if name != "linear":
            sizes = np.array(self.counts, np.int64)
            broadcast = Call(self.comm, "Bcast", collectives.BCAST, (), root=self.root).take(None, operand(sizes))
            plan = broadcast.plan("binomial", tag=tag)
            yield from plan.run_in_flight()
            plan.Free()
            own, self.counts = self.counts[self.rank], sizes.tolist()
            if own != self.counts[self.rank]:
                raise BufferError(f"{self.method}: rank {self.rank} has a block of {own} bytes, the root says "
                                  f"{self.counts[self.rank]}")

    def steps(self, name, segment_bytes=None):
        """This rank's rounds under an algorithm, and the element offsets of its blocks."""
        entry = algorithms.find(self.collective.name, name)
        itemsize = self.dtype.itemsize
        total = self.nbytes if self.nbytes is not None else sum(self.counts)
        segments = max(1, -(-total // (segment_bytes or select.SEGMENT_BYTES)))
        nodes = Wire.of(self.comm).topology.nodes
        blocks = entry.vector_blocks(self.size, segments, nodes)
        if self.collective.blocks_of_ranks:
            edges = offsets([count // itemsize for count in self.counts])
        else:
            edges = bounds(total // itemsize, blocks)
        return list(self.collective.program(entry.placed(nodes), self.rank, self.size, self.root, blocks)), edges

    def pieces(self, name, segment_bytes):
        """The bytes that messages are cut into, or None."""
        return segment_bytes if algorithms.find(self.collective.name, name).cuttable else None

    def plan(self, name, segment_bytes=None, tag=0):
        """Bind the call to an algorithm."""
        wire = Wire.of(self.comm)
        steps, edges = self.steps(name, segment_bytes)
        memory = Work(self, wire, edges)
        reduce = ops.reducer(self.op, self.operands[0]) if self.op is not None else None
        plan = bind(wire, f"{self.method} ({name})", steps, edges, memory.vectors, self.dtype, reduce, tag, self.module,
                    self.pieces(name, segment_bytes))  # fmt: skip
        plan.loads = [*memory.loads, *plan.loads]
        plan.stores = memory.stores
        plan.release += memory.release
        return plan

    def _native(self):
        """MPI's own call, on the caller's buffers where MPI takes them, on packed ones otherwise."""
        work = NativeWork(self)
        for load in work.loads:
            load()
        native_method(self.comm, self.method)(*work.arguments)
        for store in work.stores:
            store()
        self.release()

    def release(self):
        """Free what the operands hold of MPI's."""
        for one in self.operands:
            one.release()


def _overlap(one, other):
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


def _same_layout(one, other):
    if one.staged or other.staged:
        if not (isinstance(one.buffer, np.ndarray) and isinstance(other.buffer, np.ndarray)):
            return one.buffer is other.buffer
        return one.buffer.__array_interface__ == other.buffer.__array_interface__
    return one.key == other.key


def _same_type(one, other):
    if one.dtype is not None and other.dtype is not None:
        return one.dtype == other.dtype
    return one.datatype is not None and one.datatype == other.datatype


def _kind(one):
    return str(one.dtype) if one.dtype is not None else one.datatype.Get_name() or "a derived datatype"
