"""Non-blocking calls: begun, then served by a task or by MPI itself."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

from mpi4py import MPI

from .. import errors
from ..algorithms import LIBRARIES
from ..buffers import Operand, note_begin
from ..execute import ABANDONED, PROGRESS, Context, Known, Plan, Record, native_method, owning, until_done
from ..select import probe
from ..support.callsite import call_site
from .binding import plan_of
from .call import Call
from .comparing import comparing
from .repeated import Key
from .request import Request
from .serving import LIBRARY_CALLS, choose, counts_for, counts_suffice, remember_small, working_context

#: what makes, of a call's context, steps, record, operands and track, what the caller waits for
Hold = Callable[[Context, Iterator[object], Record, Sequence[Operand], int | None], Any]


def begin(
    call: Call, algorithm: str | None = None, segment_bytes: int | None = None, key: Key | None = None, hold: Hold = Request
) -> Any:
    """Begin the call without waiting; returns what `hold` makes, or MPI's own request where MPI serves it without help. Local.

    key: what the next one like it will be recognised by.
    """
    call.nonblocking = True
    _refuse_what_nobody_brings_back(call)
    context = working_context(call)
    record = context.recorder.begin(call.text, call_site())
    try:
        return _begun(call, algorithm, segment_bytes, context, record, key, hold)
    except BaseException:
        if record.number:
            record.end()
        raise


def begin_again(
    comm: MPI.Comm, context: Context, known: Known, key: Key, understood: Callable[[], Call], given: Sequence[Any], hold: Hold
) -> Any:
    """Begin a call as it was begun before; returns as `begin`. understood: makes the `Call`; given: its arguments."""
    if known.native is not None:
        if not context.sees_all:
            context.small.note(known.text)
            return owning(known.native(comm, *given), given)
        context.require_working()
        request = owning(known.native(comm, *given), given)
        return hold(context, until_done([request]), context.recorder.begin(known.text, call_site()), (), None)
    record = context.recorder.begin(known.text, call_site())

    def bind() -> Plan:
        call = understood()
        call.nonblocking = True
        return plan_of(call, *known.choice)

    with _numbered(context, known.text) as number:
        return hold(context, _scheduled(known, key, bind, number, record, given), record, (), context.call_track(number))


def _begun(
    call: Call, algorithm: str | None, segment_bytes: int | None, context: Context, record: Record, key: Key | None, hold: Hold
) -> Any:
    if not PROGRESS.threaded:  # nobody could compare it, or unpack what was packed
        choose(call, algorithm, segment_bytes, probe.known)
        record.end()
        return owning(native_method(call.comm, call.form)(*call.arguments), call.arguments)
    compared = comparing(call, algorithm, segment_bytes, record)
    name, pieces, _ = choose(call, algorithm, segment_bytes, probe.known, compared)
    if not call.repeatable or any(one.device is not None for one in call.operands):
        key = None
    if name not in LIBRARIES:
        note_begin(call.operands)
        known, bind = Known(call.text, choice=(name, pieces)), partial(plan_of, call, name, pieces)
        if key is not None and counts_suffice(call, name):
            context.known.keep(key, known)
        before = until_done(chain(compared, counts_for(call, name)))
        with _numbered(context, call.text) as number:
            steps = chain(before, _scheduled(known, key, bind, number, record, call))
            return hold(context, steps, record, call.operands, context.call_track(number))
    library = LIBRARY_CALLS[name](call)
    request: MPI.Request = library.begin()
    if not compared and key is not None and library.is_given(call.arguments):
        context.known.keep(key, Known(call.text, getattr(MPI.Intracomm, call.form)))
        if algorithm is None and segment_bytes is None:
            remember_small(call, context)
    if not compared and not library.staged and not context.lists_all:
        record.end()  # for us: MPI alone knows when
        return request
    return hold(context, chain(until_done(compared), library.run_as_task(request)), record, call.operands, None)


@contextmanager
def _numbered(context: Context, text: str) -> Iterator[int]:
    """The number of a call that is about to begin. Where it does not, the other ranks' calls of that number never end."""
    number = context.next_call()
    try:
        yield number
    except BaseException as error:  # of a signal handler, say
        context.in_disorder(context.reason(text, error))
        raise


def _refuse_what_nobody_brings_back(call: Call) -> None:
    """Device memory passes through the host, and without threads nothing runs when MPI has the result there."""
    if not PROGRESS.threaded and any(one.device is not None for one in call.operands):
        raise errors.BufferError(
            f"{call.form} on device memory: MPI does not grant THREAD_MULTIPLE, so that nothing would bring the result to "
            f"the device: use {call.method} or {call.method}_init, or let mpi4py initialize MPI with threads"
        )


def _scheduled(
    known: Known, key: Key | None, bind: Callable[[], Plan], number: int, record: Record, given: object
) -> Iterator[Any]:
    """A schedule for a `Task`, by a plan that lies idle, or that `bind` makes. number: of the call; record: its own.

    key: what it is known by, or None. given: what must live until it has ended.
    """
    plan = known.take(key) or bind()
    record.plan = plan
    try:
        yield from plan.run_as_task(plan.tag_of(number, record.sequence))
    except GeneratorExit:  # the process ends
        raise
    except BaseException:
        ABANDONED.append(given)  # the caller may forget the arrays, MPI may not
        raise
    known.give_back(plan, key)
