"""Blocking and persistent calls: selection, then a schedule or the call of a library."""

import sys
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from itertools import chain

from mpi4py import MPI

from .. import collectives, nccl, select
from ..algorithms import LIBRARIES, NATIVE, NCCL
from ..execute import Known, LibraryCall, NativeCall, Plan
from ..failure import Record
from ..select import Choice, probe
from ..support import settings
from ..support.callsite import call_site
from ..support.settings import ALWAYS
from ..support.units import format_bytes, many
from .call import Call
from .comparing import COMPARING, MEETING, comparing, is_below_limit, sharing_counts
from .plans import plan_of
from .repeated import Key
from .trial import trial

#: an algorithm in which ranks exchange blocks with the root alone, and need their own count only
LINEAR = "linear"
#: calls that have no schedule, by the algorithm
LIBRARY_CALLS: dict[str, type[LibraryCall]] = {
    NATIVE: NativeCall,
    NCCL: nccl.NcclCall,
}
#: a persistent collective
PersistentCall = Plan | LibraryCall | MPI.Prequest


def choose(
    call: Call,
    algorithm: str | None,
    segment_bytes: int | None,
    measured: Callable[..., Choice | None] = partial(probe.best, trial),
    before: Iterable[MPI.Request] = (),
) -> Choice:
    """The `Choice` for the call.

    measured: asks the probe, and may communicate. before: requests that are awaited before ranks
    find out whether NCCL can serve them.
    """
    ask_probe = partial(measured, call.comm)
    choice = select.choose(call.query, algorithm, segment_bytes, ask_probe)
    if choice.name == NCCL and nccl.is_unmet(call):
        call.context.wait_for(chain(before, nccl.meet(call)), MEETING)
        choice = select.choose(call.query, algorithm, segment_bytes, ask_probe)
    if algorithm is None and call.rank == 0 and settings.verbose():
        of = "" if call.nbytes is None else f" of {format_bytes(call.nbytes)} bytes"
        _print_once(f"mpicoll: {call.method}{of} on {many(call.size, 'rank')}: {choice}")
    return choice


@lru_cache(maxsize=4096)
def _print_once(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(
    call: Call, record: Record, algorithm: str | None, segment_bytes: int | None,
    key: Key | None = None,
) -> None:  # fmt: skip
    """Serve a blocking call. key: of later calls like it."""
    context = call.context
    context.require_working()
    record.enter(call.text)
    context.wait_for(comparing(call, algorithm, segment_bytes, record), COMPARING)
    entry = context.known.find(key)
    if entry is not None:  # the call was parsed for the comparison only
        entry.run(record, call.comm, call.arguments, key)
        return
    name, pieces, _ = choose(call, algorithm, segment_bytes)
    if not call.repeatable or (name != NATIVE and not counts_suffice(call, name)):
        key = None
    if name in LIBRARIES:
        library = LIBRARY_CALLS[name](call)
        is_direct = library.is_given(call.arguments)
        library.run()
        is_plain = algorithm is None and segment_bytes is None
        is_small = is_direct and is_plain and remember_small(call)
        if is_direct and key is not None:
            method = getattr(MPI.Intracomm, call.method)
            context.known.keep(key, Known(call.text, method, is_small))
        return
    context.wait_for(counts_for(call, name), COMPARING)
    record.plan = plan = plan_of(call, name, pieces)
    plan.run()
    if key is not None:
        context.known.keep(key, Known(call.text), plan.lies_in(key[1]))
    else:
        plan.Free()


def persist(
    call: Call, info: MPI.Info, algorithm: str | None = None, segment_bytes: int | None = None
) -> PersistentCall:
    """A persistent plan of the call."""
    call.persistent = True
    context = call.context
    context.require_working()
    record = context.recorder.blocking.begin(call.text, call_site())
    try:
        context.wait_for(comparing(call, algorithm, segment_bytes, record), COMPARING)
        name, pieces, _ = choose(call, algorithm, segment_bytes)
        if name in LIBRARIES:
            return LIBRARY_CALLS[name](call).persistent(info)
        context.wait_for(counts_for(call, name), COMPARING)
        plan = plan_of(call, name, pieces, persistent=True)
        plan.tag = context.next_plan_tag()
        return plan
    except BaseException as error:
        context.lose_step(call.text, error)  # the other ranks have one plan more
        raise
    finally:
        record.end()


def counts_for(call: Call, name: str) -> Iterable[MPI.Request]:
    """Requests of an exchange of counts, to be awaited; () where the algorithm needs none."""
    return () if counts_suffice(call, name) else sharing_counts(call, call.context.next_call())


def counts_suffice(call: Call, name: str) -> bool:
    """Whether each rank knows all counts that it needs under an algorithm."""
    return call.counts_shared or name == LINEAR or call.collective.personal


def remember_small(call: Call) -> bool:
    """Pass later calls like this one to MPI without parsing, if they are small.

    Returns False where they are large, or where every call is recorded or guarded.
    """
    context = call.context
    is_guarded = call.nonblocking and context.check == ALWAYS
    if context.sees_all or is_guarded or call.operands[0].dtype is None:
        return False
    if not is_below_limit(call):
        return False
    op_or_root = call.root if call.op is None else call.op.handle
    has_block_only = call.collective.blocks_of_ranks and not call.is_root
    nbytes = call.own_bytes if has_block_only else call.nbytes or 0
    context.small.add(call.form, op_or_root, _vector_argument(call), nbytes, call.text)
    return True


def _vector_argument(call: Call) -> object:
    """The argument that holds the collective's vector; the block of a rank that has no more."""
    if call.collective is collectives.BCAST:
        return call.arguments[0]
    root_sends = call.collective in (collectives.REDUCE_SCATTER, collectives.SCATTER)
    return call.arguments[0 if root_sends == call.is_root else 1]
