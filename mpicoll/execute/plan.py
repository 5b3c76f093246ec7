"""The executor: a schedule bound to memory becomes persistent point-to-point requests and ufunc calls.

Binding is done once per plan; running it starts requests, waits, and reduces, with nothing left to decide. A plan knows
at any moment which round it is in (`Plan.where`).
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import chain
from typing import Any, NamedTuple

from mpi4py import MPI

from .. import buffers
from ..schedule import Copy, Recv, Reduce, Send
from . import ordering
from .context import Context
from .ordering import Piece, Span
from .progress import PROGRESS, Task, as_mpi_computes
from .scratch import Memory, Round
from .staging import Work

#: how many pieces run ahead of their turn when messages are cut
AHEAD = 16

Action = tuple[Callable[..., object], tuple[Any, ...]]  # a function and its arguments


class Schedule(NamedTuple):
    """One rank's rounds under an algorithm. edges: element offsets of the blocks.

    segment_bytes: cut messages into pieces of at most this many bytes that flow through the rounds; None: round by round.
    """

    algorithm: str
    rounds: list[Round]
    edges: list[int]
    segment_bytes: int | None = None


class BoundStep(NamedTuple):
    """A round or a step of one, ready to run: what to start, what to wait for, what to compute, and what it sends."""

    starts: tuple[Callable[[], object], ...]  # receives first
    waits: tuple[MPI.Prequest, ...]  # every request is awaited in one step
    actions: tuple[Action, ...]
    messages: int
    nbytes: int
    round: int
    text: str


class LowerCase:
    """mpi4py's `wait` and `test`: they also return a message's object, and a collective has none."""

    Wait: Callable[..., bool]
    Test: Callable[..., bool]

    def wait(self, status: MPI.Status | None = None) -> None:
        """`Wait`; None."""
        self.Wait(status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, None]:
        """`Test`; (done, None)."""
        return self.Test(status), None


class Plan(LowerCase):
    """A collective bound to its buffers: Start(), then Wait() or Test(), any number of times; Free() at the end.

    As with MPI's persistent collectives, all ranks start the plans of a communicator in the same order; they may wait in
    different orders. Between Start and Wait it moves by itself where MPI admits threads (`progress`), else in any Wait or
    Test.
    """

    def __init__(self, context: Context, name: str, steps: list[BoundStep], work: Work, scratch: int) -> None:
        self.context, self.name, self.work, self.scratch = context, name, work, scratch
        self.steps: list[BoundStep] | None = steps
        self.numbered = list(enumerate(steps))
        self.step: int | None = None
        self.task: Task | None = None
        self.requests = sum(len(step.waits) for step in steps)
        context.plans.add(self)

    # Running. `_steps` is the only loop: blocking calls wait for what it yields, tasks test it.

    def run(self) -> None:
        """Start and wait: the blocking call."""
        self.work.pack()
        with as_mpi_computes() if self.work.reduce else nullcontext():
            try:
                for request in self._steps(self.context.sent_blocking):
                    request.Wait()
            except BaseException as error:  # Ctrl-C and signal handlers that raise among them
                self._give_up(error)
                raise

    def run_as_task(self) -> Iterator[MPI.Request]:
        """The same for a `Task`: the input is taken now; a generator of the requests for which `run` would wait."""
        self.work.pack()
        return self._until_done(self._steps(self.context.sent_by_tasks))

    def _until_done(self, requests: Iterator[MPI.Prequest]) -> Iterator[MPI.Request]:
        try:
            for request in requests:
                while not request.Test():
                    yield request
        except GeneratorExit:  # the process ends
            raise
        except BaseException as error:
            self._give_up(error)
            raise

    def _steps(self, sent: list[int]) -> Iterator[MPI.Prequest]:
        for self.step, (starts, waits, actions, messages, nbytes, *_) in self.numbered:
            for start in starts:
                start()
            if messages:
                sent[0] += messages
                sent[1] += nbytes
            # sends too before any arithmetic: while this rank computes, MPI does not move what the peer waits for
            yield from waits
            for function, arguments in actions:
                function(*arguments)
        self.step = None
        self.work.unpack()

    def _give_up(self, error: BaseException) -> None:
        """Say that it was ended in the middle of its rounds, unless it was before the first or after the last."""
        if self.step is not None:
            self.context.give_up(self, f"{self.where()}, ended by {error!r}")

    # As a persistent request.

    def Start(self) -> None:
        """Take the input and begin."""
        self._require_idle("Start")
        self.task = self.context.submit(self.run_as_task(), device=self.work.device)

    def Wait(self, status: MPI.Status | None = None) -> bool:
        """Run to the end; the result is then in the caller's buffer. Without Start it returns at once, as MPI's."""
        if self.task is not None:
            PROGRESS.wait(self.task)
        return True

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Make progress without blocking; True when done."""
        return self.task is None or PROGRESS.test(self.task)

    @property
    def in_flight(self) -> bool:
        """Whether it was started and has not ended."""
        return self.task is not None and not self.task.ended

    @property
    def nbytes(self) -> int:
        """Bytes that this rank sends each time."""
        return sum(step.nbytes for _, step in self.numbered)

    def Free(self) -> None:
        """Free the requests and return the scratch; a plan in flight must be waited for first."""
        if self.steps is None:
            return
        self._require_idle("Free")
        for request in chain.from_iterable(step.waits for step in self.steps):
            request.Free()
        self.work.close()
        self.steps, self.numbered = None, []

    def where(self) -> str:
        """Which call, algorithm, round and peers this plan is at; "idle" between calls."""
        if self.step is None or not self.steps:
            return f"{self.name}: idle"
        step, rounds = self.steps[self.step], self.steps[-1].round + 1
        pieces = f", step {self.step + 1} of {len(self.steps)}" if rounds < len(self.steps) else ""
        return f"{self.name}: round {step.round + 1} of {rounds}{pieces}, {step.text}"

    def _require_idle(self, action: str) -> None:
        if self.steps is None:
            raise RuntimeError(f"{action} on a plan that was freed: {self.name}")
        if self.in_flight:
            raise RuntimeError(f"{action} on a plan in flight, call Wait first: {self.where()}")


def bind(context: Context, method: str, schedule: Schedule, work: Work, tag: int = 0) -> Plan:
    """Bind one rank's rounds to memory as persistent point-to-point requests; returns a `Plan`.

    method: the call's name. work: the vectors, and how they are reduced. Memory beside them: the scratch of
    `scratch_layout`, from the pool until the plan is freed.
    """
    steps = [step for step in schedule.rounds if step]
    memory = Memory(steps, schedule.edges, work.vectors, work.dtype, work.acquire, schedule.segment_bytes)
    rounds = [list(pieces_of(step, memory, work)) for step in steps]
    ordered = ordering.by_pieces(rounds, AHEAD) if schedule.segment_bytes else ordering.by_rounds(rounds)
    assert context.comm is not None, "connect comes first"
    requests = {id(piece): _request(context.comm, piece, tag) for piece in chain.from_iterable(rounds) if piece.is_message}
    bound = [_bind_step(step, requests, work.fence, _describe(steps[step.round])) for step in ordered]
    scratch = 0 if memory.arena is None else memory.arena.size
    return Plan(context, f"{method} ({schedule.algorithm})", bound, work, scratch)


def pieces_of(step: Round, memory: Memory, work: Work) -> Iterator[Piece]:
    """The pieces of one round, receives first, then sends, then what is computed."""
    for kind in (Recv, Send):
        for operation in step:
            if type(operation) is kind:
                for view in memory.views(operation.part):
                    spans = (_span(view),)
                    reads, writes = ((), spans) if kind is Recv else (spans, ())
                    yield Piece(kind, operation.peer, reads, writes, view)
    for operation in step:
        if type(operation) in (Reduce, Copy):
            for *sources, into in zip(*map(memory.views, operation)):
                if type(operation) is Copy and _same(sources[0], into):
                    continue
                reduces = type(operation) is Reduce
                action = (work.reduce, (*sources, into)) if reduces else (work.module.copyto, (into, *sources))
                yield Piece(type(operation), None, tuple(map(_span, sources)), (_span(into),), action)


def _same(one: Any, other: Any) -> bool:
    return one is other or (one.size > 0 and one.size == other.size and buffers.address(one) == buffers.address(other))


def _span(view: Any) -> Span:
    start = buffers.address(view)
    return start, start + view.nbytes


def _request(comm: MPI.Intracomm, piece: Piece, tag: int) -> MPI.Prequest:
    raw = [MPI.memory.fromaddress(buffers.address(piece.work), piece.work.nbytes), MPI.BYTE]
    assert piece.peer is not None
    return (comm.Recv_init if piece.kind is Recv else comm.Send_init)(raw, piece.peer, tag)


def _bind_step(step: ordering.Step, requests: dict[int, MPI.Prequest], fence: tuple[Action, ...], text: str) -> BoundStep:
    # requests are started one by one, receives first: messages of one tag then arrive in the order of the pieces
    starts = tuple(requests[id(piece)].Start for piece in step.starts)
    waits = tuple(requests[id(piece)] for piece in step.waits)
    sent = [piece.work.nbytes for piece in step.starts if piece.kind is Send]
    actions = tuple(piece.work for piece in step.local)
    return BoundStep(starts, waits, actions + (fence if actions else ()), len(sent), sum(sent), step.round, text)


def _describe(step: Round) -> str:
    words = {Send: "sending to", Recv: "receiving from"}
    return ", ".join(f"{words[type(op)]} rank {op.peer}" for op in step if type(op) in words) or "local work"
