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

from . import buffers, dataflow
from .dataflow import Task
from .progress import PROGRESS, Lane
from .schedule import INPUT, MAX_MESSAGE_BYTES, OUTPUT, Copy, Recv, Reduce, Send, pieces
from .topology import discover, inherited

#: calls on the same memory that are recognised, per communicator, and the scratch and requests that their plans may hold
KNOWN_CALLS, KEPT_BYTES, KEPT_REQUESTS = 128, 512 << 20, 1 << 16
#: how many pieces run ahead of their turn when messages are cut
AHEAD = 16
_ALIGN = 64
_PAGE = 4096
_ndarray, _Op, _IN_PLACE, _address = np.ndarray, MPI.Op, MPI.IN_PLACE, MPI.Get_address


class Round(NamedTuple):
    """A round or a step of one, ready to run: what to start, what to wait for, what to compute, and what it sends."""

    starts: tuple  # bound methods, receives first
    waits: tuple
    operations: tuple  # (function, arguments)
    messages: int
    nbytes: int
    requests: tuple  # those of `waits`; every request is awaited in one step
    number: int  # of the round
    text: str


class Wire:
    """What schedules need of one communicator: nodes, a private duplicate, tags, scratch, cached plans, counters."""

    _keyval = None
    _alive = weakref.WeakSet()

    def __init__(self, topology, measured=None):
        self.comm = None
        self.topology = topology
        self.measured = {} if measured is None else measured  # what `probe` found, shared by duplicates
        self.messages = self.nbytes = 0
        self.flown = [0, 0]  # the same of flights, which another thread counts
        self.known = {}  # key of a repeated call: (its plan or None, MPI's own method or None)
        self.lane, self.unattended = Lane(), []
        self._connecting = None
        self.pool = defaultdict(list)
        self.plans = weakref.WeakSet()
        self._tag = 0
        self._alive.add(self)

    def connect(self, comm):
        """Make the private duplicate at the first scheduled collective; that call is collective."""
        if self._connecting is not None:
            PROGRESS.wait(PROGRESS.launch(self.connected(), Lane()))
        elif self.comm is None:
            self.comm = MPI.Intracomm(MPI.Intracomm.Dup(comm))  # plain: `Dup` gives the class of `comm`

    def begin_connecting(self, comm):
        """The same without waiting; `connected` then waits."""
        if self.comm is None and self._connecting is None:
            self._connecting = MPI.Intracomm.Idup(comm)

    def connected(self):
        """A generator that ends when there is a private duplicate."""
        while self._connecting is not None:
            comm, request = self._connecting
            if request.Test():
                self.comm, self._connecting = MPI.Intracomm(comm), None
            else:
                yield request

    @classmethod
    def of(cls, comm):
        """The wire of this communicator handle; all wrappers of a handle share it. Collective the first time.

        Communicators made from one that has a wire (`derive`, `duplicate`) know their nodes without asking.
        """
        return cls._get(comm) or cls._set(comm, discover(comm))

    @classmethod
    def derive(cls, comm, parent):
        """Give a communicator of some ranks of `parent` its wire. Local."""
        if comm != MPI.COMM_NULL and cls._get(comm) is None:
            cls._set(comm, inherited(comm, parent, cls.of(parent).topology))
        return comm

    @classmethod
    def duplicate(cls, comm, parent):
        """Give a duplicate of `parent` its wire, with all that was measured. Local."""
        wire = cls.of(parent)
        cls._set(comm, wire.topology, wire.measured)
        return comm

    @classmethod
    def _get(cls, comm):
        if cls._keyval is None:
            # not copied by MPI: Open MPI 5.0's Comm_create_group copies attributes too, to a group of other ranks
            cls._keyval = MPI.Comm.Create_keyval(delete_fn=lambda comm, key, wire: wire.close())
            cls._release_before_finalize()
        return comm.Get_attr(cls._keyval)

    @classmethod
    def _set(cls, comm, topology, measured=None):
        wire = cls(topology, measured)
        comm.Set_attr(cls._keyval, wire)
        return wire

    @classmethod
    def _release_before_finalize(cls):
        """Have the thread ended and the requests freed in time: MPICH reports each request that was not freed.

        MPI_Finalize first deletes the attributes of COMM_SELF; when mpi4py calls it at exit, Python is gone already.
        """

        def deleted(comm, key, handle):
            if comm.handle == handle:  # not a group made of it, to which Open MPI copied the attribute
                cls._release()

        MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=deleted), MPI.COMM_SELF.handle)
        atexit.register(cls._release)

    @classmethod
    def _release(cls):
        PROGRESS.stop()
        for wire in list(cls._alive):
            wire.free_plans()

    def launch(self, steps, landed=None, around=None):
        """Begin a `Flight` on this communicator; `finish` sees to those that no thread advances."""
        flight = PROGRESS.launch(steps, self.lane, landed, around)
        if not PROGRESS.threaded:
            self.unattended.append(flight)
        return flight

    def finish(self):
        """Bring what no thread advances to its end before a call that blocks: other ranks may wait for what it has yet to send.

        It is under way on all ranks then, as collectives begin in the same order everywhere.
        """
        while self.unattended:
            flight = self.unattended.pop()
            if not flight.ended:
                PROGRESS.wait(flight)

    @property
    def sent(self):
        """(messages, bytes) sent in schedules so far."""
        return self.messages + self.flown[0], self.nbytes + self.flown[1]

    def settle(self):
        """Bring what is in flight to its end; not from within MPI's Comm_free, where MPICH lets no other thread in."""
        for flight in self.lane.flights:
            PROGRESS.wait(flight)

    def free_plans(self):
        """Free the requests of all plans, cached or not."""
        for plan in list(self.plans):
            if not plan.in_flight:
                plan.Free()
        self.known.clear()

    def close(self):
        """The communicator is being freed; `settle` came before."""
        self.free_plans()
        self.pool.clear()
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
        while len(self.known) > 1 and self._too_much():
            freed = self.known.pop(next(iter(self.known)))[0]
            if freed is not None:
                freed.Free()

    def _too_much(self):
        plans = [plan for plan, _ in self.known.values() if plan is not None]
        return (len(self.known) > KNOWN_CALLS or sum(plan.scratch for plan in plans) > KEPT_BYTES
                or sum(plan.requests for plan in plans) > KEPT_REQUESTS)  # fmt: skip


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
    different orders. Between Start and Wait it moves by itself where MPI admits threads (`progress`), else in any Wait or Test.
    """

    def __init__(self, wire, name, program, loads=(), stores=(), release=(), scratch=0):
        self.wire, self.name, self.program = wire, name, program
        self.numbered = list(enumerate(program))
        self.loads, self.stores, self.release = loads, stores, list(release)
        self.round, self.flight = None, None
        self.owned, self.around = (), None  # what must live as long as a persistent plan, and where it is advanced
        self.scratch, self.requests = scratch, sum(len(step.requests) for step in program)
        wire.plans.add(self)

    def run(self):
        """Start and wait: the blocking call."""
        for load in self.loads:
            load()
        wire = self.wire
        for self.round, (starts, waits, operations, messages, nbytes, *_) in self.numbered:
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
        self.flight = self.wire.launch(self.run_in_flight(), around=self.around)

    def Wait(self, status=None):
        """Run to the end; the result is then in the caller's buffer. Without Start it returns at once, as MPI's."""
        if self.flight is not None:
            PROGRESS.wait(self.flight)
        return True

    def Test(self, status=None):
        """Make progress without blocking; True when done."""
        return self.flight is None or PROGRESS.test(self.flight)

    @property
    def in_flight(self):
        """Whether it was started and has not ended."""
        return self.flight is not None and not self.flight.ended

    @property
    def nbytes(self):
        """Bytes that this rank sends each time."""
        return sum(step.nbytes for step in self.program)

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
        step = self.program[self.round]
        pieces = f", step {self.round + 1} of {len(self.program)}" if self.program[-1].number + 1 < len(self.program) else ""
        return f"{self.name}: round {step.number + 1} of {self.program[-1].number + 1}{pieces}, {step.text}"

    def _require_idle(self, action):
        if self.program is None:
            raise RuntimeError(f"{action} on a plan that was freed: {self.name}")
        if self.in_flight:
            raise RuntimeError(f"{action} on a plan in flight, call Wait first: {self.where()}")

    def run_in_flight(self):
        """`run` as a flight: a generator of the requests for which it would wait."""
        for load in self.loads:
            load()
        return self._rounds()

    def _rounds(self):
        flown = self.wire.flown
        for self.round, step in enumerate(self.program):
            for start in step.starts:
                start()
            flown[0] += step.messages
            flown[1] += step.nbytes
            for request in step.requests:
                while not request.Test():
                    yield request
            for function, arguments in step.operations:
                function(*arguments)
        self.round = None
        for store in self.stores:
            store()


class Memory:
    """Where the parts of a schedule lie: input and output vectors, and scratch laid out by the rounds that need it."""

    def __init__(self, steps, edges, vectors, dtype, allocate, segment_bytes=None):
        self.edges, self.vectors = edges, vectors
        self.limit = max(1, min(segment_bytes or MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES) // dtype.itemsize)
        # where pieces overtake the rounds' ends, arrivals of the next round must not wait for the memory of this one
        self.shifts, nbytes = scratch_layout(steps, edges, dtype.itemsize, linger=1 if segment_bytes else 0)
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


def scratch_layout(steps, edges, itemsize, linger=0):
    """Place scratch blocks in one arena: {(name, block): elements to add to a vector offset}, and the arena's bytes.

    Blocks that some operation names as one range lie side by side. Memory is shared by ranges that are never needed in
    the same round: a ring needs two blocks, not a second vector. linger: rounds for which memory is kept after its last.
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
        live.append((start, end, last_round + linger))
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


def bind(wire, name, steps, edges, vectors, dtype, reduce=None, tag=0, module=np, segment_bytes=None):
    """Bind one rank's rounds to memory as persistent point-to-point requests; returns a `Plan`.

    steps: tuples of operations. edges: element offsets of the blocks. vectors: {place: Vector} of `dtype` arrays.
    reduce(lower, higher, out): for Reduce. module: NumPy, or CuPy where MPI gets device pointers.
    segment_bytes: cut messages into pieces of at most this many bytes that flow through the rounds; None: round by round.
    Memory beside the vectors: the scratch of `scratch_layout`, from the pool until the plan is freed.
    """
    steps = [step for step in steps if step]
    memory = Memory(steps, edges, vectors, dtype, lambda nbytes: wire.take(nbytes, module), segment_bytes)
    fence = () if module is np else ((buffers.synchronize, ()),)
    rounds = [list(tasks_of(step, memory, reduce, module)) for step in steps]
    ordered = dataflow.by_pieces(rounds, AHEAD) if segment_bytes else dataflow.by_rounds(rounds)
    requests = {id(task): _request(wire.comm, task, tag) for task in chain.from_iterable(rounds) if task.peer is not None}
    program = [_bind_step(step, requests, fence, _describe(steps[step.round])) for step in ordered]
    release = [] if memory.arena is None else [lambda: wire.give(memory.arena, module)]
    scratch = 0 if memory.arena is None else memory.arena.size
    return Plan(wire, name, program, loads=[function for function, _ in fence], release=release, scratch=scratch)


def tasks_of(step, memory, reduce, module):
    """The pieces of one round, receives first, then sends, then what is computed."""
    for kind in (Recv, Send):
        for operation in step:
            if type(operation) is kind:
                for view in memory.views(operation.part):
                    spans = (_span(view),)
                    yield Task(kind, operation.peer, *((), spans) if kind is Recv else (spans, ()), view)
    for operation in step:
        if type(operation) in (Reduce, Copy):
            for *sources, into in zip(*map(memory.views, operation)):
                if type(operation) is Reduce:
                    work = reduce, (*sources, into)
                elif _same(*sources, into):
                    continue
                else:
                    work = module.copyto, (into, *sources)
                yield Task(type(operation), None, tuple(map(_span, sources)), (_span(into),), work)


def _span(view):
    start = buffers.address(view)
    return start, start + view.nbytes


def _request(comm, task, tag):
    raw = [MPI.memory.fromaddress(buffers.address(task.work), task.work.nbytes), MPI.BYTE]
    return (comm.Recv_init if task.kind is Recv else comm.Send_init)(raw, task.peer, tag)


def _bind_step(step, requests, fence, text):
    # requests are started one by one, receives first: messages of one tag then arrive in the order of the pieces
    starts = tuple(requests[id(task)].Start for task in step.starts)
    waited = tuple(requests[id(task)] for task in step.waits)
    sent = [task.work.nbytes for task in step.starts if task.kind is Send]
    local = tuple(task.work for task in step.local)
    return Round(starts, tuple(request.Wait for request in waited), local + (fence if local else ()),
                 len(sent), sum(sent), waited, step.round, text)  # fmt: skip


def _describe(step):
    words = {Send: "sending to", Recv: "receiving from"}
    return ", ".join(f"{words[type(op)]} rank {op.peer}" for op in step if type(op) in words) or "local work"
