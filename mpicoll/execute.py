"""The executor: a schedule bound to buffers becomes persistent point-to-point requests and ufunc calls.

Binding is done once per plan; running it starts requests, waits, and reduces, with nothing left to decide. A plan knows
at any moment which round it is in (`Plan.where`).
"""

import atexit
import weakref
from collections import defaultdict
from itertools import chain
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from . import buffers
from .schedule import INPUT, MAX_MESSAGE_BYTES, OUTPUT, Copy, Recv, Reduce, Send, pieces

#: calls on the same memory that are recognised, per communicator
KNOWN_CALLS = 128
_ALIGN = 64
_PAGE = 4096
_ndarray, _Op, _IN_PLACE, _address = np.ndarray, MPI.Op, MPI.IN_PLACE, MPI.Get_address


class Round(NamedTuple):
    """One round, ready to run: what to start, what to wait for, what to compute, and what it sends."""

    starts: tuple  # bound methods, receives first
    waits: tuple
    operations: tuple  # (function, arguments)
    messages: int
    nbytes: int
    requests: tuple
    text: str


class Wire:
    """What schedules need of one communicator: a private duplicate, tags, pooled scratch, cached plans, counters."""

    _keyval = None
    _alive = weakref.WeakSet()

    def __init__(self):
        self.comm = None
        self.messages = self.nbytes = 0
        self.known = {}  # key of a repeated call: (its plan or None, MPI's own method or None)
        self.active = []
        self.pool = defaultdict(list)
        self.plans = weakref.WeakSet()
        self._tag = 0
        self._alive.add(self)

    def connect(self, comm):
        """Make the private duplicate at the first scheduled collective; that call is collective."""
        if self.comm is None:
            self.comm = MPI.Intracomm.Dup(comm)

    @classmethod
    def of(cls, comm):
        """The wire of this communicator handle; all wrappers of a handle share it. Local: nothing is sent."""
        if cls._keyval is None:
            cls._keyval = MPI.Comm.Create_keyval(delete_fn=lambda comm, key, wire: wire.close())
            atexit.register(cls._release_requests)
        wire = comm.Get_attr(cls._keyval)
        if wire is None:
            wire = cls()
            comm.Set_attr(cls._keyval, wire)
        return wire

    @classmethod
    def _release_requests(cls):
        """Before MPI_Finalize: MPICH reports each request that was not freed."""
        for wire in list(cls._alive):
            wire.free_plans()

    def free_plans(self):
        """Free the requests of all plans, cached or not."""
        for plan in list(self.plans):
            plan.Free()
        self.known.clear()

    def close(self):
        """The communicator is being freed."""
        self.free_plans()
        self._alive.discard(self)
        if self.comm is not None:
            self.comm.Free()

    def next_tag(self):
        """A tag for one persistent plan, reserved in program order, so the same on all ranks; 0 is for blocking calls."""
        self._tag = self._tag % 32000 + 1
        return self._tag

    def take(self, nbytes, module=np):
        """A byte vector of at least `nbytes` from the pool."""
        # a few sizes per power of two: little is wasted, and calls of many sizes do not fill the pool with odd ones
        step = max(_PAGE, 1 << max(0, nbytes.bit_length() - 3))
        size = -(-nbytes // step) * step
        pool = self.pool[module.__name__, size]
        return pool.pop() if pool else module.empty(size, np.uint8)

    def give(self, scratch, module=np):
        """Return a byte vector to the pool."""
        self.pool[module.__name__, scratch.size].append(scratch)

    def keep(self, key, plan, native=None):
        """Let later calls with this key be served by a plan or MPI's method; the oldest makes room, its plan is freed."""
        self.known[key] = plan, native
        if len(self.known) > KNOWN_CALLS:
            oldest = next(iter(self.known))
            freed = self.known.pop(oldest)[0]
            if freed is not None:
                freed.Free()


def repeated(understand, given, algorithm, segment_bytes):
    """What a call on plain arrays is recognised by: all that its checks, its choice and its plan depend on; else None.

    Memory is known by address, so that no plan keeps a caller's array alive; an array that takes the place of another
    of the same type and size is served by the same plan. Written for speed: a repeated call does nothing else in Python.
    """
    key = [understand, algorithm, segment_bytes]
    for argument in given:
        kind = type(argument)
        if kind is _ndarray:
            flags = argument.flags.num
            if not flags & 3:  # neither C- nor F-contiguous
                return None
            key += flags, _address(argument), argument.nbytes, argument.dtype
        elif kind is _Op:
            key.append(argument.handle)
        elif argument is _IN_PLACE or kind is int or argument is None:
            key.append(argument)
        else:
            return None
    return tuple(key)


class Vector(NamedTuple):
    """A contiguous array that holds the elements of a vector from offset `base` on."""

    array: object
    base: int = 0


class LowerCase:
    """mpi4py's `wait` and `test`: they also return a message's object, and a collective has none."""

    def wait(self, status=None):
        """`Wait`; None."""
        self.Wait(status)

    def test(self, status=None):
        """`Test`; (done, None)."""
        return self.Test(status), None


class Plan(LowerCase):
    """A collective bound to its buffers: Start(), then Wait() or Test(), any number of times; Free() at the end.

    As with MPI's persistent collectives, all ranks start the plans of a communicator in the same order; they may wait in
    different orders. Progress is made inside Wait and Test of any plan of the communicator.
    """

    def __init__(self, wire, name, program, loads=(), stores=(), release=()):
        self.wire, self.name, self.program = wire, name, program
        self.numbered = list(enumerate(program))
        self.loads, self.stores, self.release = loads, stores, list(release)
        self.round, self._steps = None, None
        self.owned = ()  # what must live as long as a persistent plan
        wire.plans.add(self)

    def run(self):
        """Start and wait: the blocking call."""
        for load in self.loads:
            load()
        wire = self.wire
        for self.round, (starts, waits, operations, messages, nbytes, _, _) in self.numbered:
            for start in starts:
                start()
            if messages:
                wire.messages += messages
                wire.nbytes += nbytes
            # sends too before any arithmetic: while this rank computes, MPI does not move what the peer waits for
            for wait in waits:
                wait()
            for function, arguments in operations:
                function(*arguments)
        self.round = None
        for store in self.stores:
            store()

    def Start(self):
        """Take the input and begin."""
        self._require_idle("Start")
        for load in self.loads:
            load()
        self._steps = self._progress()
        self.wire.active.append(self)
        self._advance()

    def Wait(self, status=None):
        """Run to the end; the result is then in the caller's buffer. Without Start it returns at once, as MPI's."""
        while self._steps is not None:
            for plan in list(self.wire.active):
                plan._advance()
        return True

    def Test(self, status=None):
        """Make progress without blocking; True when done."""
        for plan in list(self.wire.active):
            plan._advance()
        return self._steps is None

    def Free(self):
        """Free the requests and return the scratch; a plan in flight must be waited for first."""
        if self.program is None:
            return
        self._require_idle("Free")
        for request in chain.from_iterable(step.requests for step in self.program):
            request.Free()
        for release in self.release:
            release()
        self.program = self.numbered = None
        self.owned = ()

    def where(self):
        """Which call, algorithm, round and peers this plan is at; "idle" between calls."""
        if self.round is None:
            return f"{self.name}: idle"
        return f"{self.name}: round {self.round + 1} of {len(self.program)}, {self.program[self.round].text}"

    def _require_idle(self, action):
        if self.program is None:
            raise RuntimeError(f"{action} on a plan that was freed: {self.name}")
        if self._steps is not None:
            raise RuntimeError(f"{action} on a plan in flight, call Wait first: {self.where()}")

    def _advance(self):
        if self._steps is not None and next(self._steps, self) is self:
            self._steps, self.round = None, None
            self.wire.active.remove(self)

    def _progress(self):
        """`run`, yielding wherever it would wait."""
        for self.round, step in enumerate(self.program):
            for start in step.starts:
                start()
            self.wire.messages += step.messages
            self.wire.nbytes += step.nbytes
            for request in step.requests:
                while not request.Test():
                    yield
            for function, arguments in step.operations:
                function(*arguments)
        for store in self.stores:
            store()


class Memory:
    """Where the parts of a schedule lie: input and output vectors, and scratch laid out by the rounds that need it."""

    def __init__(self, steps, edges, vectors, dtype, allocate):
        self.edges, self.vectors = edges, vectors
        self.limit = MAX_MESSAGE_BYTES // dtype.itemsize
        self.shifts, nbytes = scratch_layout(steps, edges, dtype.itemsize)
        self.arena = allocate(nbytes) if nbytes else None
        self.scratch = self.arena[:nbytes].view(dtype) if nbytes else None

    def views(self, part):
        """The array slices of a part, cut into messages; empty blocks have none."""
        for start, end in pieces(part, self.edges, self.limit):
            if part.place in self.vectors:
                array, base = self.vectors[part.place]
                yield array[start - base : end - base]
            else:
                run = part.first if start >= self.edges[part.first] else 0  # a range that wraps is two runs
                shift = self.shifts[part.place, run]
                yield self.scratch[start + shift : end + shift]


def _numbers(part, blocks):
    return [block % blocks for block in range(part.first, part.first + part.count)]


def _same(one, other):
    return one is other or (one.size and one.size == other.size and buffers.address(one) == buffers.address(other))


def scratch_layout(steps, edges, itemsize):
    """Place scratch blocks in one arena: {(name, block): elements to add to a vector offset}, and the arena's bytes.

    Blocks that some operation names as one range lie side by side. Memory is shared by ranges that are never needed in
    the same round: a ring needs two blocks, not a second vector.
    """
    shifts, live, top = {}, [], 0
    for first_round, last_round, name, run in _scratch_runs(steps, len(edges) - 1):
        length = sum(edges[block + 1] - edges[block] for block in run)
        live = sorted(entry for entry in live if entry[2] >= first_round)
        start = 0
        for low, high, _ in live:
            if start + length * itemsize <= low:
                break
            start = max(start, high)
        end = start + -(-length * itemsize // _ALIGN) * _ALIGN
        live.append((start, end, last_round))
        top, offset = max(top, end), start // itemsize
        for block in run:
            shifts[name, block] = offset - edges[block]
            offset += edges[block + 1] - edges[block]
    return shifts, top


def _scratch_runs(steps, blocks):
    """Runs of scratch blocks that must lie side by side: (first round, last round, name, block numbers), by round."""
    rounds_of, joined = defaultdict(list), set()
    for number, step in enumerate(steps):
        for part in chain.from_iterable(operation for operation in step):
            if isinstance(part, tuple) and part.place not in (INPUT, OUTPUT):
                numbers = _numbers(part, blocks)
                joined.update((part.place, block) for block in numbers[:-1])  # joined to the block after it
                for block in numbers:
                    rounds_of[part.place, block].append(number)
    runs = []
    for name, block in sorted(rounds_of):
        circle = block == 0 and all((name, other) in joined for other in range(blocks))  # has no beginning: take 0
        if (name, (block - 1) % blocks) in joined and not circle:
            continue
        run = [block]
        while (name, run[-1]) in joined and (run[-1] + 1) % blocks != block:
            run.append((run[-1] + 1) % blocks)
        when = [number for member in run for number in rounds_of[name, member]]
        runs.append((min(when), max(when), name, run))
    return sorted(runs)


def bind(wire, name, steps, edges, vectors, dtype, reduce=None, tag=0, module=np):
    """Bind one rank's rounds to memory as persistent requests; returns a `Plan`.

    steps: tuples of operations. edges: element offsets of the blocks. vectors: {place: Vector} of `dtype` arrays.
    reduce(lower, higher, out): for Reduce. module: NumPy, or CuPy where MPI gets device pointers.
    Memory beside the vectors: the scratch of `scratch_layout`, from the pool until the plan is freed.
    """
    steps = [step for step in steps if step]
    memory = Memory(steps, edges, vectors, dtype, lambda nbytes: wire.take(nbytes, module))
    fence = () if module is np else ((buffers.synchronize, ()),)
    program = [_bind_round(wire.comm, step, memory, reduce, tag, module, fence) for step in steps]
    release = [] if memory.arena is None else [lambda: wire.give(memory.arena, module)]
    return Plan(wire, name, program, loads=[function for function, _ in fence], release=release)


def _bind_round(comm, step, memory, reduce, tag, module, fence):
    receives, sends, nbytes = [], [], 0
    for operation in sorted(step, key=lambda operation: type(operation) is not Recv):
        if type(operation) in (Send, Recv):
            for view in memory.views(operation.part):
                raw = [MPI.memory.fromaddress(buffers.address(view), view.nbytes), MPI.BYTE]
                if type(operation) is Recv:
                    receives.append(comm.Recv_init(raw, operation.peer, tag))
                else:
                    sends.append(comm.Send_init(raw, operation.peer, tag))
                    nbytes += view.nbytes
    operations = [call for operation in step if type(operation) in (Reduce, Copy)
                  for call in _calls(operation, memory, reduce, module)]  # fmt: skip
    # requests are started one by one, receives first: messages of one tag then arrive in the order of the pieces
    requests = tuple(receives + sends)
    return Round(tuple(request.Start for request in requests), tuple(request.Wait for request in requests),
                 tuple(operations) + (fence if operations else ()), len(sends), nbytes, requests, _describe(step))  # fmt: skip


def _calls(operation, memory, reduce, module):
    if type(operation) is Reduce:
        for lower, higher, into in zip(*map(memory.views, operation)):
            yield reduce, (lower, higher, into)
    else:
        for source, into in zip(*map(memory.views, operation)):
            if not _same(source, into):
                yield module.copyto, (into, source)


def _describe(step):
    words = {Send: "sending to", Recv: "receiving from"}
    return ", ".join(f"{words[type(op)]} rank {op.peer}" for op in step if type(op) in words) or "local work"
