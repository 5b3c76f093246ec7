"""Binding: one rank's rounds become point-to-point and ufunc calls on memory, ready but for the tag. Done once per plan."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from time import perf_counter
from typing import Any, NamedTuple

from mpi4py import MPI

from .. import buffers
from ..schedule import RECEIVES, SENDS, Copy, Reduce
from . import ordering
from .channel import Channel
from .context import Context
from .device_copies import with_copies
from .moving import BoundStep
from .near import Near, reduced_where_they_lie
from .ordering import Piece, Put, Spans, Starter
from .plan import Plan
from .scratch import Memory, Round
from .staging import Work
from .tracing import Tracer

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


def bind(
    context: Context, method: str, schedule: Schedule, work: Work, fingerprint: int,
    nonblocking: bool = False, persistent: bool = False,
) -> Plan:  # fmt: skip
    """Bind one rank's rounds to memory; returns a `Plan`.

    method: the call's name. work: the vectors, and how they are reduced. Memory beside them: the scratch of
    `scratch_layout`, from the pool until the plan is freed. fingerprint: of the call, the same on all ranks.
    """
    tracer = context.tracer
    if tracer is not None:
        work.copyto = tracer.timed("copy", work.copyto)
        if work.reduce is not None:
            work.reduce = tracer.timed("reduce", work.reduce)
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
    starter: Starter = partial(_starter, context.channel, near)
    if tracer is not None:
        starter = partial(tracer.starter, starter)
    if schedule.segment_bytes or work.twins:
        ordered = ordering.by_pieces(rounds, AHEAD if schedule.segment_bytes else 0, together=not schedule.segment_bytes)
    else:
        ordered = list(ordering.by_rounds(rounds))
    if near is not None:
        ordered = near.opened_first(ordered)
    started = [piece for piece in chain.from_iterable(rounds) if piece.is_started]
    numbers = {id(piece): number for number, piece in enumerate(started)}
    bound = [_bind_step(starter, step, numbers, work, _describe(steps[step.round])) for step in ordered]
    made: Callable[..., Plan] = Plan if tracer is None else partial(TracedPlan, tracer)
    name, runs_ahead = f"{method} ({schedule.algorithm})", len(started) >= _FLOWING * len(steps)
    return made(context, name, bound, started, work, fingerprint, starter, runs_ahead)


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


class TracedPlan(Plan):
    """A plan that tells a tracer what it waits for."""

    def __init__(self, tracer: Tracer, context: Context, name: str, steps: list[BoundStep], started: list[Piece], *rest: Any):
        super().__init__(context, name, steps, started, *rest)
        self._tracer, self._pieces = tracer, started

    def _steps(self, tag: int, sent: list[int]) -> Iterator[MPI.Request]:
        for request in super()._steps(tag, sent):
            begin = perf_counter()
            yield request
            if self._awaited is not None:
                self._tracer.through(self._pieces[self._awaited], begin)


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
