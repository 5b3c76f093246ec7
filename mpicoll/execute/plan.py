"""The executor: a schedule bound to memory becomes point-to-point and ufunc calls, ready but for the tag.

Binding is done once per plan; running it sends, receives, waits, and reduces, with nothing left to decide. A plan knows
at any moment which round it is in (`Plan.where`). Requests are not persistent: those have one tag for ever, and each call
needs its own (`channel`); it costs half a microsecond per message.
"""

import weakref
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from mpi4py import MPI

from .. import buffers
from ..schedule import RECEIVES, SENDS, Copy, Reduce
from ..support.callsite import call_site
from . import ordering
from .arithmetic import calls_as_mpi_computes
from .channel import Channel
from .context import Context
from .device_copies import with_copies
from .moving import BoundStep, Movable, Starter
from .near import Near, reduced_where_they_lie
from .ordering import Fetch, Piece, Put, Spans
from .progress import PROGRESS
from .scratch import Memory, Round
from .staging import Work
from .tasks import Task, until_done

#: how many pieces run ahead of their turn when messages are cut
AHEAD = 16
#: messages of a rank and a round from which on there is always one on its way while another is awaited: three in and out
_FLOWING = 6


class Schedule(NamedTuple):
    """One rank's rounds under an algorithm. edges: element offsets of the blocks.

    segment_bytes: cut messages into pieces of at most this many bytes that flow through the rounds; None: round by round.
    read_late: messages inside a node may be read where they lie.
    """

    algorithm: str
    rounds: list[Round]
    edges: list[int]
    segment_bytes: int | None = None
    read_late: bool = True


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


class Plan(Movable, LowerCase):
    """A collective bound to its buffers: Start(), then Wait() or Test(), any number of times; Free() at the end.

    As with MPI's persistent collectives, all ranks start the plans of a communicator in the same order; they may wait in
    different orders. Between Start and Wait it moves by itself where MPI admits threads (`progress`), else in any Wait or
    Test.
    """

    def __init__(
        self, context: Context, name: str, steps: list[BoundStep], started: list[Piece], work: Work, fingerprint: int,
        starter: Starter, runs_ahead: bool = False,
    ) -> None:  # fmt: skip
        self.context, self.name, self.work, self.scratch = context, name, work, work.acquired_bytes
        self._started_text = f"{name}, a plan that was started"
        self.tag, self._call_tag = 0, context.call_tag(0, fingerprint)
        self.steps: list[BoundStep] | None = steps
        self.numbered = list(enumerate(steps))
        self.starter, self.runs_ahead = starter, runs_ahead
        self.lies_in(())
        self.step: int | None = None
        self.task: Task | None = None
        self._over = True
        self.messages = len(started)
        self._started = [(piece.kind, piece.peer, piece.work.nbytes) for piece in started]
        self._pending: list[Any] = [None] * self.messages
        self._awaited: int | None = None
        self._compute = calls_as_mpi_computes(own_code=work.is_predefined)
        self._close = weakref.finalize(self, work.close)  # a plan may be forgotten

    # Running. `_steps` is the only loop: blocking calls wait for what it yields, tasks test it.

    def run(self) -> None:
        """Start and wait: the blocking call."""
        self.work.pack()
        tag = self.tag_of(next(self.context.calls))
        self._compute(self.context.wait_for, self._steps(tag, self.context.sent_blocking), self)

    def tag_of(self, number: int) -> int:
        """The tag of its messages where it serves the single call of this number; of a persistent plan it is `tag`."""
        return self.context.channel.numbered(self._call_tag, number)

    def run_as_task(self, tag: int) -> Iterator[MPI.Request]:
        """The same for a `Task`: the input is taken now; a generator of the requests for which `run` would wait."""
        self.work.pack()
        return self._until_done(self._steps(tag, self.context.sent_by_tasks))

    def _until_done(self, requests: Iterator[MPI.Request]) -> Iterator[MPI.Request]:
        try:
            yield from until_done(requests)
        except GeneratorExit:  # the process ends
            raise
        except BaseException as error:
            if self.unfinished:
                self.context.give_up(self, self.where(), error)
            raise

    def _steps(self, tag: int, sent: list[int]) -> Iterator[MPI.Request]:
        pending = self._pending
        yield from self.work.arriving(self.context.channel, tag)
        for self.step, (starts, waits, actions, messages, nbytes, *_) in self.numbered:
            for number, start in starts:
                pending[number] = start(tag)
            if messages:
                sent[0] += messages
                sent[1] += nbytes
            # sends too before any arithmetic: while this rank computes, MPI does not move what the peer waits for
            for self._awaited in waits:
                yield pending[self._awaited]
            self._awaited = None
            for function, arguments in actions:
                function(*arguments)
        self.step = None
        self.work.unpack()

    @property
    def unfinished(self) -> bool:
        """Whether it is in the middle of its rounds."""
        return self.step is not None

    def _require_idle(self, action: str) -> None:
        if self.in_flight:
            raise RuntimeError(f"{action} on a plan in flight, call Wait first: {self.where()}")

    # As a persistent request.

    def Start(self) -> None:
        """Take the input and begin."""
        if self.steps is None or self.context.closed:
            raise RuntimeError(f"Start on a plan that was freed: {self.name}")
        if not self._over:  # also where it has ended: other ranks' may not have, and whether it has is chance
            raise RuntimeError(f"Start on a plan in flight, call Wait first: {self.where()}")
        record = self.context.recorder.begin(self._started_text, call_site())
        record.plan = self
        steps, track = self.run_as_task(self.tag), self.context.plan_track(self.tag)
        self.task = self.context.submit(steps, record, record.end, self.work.device, self._compute, track=track)
        self._over = False

    def Wait(self, status: MPI.Status | None = None) -> bool:
        """Run to the end; the result is then in the caller's buffer. Without Start it returns at once, as MPI's."""
        if self.task is not None:
            PROGRESS.wait(self.task)
        self._over = True
        return True

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Make progress without blocking; True when done."""
        done = self.task is None or PROGRESS.test(self.task)
        self._over = self._over or done
        return done

    @property
    def in_flight(self) -> bool:
        """Whether it was started and has not ended."""
        return self.task is not None and not self.task.ended

    @property
    def nbytes(self) -> int:
        """Bytes that this rank sends each time."""
        return sum(step.nbytes for _, step in self.numbered)

    def Free(self) -> None:
        """Return the scratch; a plan in flight must be waited for first."""
        if self.steps is None:
            return
        self._require_idle("Free")
        self._close()
        self.steps, self.numbered = None, []
        self.lies_in(())

    def where(self) -> str:
        """Which call, algorithm, round, and message it waits for, this plan is at; "idle" between calls."""
        number, awaited, steps = self.step, self._awaited, self.steps  # another thread may run it
        if number is None or not steps:
            return f"{self.name}: idle"
        step, rounds = steps[number], steps[-1].round + 1
        pieces = f", step {number + 1} of {len(steps)}" if rounds < len(steps) else ""
        return f"{self.name}: round {step.round + 1} of {rounds}{pieces}, {self._waits_for(awaited) or step.text}"

    def peer(self) -> int | None:
        """The rank whose message it waits for, or None."""
        awaited = self._awaited
        return None if self.step is None or awaited is None else self._started[awaited][1]

    def _waits_for(self, number: int | None) -> str:
        if number is None:
            return ""
        kind, peer, nbytes = self._started[number]
        return f"waiting {_WAITS[kind].format(nbytes)}{'' if peer is None else f' rank {peer}'}"


#: what it waits for, by the kind of a piece
_WAITS: dict[type, str] = {
    **dict.fromkeys(SENDS, "to send {} bytes to"), **dict.fromkeys(RECEIVES, "to receive {} bytes from"),
    Fetch: "for the copy of {} bytes from the device", Put: "for the copy of {} bytes to the device",
}  # fmt: skip


def bind(
    context: Context, method: str, schedule: Schedule, work: Work, fingerprint: int,
    nonblocking: bool = False, persistent: bool = False,
) -> Plan:  # fmt: skip
    """Bind one rank's rounds to memory; returns a `Plan`.

    method: the call's name. work: the vectors, and how they are reduced. Memory beside them: the scratch of
    `scratch_layout`, from the pool until the plan is freed. fingerprint: of the call, the same on all ranks.
    """
    steps = [step for step in schedule.rounds if step]
    memory = Memory(steps, schedule.edges, work.vectors, work.dtype, work.scratch, schedule.segment_bytes)
    rounds = with_copies([list(pieces_of(step, memory, work)) for step in steps], work.twins)
    rounds[-1:] = [[*pieces, *work.last] for pieces in rounds[-1:]]
    near = None
    if context.links is not None and schedule.read_late:
        near = Near(context.links, context.channel, nonblocking, persistent)
    if near is not None and work.device is None:
        scratch = (0, 0) if memory.scratch is None else buffers.span(memory.scratch)
        rounds = reduced_where_they_lie(rounds, near, scratch, whole=not schedule.segment_bytes)
    starter = partial(_starter, context.channel, near)
    if schedule.segment_bytes or work.twins:
        ordered = ordering.by_pieces(rounds, AHEAD if schedule.segment_bytes else 0, together=not schedule.segment_bytes)
    else:
        ordered = list(ordering.by_rounds(rounds))
    if near is not None:
        ordered = near.opened_first(ordered)
    started = [piece for piece in chain.from_iterable(rounds) if piece.is_started]
    numbers = {id(piece): number for number, piece in enumerate(started)}
    bound = [_bind_step(starter, step, numbers, work, _describe(steps[step.round])) for step in ordered]
    name, runs_ahead = f"{method} ({schedule.algorithm})", len(started) >= _FLOWING * len(steps)
    return Plan(context, name, bound, started, work, fingerprint, starter, runs_ahead)


def pieces_of(step: Round, memory: Memory, work: Work) -> Iterator[Piece]:
    """The pieces of one round, receives first, then sends, then what is computed."""
    for kinds in (RECEIVES, SENDS):
        for operation in step:
            if type(operation) in kinds:
                for view in memory.views(operation.part):
                    spans = (buffers.span(view),)
                    reads, writes = ((), spans) if kinds is RECEIVES else (spans, ())
                    yield Piece(type(operation), operation.peer, reads, writes, view)
    for operation in step:
        if type(operation) in (Reduce, Copy):
            for *sources, into in zip(*map(memory.views, operation)):
                if type(operation) is Copy and _same(sources[0], into):
                    continue
                *sources, into = map(work.where_reduced, (*sources, into))
                action = (work.reduce, (*sources, into)) if type(operation) is Reduce else (work.copyto, (into, *sources))
                yield Piece(type(operation), None, tuple(map(buffers.span, sources)), (buffers.span(into),), action)


def _same(one: Any, other: Any) -> bool:
    return one is other or (one.size > 0 and one.size == other.size and buffers.address(one) == buffers.address(other))


def _bind_step(starter: Starter, step: ordering.Step, numbers: dict[int, int], work: Work, text: str) -> BoundStep:
    # receives first, one by one: messages of one tag then arrive in the order of the pieces
    starts = tuple((numbers[id(piece)], _bind_start(starter, piece, work)) for piece in step.starts)
    waits = tuple(numbers[id(piece)] for piece in step.waits)
    sent = [piece.work.nbytes for piece in step.starts if piece.is_sent]
    actions = tuple(piece.work for piece in step.local)
    actions += work.fence if actions else ()
    return BoundStep(starts, waits, actions, len(sent), sum(sent), step.round, text, step)


def _bind_start(starter: Starter, piece: Piece, work: Work) -> Callable[[int], Any]:
    if piece.is_copied:
        start = work.device_copy(piece.work, to_device=piece.kind is Put)
        return lambda tag: start()
    return starter(piece)(piece.reads + piece.writes)


def _starter(channel: Channel, near: Near | None, piece: Piece) -> Callable[[Spans], Callable[[int], Any]]:
    """What makes, of the memory of a message, a function of the tag that starts it there."""
    assert piece.peer is not None
    if near is not None and piece.peer in near.ranks:
        return near.starter(piece)
    start = partial(channel.receiver if piece.is_received else channel.sender, peer=piece.peer)
    if near is not None:
        return lambda spans: near.distant(start(buffers.bytes_at(*spans[0])))
    return lambda spans: start(buffers.bytes_at(*spans[0]))


def _describe(step: Round) -> str:
    words = dict.fromkeys(SENDS, "sending to") | dict.fromkeys(RECEIVES, "receiving from")
    return ", ".join(f"{words[type(op)]} rank {op.peer}" for op in step if type(op) in words) or "local work"
