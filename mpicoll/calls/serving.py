"""Calls in their three forms: compared, chosen, bound to what serves them; then run or begun.

A call like an earlier one is served by the entry that is kept for it, and is not parsed again.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import chain

from mpi4py import MPI

from .. import errors, nccl, select
from ..algorithms import LIBRARIES, NCCL
from ..buffers import frozen, note_begin
from ..execute import (
    CachedCall,
    Context,
    Key,
    LibraryCall,
    NativeCall,
    Operation,
    ScheduledCall,
    native_method,
    plain_method,
)
from ..failure import ABANDONED, Mark, Record, owning
from ..progress import PROGRESS, until_done
from ..select import Choice, probe
from ..support import settings
from ..support.callsite import call_site
from ..support.settings import ALWAYS
from ..support.units import format_bytes, many
from .call import Call
from .comparing import MEETING, POLLING, agree, comparing, is_sampled, noted, sharing_counts
from .operations import operation_of
from .request import Request, Submit
from .trial import trial
from .typical import agree_now, note_size

_NOTHING = bytearray()


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
        agree(call.context, chain(before, nccl.meet(call)), MEETING)
        choice = select.choose(call.query, algorithm, segment_bytes, ask_probe)
    if algorithm is None and call.rank == 0 and settings.verbose():
        of = f" of {format_bytes(call.nbytes or 0)} bytes" if call.has_size else ""
        _print_once(f"mpicoll: {call.method}{of} on {many(call.size, 'rank')}: {choice}")
    return choice


@lru_cache(maxsize=4096)
def _print_once(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def counts_for(call: Call, name: str) -> Iterable[MPI.Request]:
    """Requests of an exchange of counts, to be awaited; () where the algorithm needs none."""
    return () if call.counts_suffice(name) else sharing_counts(call, call.context.next_call())


# Blocking.


def run(
    call: Call, record: Record, algorithm: str | None, segment_bytes: int | None,
    key: Key | None = None,
) -> Operation | None:  # fmt: skip
    """Serve a blocking call. key: of later calls like it.

    Returns what served it, if later calls like it may pass a door from now on.
    """
    context = call.context
    context.require_working()
    record.enter(call.text)
    note_size(call)
    agree(context, comparing(call, algorithm, segment_bytes, record))
    entry = context.cache.find(key)
    if entry is not None:  # the call was parsed for the comparison only
        return run_again(entry, record, key, call.comm, call.arguments, lambda: call)
    choice = choose(call, algorithm, segment_bytes)
    entry = CachedCall(call.text, choice)
    if not (call.repeatable and call.counts_suffice(choice.name)):
        key = None
    agree(context, counts_for(call, choice.name))
    operation = _run(entry, record, key, operation_of(call, choice))
    if call.is_named_by_messages and choice.name not in LIBRARIES:
        entry.is_named = True
        context.cache.named.add(call.what)
    entry.is_sampled = is_sampled(call, algorithm, segment_bytes)
    # by what executes it on all ranks, which they know from now on
    is_chosen_anew = call.is_new and algorithm is None and call.would_run_in_c
    if not is_chosen_anew:
        keep(call, entry, key, operation)
    return operation if entry.method is not None and _may_pass(entry, context) else None


def run_again(
    entry: CachedCall, record: Record, key: Key | None, comm: MPI.Comm, args: Sequence[object],
    parse: Callable[[], Call],
) -> Operation | None:  # fmt: skip
    """Serve a blocking call like an earlier one; returns as `run`. parse: the `Call` of `args`."""
    if entry.method is not None:
        entry.method(comm, *args)
        return None
    operation = entry.take(key) or operation_of(parse(), entry.choice)
    _run(entry, record, key, operation)
    return operation if _may_pass(entry, operation.context) else None


def _run(entry: CachedCall, record: Record, key: Key | None, operation: Operation) -> Operation:
    operation.run(record)
    entry.give_back(operation, key)
    return operation


def _may_pass(entry: CachedCall, context: Context) -> bool:
    """Whether doors may serve such calls: not where ranks compare each."""
    return context.check != ALWAYS or entry.is_named or entry.is_sampled


def keep(call: Call, entry: CachedCall, key: Key | None, operation: Operation) -> None:
    """Recognise later calls like this one, which `operation` has served."""
    if operation.is_given(call.arguments):
        entry.method = plain_method(call.form)
    if key is not None and (operation.is_kept or entry.method is not None):
        call.context.cache.keep(key, entry)


# Persistent.


def persist(
    call: Call, info: MPI.Info, algorithm: str | None = None, segment_bytes: int | None = None
) -> Operation | MPI.Prequest:
    """A persistent plan of the call."""
    call.persistent = True
    context = call.context
    context.require_working()
    record = context.recorder.blocking
    text = call.text
    try:
        record.begin(text, call_site())
        agree(context, comparing(call, algorithm, segment_bytes, record))
        agree_now(call)
        call.runs_in_c = call.what in context.cache.runs_in_c
        choice = choose(call, algorithm, segment_bytes)
        agree(context, counts_for(call, choice.name))
        return operation_of(call, choice).persistent(info)
    except BaseException as error:
        context.lost = text, error
        context.lose_step(*context.lost)  # the other ranks have one plan more
        raise
    finally:
        record.end()


# Non-blocking.


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
        context, call.text, partial(_begin, call, algorithm, segment_bytes, key, submit))


def _begin(
    call: Call, algorithm: str | None, segment_bytes: int | None, key: Key | None,
    submit: Submit, record: Record,
) -> object:  # fmt: skip
    if not PROGRESS.threaded:  # no thread would compare the calls, or unpack the result
        choose(call, algorithm, segment_bytes, probe.known)
        record.end()
        native = NativeCall(call)
        if not native.unpacking:
            return native.begin()
        return owning(native_method(call.comm, call.form)(*call.arguments), call.arguments)
    compared = comparing(call, algorithm, segment_bytes, record)
    choice = choose(call, algorithm, segment_bytes, probe.known, compared)
    entry = CachedCall(call.text, choice)
    entry.has_lists = any(isinstance(argument, (list, tuple)) for argument in call.arguments)
    on_device = any(operand.device is not None for operand in call.operands)
    if on_device or not (call.repeatable and call.counts_suffice(choice.name)):
        key = None
    if choice.name in LIBRARIES:
        return _begin_library(call, entry, key, compared, record, submit)
    context = call.context
    note_begin(call.operands)
    if key is not None:
        context.cache.keep(key, entry)
    before = until_done(chain(compared, noted(record, counts_for(call, choice.name))))
    number = context.next_call()
    scheduled = _scheduled(entry, record, key, number, lambda: call)
    steps = _keeping(call, chain(before, scheduled))
    return submit(context, steps, record, call.operands, context.call_track(number))


def begin_at_once(
    method: str, context: Context, arguments: Sequence[object]
) -> MPI.Request | None:
    """Begin a call that is known well, and wait for a moment; None: it is not, or others run.

    method: by which doors know it.
    """
    try:
        begun: MPI.Request | bool | None = context.doors.begin(method, _go_on, arguments)
    finally:
        context.held.release()
    if isinstance(begun, bool):
        return MPI.COMM_SELF.Isend(_NOTHING, MPI.PROC_NULL)  # a request that has ended
    return begun


def _go_on(
    operation: ScheduledCall, tag: int, mark: Mark, arguments: tuple[object, ...],
    raised: BaseException | None,
) -> Request:  # fmt: skip
    """Make a task of a call that a door has begun."""
    context = operation.context
    context.held.hold(raised)
    record = context.recorder.resume(mark.text, call_site())
    if list in map(type, arguments):
        arguments = frozen(arguments)
    steps = _keeping(arguments, operation.finish_as_task(record, tag, arguments))
    track = context.call_track(tag >> context.channel.number_bit)
    return Request(context, steps, record, (), track)


def begin_again(
    entry: CachedCall, key: Key, comm: MPI.Comm, context: Context, args: Sequence[object],
    parse: Callable[..., Call], submit: Submit, door: str,
) -> object:  # fmt: skip
    """Begin a call like an earlier one; returns as `begin`.

    parse: makes the `Call` of arguments. door: that may let such calls through from now on.
    """
    method = entry.method
    _, *wanted = key[0][:3]
    if method is not None and not context.lists_all:
        request = owning(method(comm, *args), args)
        context.recorder.enter_passed(entry.text)
        return request
    if entry.has_lists:
        args = frozen(args)  # what is parsed and learnt later

    def parse_nonblocking() -> Call:
        call = parse(*args)
        call.nonblocking = True
        return call

    def learn(plan: ScheduledCall) -> None:
        context.doors.learn(door, (*args, *wanted), plan, entry.text)

    def start(record: Record) -> object:
        if method is not None:
            context.require_working()
            request = owning(method(comm, *args), args)
            return submit(context, until_done([request]), record, (), None)
        number = context.next_call()
        steps = _scheduled(entry, record, key, number, parse_nonblocking, learn)
        track = context.call_track(number)
        return submit(context, _keeping(args, steps), record, (), track)

    return _counted(context, entry.text, start)


def _begin_library(
    call: Call, entry: CachedCall, key: Key | None, compared: Iterable[MPI.Request],
    record: Record, submit: Submit,
) -> object:  # fmt: skip
    context = call.context
    library = operation_of(call, entry.choice)
    assert isinstance(library, LibraryCall)
    request: MPI.Request = library.begin()
    if not compared and key is not None:
        keep(call, entry, key, library)
    if not compared and not library.staged and not context.lists_all:
        record.end()  # MPI alone knows when the call ends
        return request
    steps = _keeping(call, chain(until_done(compared), library.run_as_task(request)))
    return submit(context, steps, record, call.operands, None)


def _scheduled(
    entry: CachedCall, record: Record, key: Key | None, number: int,
    parse: Callable[[], Call], learn: Callable[[ScheduledCall], object] = lambda plan: None,
) -> Iterator[object]:  # fmt: skip
    """The steps of a call's schedule, by an idle plan of `entry` or a new one.

    record, number: of the call. learn: called at the end with the plan.
    """
    plan = entry.take(key) or operation_of(parse(), entry.choice)
    assert isinstance(plan, ScheduledCall)
    record.plan = plan
    yield from plan.run_as_task(plan.tag_of(number, record.sequence))
    learn(plan)  # before another thread may take it
    entry.give_back(plan, key)


def _keeping(buffers: object, steps: Iterator[object]) -> Iterator[object]:
    """The steps of a call; its buffers are kept alive to its end."""
    try:
        yield from steps
    except GeneratorExit:  # the process ends
        raise
    except BaseException:
        ABANDONED.append(buffers)  # the caller may drop the arrays while MPI still uses them
        raise


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
            context.lost = text, error
            context.lose_step(*context.lost)
        record.end()
        raise


def _check_device_memory(call: Call) -> None:
    """Without threads nothing copies a result from the host, where MPI writes it, to the device."""
    if not PROGRESS.threaded and any(operand.device is not None for operand in call.operands):
        raise errors.BufferError(
            f"{call.form} on device memory: MPI does not grant THREAD_MULTIPLE, so that nothing "
            f"would bring the result to the device: use {call.method} or {call.method}_init, "
            "or let mpi4py initialize MPI with threads"
        )


# By the program's thread, while it waits.


def run_begun(
    entry: CachedCall, comm: MPI.Comm, context: Context, args: Sequence[object]
) -> None:
    """MPI's own non-blocking call, and wait for its end, or for as long as it may take."""
    context.require_working()
    record = context.recorder.blocking
    context.queue.stall.restart()

    def is_over() -> bool:
        if request.Test():
            return True
        context.keep_watch()
        return False

    request = MPI.REQUEST_NULL
    try:
        record.begin(entry.text, call_site())
        request = entry.method(comm, *args)
        record.plan = POLLING
        PROGRESS.wait_soon(is_over)
    except MPI.Exception as error:
        ABANDONED.append(args)
        context.raise_explained(error)
    except BaseException as error:
        ABANDONED.append((request, args))
        if record.place:
            context.in_disorder(context.reason(entry.text, error))
        PROGRESS.end_failed(context.queue)
        raise
    finally:
        record.plan = None  # MPI has served it
        record.end()
