"""The executor: a schedule bound to buffers becomes persistent point-to-point requests and ufunc calls.

Binding is done once per plan; running it starts requests, waits, and reduces, with nothing left to decide. A plan knows
at any moment which round it is in (`Plan.where`).
"""

from itertools import chain
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from .. import buffers
from ..schedule import Copy, Recv, Reduce, Send
from . import ordering
from .ordering import Task
from .progress import PROGRESS
from .scratch import Memory

#: how many pieces run ahead of their turn when messages are cut
AHEAD = 16


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
    ordered = ordering.by_pieces(rounds, AHEAD) if segment_bytes else ordering.by_rounds(rounds)
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


def _same(one, other):
    return one is other or (one.size and one.size == other.size and buffers.address(one) == buffers.address(other))


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
