"""Non-blocking calls: begun here, then served by a task or by MPI itself."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain

from mpi4py import MPI

from .. import errors
from ..algorithms import LIBRARIES
from ..buffers import note_begin
from ..execute import Context, Known, Plan, native_method, owning
from ..failure import ABANDONED, Record
from ..progress import PROGRESS, until_done
from ..select import probe
from ..support.callsite import call_site
from .call import Call
from .comparing import comparing
from .plans import plan_of
from .repeated import Key
from .request import Request, Submit
from .serving import LIBRARY_CALLS, choose, counts_for, counts_suffice, remember_small


def begin(
    call: Call, algorithm: str | None = None, segment_bytes: int | None = None,
    key: Key | None = None, submit: Submit = Request,
) -> object:  # fmt: skip
    """Begin the call without waiting. Local.

    Returns what `submit` returns, or MPI's own request where MPI serves the call alone. key: of
    later calls like it.
    """
    call.nonblocking = True
    _check_device_memory(call)
    context = call.context
    context.require_working()
    return _counted(
        context, call.text,
        lambda record: _begin(call, algorithm, segment_bytes, record, key, submit))


def begin_again(
    comm: MPI.Comm, context: Context, entry: Known, key: Key, parse: Callable[[], Call],
    args: Sequence[object], submit: Submit,
) -> object:  # fmt: skip
    """Begin a call like an earlier one; returns as `begin`. parse: makes the `Call` of `args`."""
    native = entry.native
    if native is not None and not context.sees_all:
        context.small.note(entry.text)
        return owning(native(comm, *args), args)

    def bind() -> Plan:
        call = parse()
        call.nonblocking = True
        return plan_of(call, *entry.choice)

    def start(record: Record) -> object:
        if native is not None:
            context.require_working()
            request = owning(native(comm, *args), args)
            return submit(context, until_done([request]), record, (), None)
        with _numbered(context, entry.text) as number:
            steps = _scheduled(entry, key, bind, number, record, args)
            return submit(context, steps, record, (), context.call_track(number))

    return _counted(context, entry.text, start)


def _counted(context: Context, text: str, start: Callable[[Record], object]) -> object:
    """Start a call that counts from here on; returns what `start` returns.

    Where an error of the program ends that, as a signal handler's, this rank has counted a call
    that the other ranks do not find: it serves no further call.
    """
    record = Record(context.recorder)
    try:
        context.recorder.begin(text, call_site(), record=record)
        return start(record)
    except BaseException as error:
        if record.place:
            context.lose_step(text, error)
        if record.number:
            record.end()
        raise


def _begin(
    call: Call, algorithm: str | None, segment_bytes: int | None,
    record: Record, key: Key | None, submit: Submit,
) -> object:  # fmt: skip
    if not PROGRESS.threaded:  # no thread would compare the calls, or unpack the result
        choose(call, algorithm, segment_bytes, probe.known)
        record.end()
        return owning(native_method(call.comm, call.form)(*call.arguments), call.arguments)
    compared = comparing(call, algorithm, segment_bytes, record)
    name, pieces, _ = choose(call, algorithm, segment_bytes, probe.known, compared)
    if not call.repeatable or any(operand.device is not None for operand in call.operands):
        key = None
    if name in LIBRARIES:
        is_plain = algorithm is None and segment_bytes is None
        return _begin_library(call, name, is_plain, compared, record, key, submit)
    return _begin_schedule(call, name, pieces, compared, record, key, submit)


def _begin_library(
    call: Call, name: str, is_plain: bool, compared: Iterable[MPI.Request],
    record: Record, key: Key | None, submit: Submit,
) -> object:  # fmt: skip
    """is_plain: the user named neither an algorithm nor a segment size."""
    context = call.context
    library = LIBRARY_CALLS[name](call)
    request: MPI.Request = library.begin()
    if not compared and key is not None and library.is_given(call.arguments):
        context.known.keep(key, Known(call.text, getattr(MPI.Intracomm, call.form)))
        if is_plain:
            remember_small(call)
    if not compared and not library.staged and not context.lists_all:
        record.end()  # MPI alone knows when the call ends
        return request
    steps = chain(until_done(compared), library.run_as_task(request))
    return submit(context, steps, record, call.operands, None)


def _begin_schedule(
    call: Call, name: str, pieces: int | None, compared: Iterable[MPI.Request],
    record: Record, key: Key | None, submit: Submit,
) -> object:  # fmt: skip
    context = call.context
    note_begin(call.operands)
    entry = Known(call.text, choice=(name, pieces))
    bind = partial(plan_of, call, name, pieces)
    if key is not None and counts_suffice(call, name):
        context.known.keep(key, entry)
    before = until_done(chain(compared, counts_for(call, name)))
    with _numbered(context, call.text) as number:
        steps = chain(before, _scheduled(entry, key, bind, number, record, call))
        return submit(context, steps, record, call.operands, context.call_track(number))


@contextmanager
def _numbered(context: Context, text: str) -> Iterator[int]:
    """The number of a call that begins.

    If it fails to begin, the calls of that number on the other ranks never end.
    """
    number = context.next_call()
    try:
        yield number
    except BaseException as error:  # of a signal handler, for example
        context.in_disorder(context.reason(text, error))
        raise


def _check_device_memory(call: Call) -> None:
    """Without threads nothing copies a result from the host, where MPI writes it, to the device."""
    if not PROGRESS.threaded and any(operand.device is not None for operand in call.operands):
        raise errors.BufferError(
            f"{call.form} on device memory: MPI does not grant THREAD_MULTIPLE, so that nothing "
            f"would bring the result to the device: use {call.method} or {call.method}_init, "
            "or let mpi4py initialize MPI with threads"
        )


def _scheduled(
    entry: Known, key: Key | None, bind: Callable[[], Plan], number: int, record: Record,
    buffers: object,
) -> Iterator[object]:  # fmt: skip
    """The steps of a call's schedule, by an idle plan of `entry`, or by one that `bind` makes.

    number, record: of the call. buffers: kept alive to the end of the call.
    """
    plan = entry.take(key) or bind()
    record.plan = plan
    try:
        yield from plan.run_as_task(plan.tag_of(number, record.sequence))
    except GeneratorExit:  # the process ends
        raise
    except BaseException:
        ABANDONED.append(buffers)  # the caller may drop the arrays while MPI still uses them
        raise
    entry.give_back(plan, key)
