"""How a call is served: its algorithm is chosen, then a schedule or MPI's own call runs, blocking, begun, or persistent."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from mpi4py import MPI

from .. import select
from ..algorithms import NATIVE
from ..execute import PROGRESS, Context, NativeCall, NativePlan, Plan, native_method
from ..select import Choice, probe
from ..support import settings
from .binding import plan_of, share_counts, sharing_counts
from .call import Call
from .request import Request
from .trial import trial


def choose(
    call: Call,
    algorithm: str | None,
    segment_bytes: int | None,
    measured: Callable[..., Choice | None] = partial(probe.best, trial),
) -> Choice:
    """The `Choice` that serves the call; measured: how the probe is asked, which may communicate."""
    choice = select.choose(call.query, algorithm, segment_bytes, partial(measured, call.comm))
    if algorithm is None and call.rank == 0 and settings.verbose():
        what = f"{call.method} of {call.nbytes} bytes on {call.size} ranks"
        print(f"mpicoll: {what}: {choice}", file=sys.stderr, flush=True)
    return choice


def run(call: Call, algorithm: str | None = None, segment_bytes: int | None = None, key: object = None) -> None:
    """Serve the call, blocking; key: what the next call on the same memory will be recognised by."""
    context, keep = _working_context(call), key is not None and call.repeatable
    name, segment_bytes, _ = choose(call, algorithm, segment_bytes)
    if name == NATIVE:
        native = NativeCall(call)
        if keep and native.is_given(call.arguments):
            context.known.keep(key, None, getattr(MPI.Intracomm, call.method))
        native.run()
        return
    context.connect(call.comm)
    share_counts(call, name)
    plan = plan_of(call, name, segment_bytes)
    plan.run()
    if keep:
        context.known.keep(key, plan)
    else:
        plan.Free()


def persist(
    call: Call, info: MPI.Info, algorithm: str | None = None, segment_bytes: int | None = None
) -> Plan | NativePlan | MPI.Prequest:
    """A persistent plan of the call."""
    context = _working_context(call)
    name, segment_bytes, _ = choose(call, algorithm, segment_bytes)
    if name == NATIVE:
        return NativeCall(call).persistent(info)
    context.connect(call.comm)
    share_counts(call, name)
    return plan_of(call, name, segment_bytes, context.next_plan_tag(), persistent=True)


def begin(call: Call, algorithm: str | None = None, segment_bytes: int | None = None) -> Request | MPI.Request:
    """Begin the call without waiting; returns its request, MPI's own where MPI serves it without help. Local."""
    call.nonblocking = True
    context = _working_context(call)
    name, segment_bytes, _ = choose(call, algorithm, segment_bytes, probe.known)
    if name != NATIVE:
        context.begin_connecting(call.comm)
        tags = context.next_call_tag(), context.next_call_tag()
        return Request(context, _scheduled(call, context, name, segment_bytes, tags), call.operands)
    if not PROGRESS.threaded:  # nobody could unpack what was packed
        as_given: MPI.Request = native_method(call.comm, f"I{call.method.lower()}")(*call.arguments)
        return as_given
    native = NativeCall(call)
    request = native.begin()
    return Request(context, native.run_as_task(request), call.operands) if native.staged else request


def _working_context(call: Call) -> Context:
    context = Context.of(call.comm)
    context.require_working()
    return context


def _scheduled(
    call: Call, context: Context, name: str, segment_bytes: int | None, tags: tuple[int, int]
) -> Iterator[Any]:
    """A schedule for a `Task`: it also waits for the private duplicate and, where needed, for the counts."""
    tag, tag_of_counts = tags
    yield from context.connected()
    yield from sharing_counts(call, name, tag_of_counts)
    plan = plan_of(call, name, segment_bytes, tag)
    yield from plan.run_as_task()
    plan.Free()
