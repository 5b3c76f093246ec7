"""How a call is served: its algorithm is chosen, then a schedule or MPI's own call runs, blocking or persistent."""

import sys
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from itertools import chain
from typing import Any

from mpi4py import MPI

from .. import collectives, select
from ..algorithms import LIBRARIES, NATIVE, NCCL
from ..execute import Context, Known, NativeCall, NativePlan, Plan, Record, nccl
from ..select import Choice, probe
from ..support import settings
from ..support.callsite import call_site
from ..support.settings import ALWAYS
from ..support.units import format_bytes, many
from .binding import plan_of
from .call import Call
from .comparing import COMPARING, MEETING, comparing, sharing_counts
from .repeated import Key
from .trial import trial

#: ranks exchange blocks with the root alone, and need to know no others than their own
LINEAR = "linear"
#: how calls without a schedule are served
LIBRARY_CALLS: dict[str, Any] = {NATIVE: NativeCall, NCCL: nccl.NcclCall}


def choose(
    call: Call,
    algorithm: str | None,
    segment_bytes: int | None,
    measured: Callable[..., Choice | None] = partial(probe.best, trial),
    before: Iterable[MPI.Request] = (),
) -> Choice:
    """The `Choice` that serves the call; measured: how the probe is asked, which may communicate.

    before: to be awaited before ranks find out whether NCCL can serve them.
    """
    choice = select.choose(call.query, algorithm, segment_bytes, partial(measured, call.comm))
    if choice.name == NCCL and nccl.is_unmet(call):
        call.context.wait_for(chain(before, nccl.meet(call)), MEETING)
        choice = select.choose(call.query, algorithm, segment_bytes, partial(measured, call.comm))
    if algorithm is None and call.rank == 0 and settings.verbose():
        of = "" if call.nbytes is None else f" of {format_bytes(call.nbytes)} bytes"
        _say(f"{call.method}{of} on {many(call.size, 'rank')}: {choice}")
    return choice


@lru_cache(maxsize=4096)
def _say(choice: str) -> None:
    """Tell of a choice, once."""
    print(f"mpicoll: {choice}", file=sys.stderr, flush=True)


def run(call: Call, record: Record, algorithm: str | None, segment_bytes: int | None, key: Key | None = None) -> None:
    """Serve the call, blocking. record: of the call; key: what the next one like it will be recognised by."""
    context, keep = working_context(call), key is not None and call.repeatable
    record.enter(call.text)
    context.wait_for(comparing(call, algorithm, segment_bytes, record), COMPARING)
    known = context.known.find(key)
    if known is not None:  # it was looked at only to be compared
        known.run(record, call.comm, call.arguments, key)
        return
    name, pieces, _ = choose(call, algorithm, segment_bytes)
    keep = keep and (name == NATIVE or counts_suffice(call, name))
    if name in LIBRARIES:
        library = LIBRARY_CALLS[name](call)
        given = library.is_given(call.arguments)
        library.run()
        is_small = given and algorithm is None and segment_bytes is None and remember_small(call, context)
        if keep and given:
            context.known.keep(key, Known(call.text, getattr(MPI.Intracomm, call.method), is_small))
        return
    context.wait_for(counts_for(call, name), COMPARING)
    record.plan = plan = plan_of(call, name, pieces)
    plan.run()
    if keep and key is not None:
        context.known.keep(key, Known(call.text), plan.lies_in(key[1]))
    else:
        plan.Free()


def persist(
    call: Call, info: MPI.Info, algorithm: str | None = None, segment_bytes: int | None = None
) -> Plan | NativePlan | MPI.Prequest:
    """A persistent plan of the call."""
    call.persistent = True
    context = working_context(call)
    record = context.recorder.blocking.begin(call.text, call_site())
    context.wait_for(comparing(call, algorithm, segment_bytes, record), COMPARING)
    record.end()
    name, segment_bytes, _ = choose(call, algorithm, segment_bytes)
    if name in LIBRARIES:
        library: Plan | NativePlan | MPI.Prequest = LIBRARY_CALLS[name](call).persistent(info, context, call.text)
        return library
    context.wait_for(counts_for(call, name), COMPARING)
    plan = plan_of(call, name, segment_bytes, persistent=True)
    plan.tag = context.next_plan_tag()
    return plan


def working_context(call: Call) -> Context:
    context = call.context
    context.require_working()
    return context


def counts_for(call: Call, name: str) -> Iterable[MPI.Request]:
    """Share the counts that only the root knows, where the algorithm needs those of other ranks: requests to be awaited."""
    return () if counts_suffice(call, name) else sharing_counts(call, call.context.next_call())


def counts_suffice(call: Call, name: str) -> bool:
    """Whether each rank knows all counts that it needs under an algorithm; else ranks tell each other theirs."""
    return call.counts_shared or name == LINEAR or call.collective.personal


def remember_small(call: Call, context: Context) -> bool:
    """Let calls like this one go to MPI without being looked at, where they are small and nobody wants to see them all.

    Returns whether they will.
    """
    limits, one = context.small.limits, call.operands[0]
    if call.method not in limits:
        limits[call.method] = select.native_below(call.collective.name, context.topology)
    small = call.nbytes is not None and call.nbytes < limits[call.method]
    is_guarded = call.nonblocking and context.check == ALWAYS
    if not small or one.dtype is None or context.sees_all or is_guarded:
        return False
    what = call.root if call.op is None else call.op.handle
    nbytes = call.own_bytes if call.collective.blocks_of_ranks and not call.is_root else call.nbytes or 0
    context.small.add(call.form, what, call.arguments[_vector(call)], nbytes, call.text)
    return True


def _vector(call: Call) -> int:
    """Which argument is as large as the collective's vector, or at ranks that have a block alone, which is that."""
    takes = call.collective in (collectives.BCAST, collectives.REDUCE_SCATTER, collectives.SCATTER)
    return 0 if takes == (call.root is None or call.is_root or call.collective is collectives.BCAST) else 1
