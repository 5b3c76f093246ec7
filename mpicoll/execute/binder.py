"""Binding: the passes from one rank's rounds to a program on memory. Done once per plan."""

from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

from mpi4py import MPI

from .. import buffers, engine
from ..binding import (
    Memory,
    Program,
    Round,
    Span,
    lowered,
    ordering,
    reduced_where_they_lie,
    with_copies,
)
from ..schedule import RECEIVES, SENDS
from ..shared_memory import HEAP
from ..transport import Near
from .context import Context
from .executable import Executable, Machine
from .scheduled_call import ScheduledCall
from .staging import Work
from .tracing import Tracer

#: messages of a rank and a round from which on one is on its way while another is awaited: three
#: in and three out
_FLOWING = 6


class Schedule(NamedTuple):
    """One rank's rounds under an algorithm. edges: element offsets of the blocks.

    segment_bytes: cut messages into pieces of at most this many bytes that flow through the rounds;
    None: round by round. read_late: messages inside a node may be read where they lie.
    """

    algorithm: str
    rounds: list[Round]
    edges: list[int]
    segment_bytes: int | None = None
    read_late: bool = True


def bind(
    context: Context,
    method: str,
    schedule: Schedule,
    work: Work,
    fingerprint: int,
    nonblocking: bool = False,
    persistent: bool = False,
) -> ScheduledCall:
    """Bind one rank's rounds to memory; returns a `ScheduledCall`.

    method: the call's name. work: the vectors, and how they are reduced. fingerprint: of the call,
    the same on all ranks. Other memory is the scratch of `scratch_layout`, from the pool until the
    plan is freed.
    """
    tracer = context.tracer
    if tracer is not None:
        work.copyto = tracer.timed("copy", work.copyto)
        if work.reduce is not None:
            work.reduce = tracer.timed("reduce", work.reduce)
    segment_bytes = schedule.segment_bytes
    rounds = [operations for operations in schedule.rounds if operations]
    memory = Memory(
        rounds, schedule.edges, work.vectors, work.dtype, work.scratch, segment_bytes,
        work.compression)
    near = None
    if context.links is not None and schedule.read_late:
        near = Near(
            context.links, context.channel, work.dtype, work.reduce, nonblocking, persistent)
    program = _program(rounds, memory, work, near, segment_bytes)
    if near is not None and work.typed:
        pieces = [piece for step in program.steps for piece in (*step.starts, *step.local)]
        work.leave_to_messages(pieces, near.ranks)
    machine = Machine(context.channel, near, work, tracer)
    executable = Executable(program, machine, work.fence)
    kind: Callable[..., ScheduledCall] = ScheduledCall
    make = kind if tracer is None else partial(TracedCall, tracer)
    runs_ahead = executable.messages >= _FLOWING * len(rounds)
    texts = [_describe(operations) for operations in rounds]
    name = f"{method} ({schedule.algorithm})"
    plan = make(context, name, executable, texts, work, fingerprint, runs_ahead)
    if tracer is None and work.is_plain and not work.leaves_blocks:
        caller = engine.Caller(context.look, context.keep_watch, context.held)
        plan.compiled = engine.compiled(program, context.channel, near, caller)
    return plan


def _program(
    rounds: list[Round], memory: Memory, work: Work, near: Near | None, segment_bytes: int | None
) -> Program:
    """The passes, in their order. memory: where the parts of the rounds lie."""
    lower = [
        list(lowered(operations, memory, buffers.span, work.where_reduced)) for operations in rounds
    ]
    instructions = with_copies(lower, work.twins)
    if instructions:
        instructions[-1] = [*instructions[-1], *work.last]
    if near is not None and work.device is None:
        scratch = (0, 0) if memory.scratch is None else buffers.span(memory.scratch)
        slot = 0 if segment_bytes else near.slot
        instructions = reduced_where_they_lie(instructions, near.ranks, slot, _is_shared, scratch)
    if segment_bytes or work.twins:
        ahead = ordering.AHEAD if segment_bytes else 0
        steps = ordering.by_pieces(instructions, ahead, together=not segment_bytes)
    else:
        steps = list(ordering.by_rounds(instructions))
    if near is not None:
        steps = near.opened_first(steps)
    compression = "" if work.compression is None else work.compression.name
    return Program(tuple(steps), str(work.dtype), work.op_name, compression)


def _is_shared(span: Span) -> bool:
    """Whether ranks of the node can map this memory."""
    start, end = span
    return HEAP.location(start, end - start) is not None


class TracedCall(ScheduledCall):
    """A plan that tells a tracer what it waits for."""

    def __init__(
        self, tracer: Tracer, context: Context, name: str, executable: Executable, *rest: Any
    ) -> None:
        super().__init__(context, name, executable, *rest)
        self._tracer = tracer

    def _steps(self, tag: int, sent: list[int], patience: float = 0.0) -> Iterator[MPI.Request]:
        for request in super()._steps(tag, sent, patience):
            begin = perf_counter()
            yield request
            if self._awaited is not None:
                self._tracer.through(self._starting[self._awaited], begin)


def _describe(operations: Round) -> str:
    words = dict.fromkeys(SENDS, "sending to") | dict.fromkeys(RECEIVES, "receiving from")
    texts = [f"{words[type(part)]} rank {part.peer}" for part in operations if type(part) in words]
    return ", ".join(texts) or "local work"
