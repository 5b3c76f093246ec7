"""One collective call, understood and checked: its buffers, the bytes of its blocks, and how MPI or a schedule serves it.

Nothing is sent while a call is being understood, so whatever is wrong with it is one error before any traffic.
"""

import numpy as np
from mpi4py import MPI

from . import algorithms, buffers, collectives, select
from .buffers import in_place, operand
from .errors import ArgumentError, BufferError
from .execute import LowerCase, Vector, Wire, bind
from .schedule import INPUT, OUTPUT, bounds, offsets

BYTES = np.dtype(np.uint8)


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
        self.shared = False

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
            buffers.check_op(self.op, one)
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
            if not buffers.reducible(self.op, one):
                obstacle = f"no schedule reduces {buffers.op_name(self.op)} on {_kind(one)}"
        return select.Request(self.collective.name, self.size, self.nbytes, commutative, obstacle, native)

    # serving

    def run(self, algorithm=None, segment_bytes=None, key=None):
        """Serve the call, blocking; key: what the next call on the same memory will be recognised by."""
        name = select.choose(self.request, algorithm).name
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
        name = select.choose(self.request, algorithm).name
        if name == algorithms.NATIVE:
            return NativePlan.of(self, info)
        wire = Wire.of(self.comm)
        wire.connect(self.comm)
        self._share_counts(name)
        plan = self.plan(name, segment_bytes, wire.next_tag())
        plan.owned = self.operands  # the caller may forget the arrays
        return plan

    def _repeatable(self):
        """Whether a later call on the same memory is the same in all that matters, on this rank and on the others."""
        if self.method in ("Gatherv", "Scatterv", "Reduce_scatter"):  # ranks may have to tell each other their counts
            return False
        return not any(one.staged for one in self.operands) and (self.op is None or self.op.is_predefined)

    def _rewritten(self):
        """Whether MPI must get other arguments than the caller's (one array for both buffers)."""
        return self.shared and not any(in_place(argument) for argument in self.arguments[:2])

    def _share_counts(self, name):
        """Trees of Gatherv and Scatterv need the root's counts: they are broadcast first, down the same kind of tree."""
        if self._all_know():
            return
        if self.counts is None:
            self.counts = [0] * self.size
            self.counts[self.rank] = self.operands[0].nbytes
        if name != "linear":
            sizes = np.array(self.counts, np.int64)
            broadcast = Call(self.comm, "Bcast", collectives.BCAST, (), root=self.root).take(None, operand(sizes))
            broadcast.run("binomial")
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
        blocks = entry.vector_blocks(self.size, segments)
        if self.collective.blocks_of_ranks:
            edges = offsets([count // itemsize for count in self.counts])
        else:
            edges = bounds(total // itemsize, blocks)
        return list(self.collective.program(entry.generator, self.rank, self.size, self.root, blocks)), edges

    def plan(self, name, segment_bytes=None, tag=0):
        """Bind the call to an algorithm."""
        wire = Wire.of(self.comm)
        steps, edges = self.steps(name, segment_bytes)
        memory = _Work(self, wire, edges)
        reduce = buffers.reducer(self.op, self.operands[0]) if self.op is not None else None
        plan = bind(wire, f"{self.method} ({name})", steps, edges, memory.vectors, self.dtype, reduce, tag, self.module)
        plan.loads = [*memory.loads, *plan.loads]
        plan.stores = memory.stores
        plan.release += memory.release
        return plan

    def _native(self):
        """MPI's own call, on the caller's buffers where MPI takes them, on packed ones otherwise."""
        work = _NativeWork(self)
        for load in work.loads:
            load()
        native_method(self.comm, self.method)(*work.arguments)
        for store in work.stores:
            store()
        for one in self.operands:
            one.release()


def native_method(comm, name):
    """mpi4py's own method, bound to this communicator."""
    return getattr(MPI.Intracomm, name).__get__(comm)


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


class _Work:
    """The vectors a schedule runs on: the caller's memory, or work arrays from the pool with copies before and after."""

    def __init__(self, call, wire, edges):
        self.call, self.wire, self.edges = call, wire, edges
        self.vectors, self.loads, self.stores, self.release = {}, [], [], []
        before, after = (condition(call.rank, call.size, len(edges) - 1, call.root or 0)
                         for condition in (call.collective.before, call.collective.after))
        send, recv = (self._array(one, one is call.recv) for one in (call.send, call.recv))
        if call.collective is collectives.REDUCE_SCATTER and call.shared:
            self._result_to_front(recv, after)
            return
        if after is not None and recv is not None:
            self.vectors[OUTPUT] = self._vector(recv, after)
        if before is not None and before.place == INPUT:
            source = send if send is not None else recv
            self.vectors[INPUT] = self._vector(source, before)
        if after is not None and recv is None:  # Scatter in place at the root: its block stays where it is
            self.vectors[OUTPUT] = self._vector(send, after)

    def _vector(self, array, part):
        """The array as the vector's elements from this part on; an in-place block lies inside the whole vector."""
        low, high = self.edges[part.first], self.edges[part.first + part.count]
        if array.size == self.edges[-1] != high - low:
            array = array[low:high]
        return Vector(array, low)

    def _array(self, one, written):
        if one is None:
            return None
        if not one.staged:
            vector = one.vector.view(self.call.dtype)
            # by address: a plan kept for repeated calls must not keep the caller's memory alive
            return buffers.at(buffers.address(vector), one.nbytes, self.call.dtype) if one.module is np else vector
        raw = self.wire.take(one.nbytes, np)
        self.release.append(lambda: self.wire.give(raw, np))
        self.release.append(one.release)
        work = raw[: one.nbytes].view(one.dtype or BYTES)
        # a receive buffer is loaded too: in place it is the input, and what a call leaves alone must come back as it was
        self.loads.append(lambda: one.load(work))
        if written:
            self.stores.append(lambda: one.store(work))
        return work.view(self.call.dtype)

    def _result_to_front(self, recv, after):
        """Reduce_scatter in place: the input is the receive buffer, the result goes to its front at the end."""
        size = self.edges[after.first + 1] - self.edges[after.first]
        raw = self.wire.take(size * self.call.dtype.itemsize, self.call.module)
        wire, module = self.wire, self.call.module
        self.release.append(lambda: wire.give(raw, module))
        result = raw[: size * self.call.dtype.itemsize].view(self.call.dtype)
        self.vectors = {INPUT: Vector(recv), OUTPUT: Vector(result, self.edges[after.first])}
        if module is not np:
            self.stores.append(buffers.synchronize)
        self.stores.insert(0, lambda: module.copyto(recv[:size], result))


class _NativeWork:
    """Arguments for MPI's own call: the caller's where MPI takes them, else packed bytes."""

    def __init__(self, call):
        self.loads, self.stores, self.release = [], [], [one.release for one in call.operands]
        self.arguments = list(call.arguments)
        if any(one.module is not np for one in call.operands):
            self.loads.append(buffers.synchronize)  # MPI reads device memory when it likes
        if call.op is not None and any(one.dtype is None for one in call.operands):
            return  # reductions of derived datatypes: MPI knows them, packed bytes would not do
        names = ("recv",) if call.collective is collectives.BCAST else ("send", "recv")
        for position, name in enumerate(names):
            one = getattr(call, name)
            if one is None and call.shared and not in_place(self.arguments[position]):
                self.arguments[position] = MPI.IN_PLACE
            elif one is not None and not one.foreign and (one.staged or one.datatype is None):
                self.arguments[position] = self._packed(call, one, name == "recv")

    def _packed(self, call, one, written):
        if one.staged:
            work = np.empty(one.nbytes, BYTES).view(one.dtype or BYTES)
            self.loads.append(lambda: one.load(work))
            if written:
                self.stores.append(lambda: one.store(work))
        else:
            work = one.vector
        if call.op is not None:
            return [work, one.datatype]
        return [work.view(BYTES), one.counts, MPI.BYTE] if one.counts is not None else [work.view(BYTES), MPI.BYTE]


class NativePlan(LowerCase):
    """MPI's persistent collective on packed buffers: packs at Start, writes back when it is done."""

    def __init__(self, request, work):
        self.request, self.work, self.started = request, work, False

    @classmethod
    def of(cls, call, info):
        """MPI's own persistent request where it takes the caller's buffers, else one with packing around it."""
        work = _NativeWork(call)
        request = native_method(call.comm, call.method + "_init")(*work.arguments, info)
        return cls(request, work) if work.loads else request

    def Start(self):
        """Pack and start."""
        for load in self.work.loads:
            load()
        self.request.Start()
        self.started = True

    def Wait(self, status=None):
        """Wait and write back."""
        self.request.Wait(status)
        return self._finish()

    def Test(self, status=None):
        """True when done and written back."""
        return bool(self.request.Test(status)) and self._finish()

    def _finish(self):
        for store in self.work.stores if self.started else ():
            store()
        self.started = False
        return True

    def Free(self):
        """Free MPI's request."""
        self.request.Free()
        for release in self.work.release:
            release()
