"""Comparison of calls between ranks: each rank states its call, and all must state the same."""

import sys
from collections.abc import Iterable, Iterator
from functools import cache
from time import perf_counter, sleep

from mpi4py import MPI

from .. import select
from ..algorithms import NCCL, source_of
from ..buffers import Operand, ops
from ..errors import CollectiveMismatch, MpicollError
from ..execute import Context, Statement, compare, compare_blocks, share_blocks
from ..failure import Record
from ..progress import PROGRESS
from ..support.callsite import call_site
from ..support.settings import ALWAYS, OFF
from .call import Call
from .neighbor_call import NeighborCall

#: element types that match any other of the same size
_RAW = ("uint8", "S1", "int8")
#: seconds to wait for ranks that may never take part in the comparison
_PATIENCE = 2.0
#: seconds between two polls
_PAUSE = 1e-4


def statement_of(
    call: Call, algorithm: str | None, segment_bytes: int | None, sequence: int = 0
) -> Statement:
    """What must be equal on all ranks; of data that is only moved also the type, where it has one.

    An empty contribution has no type: a rank may pass an empty list of any numbers.

    sequence: see `Statement`.
    """
    facts = [" of ".join(filter(None, (call.form, call.stated_size)))]
    if call.root is not None:
        facts.append(f"root {call.root}")
    if call.op is not None:
        facts += [ops.op_name(call.op), call.type_name]
    if call.fixed and len(call.fixed.edges) > 2:
        facts.append(f"edges {call.fixed.edges}")
    if call.compression:
        facts.append(f"compression={call.compression!r}")
    if algorithm is not None:
        source = source_of(call.collective.name, algorithm)
        facts.append(f"algorithm={algorithm!r}{source and f' (source {source})'}")
    if segment_bytes is not None:
        facts.append(f"segment_bytes={segment_bytes}")
    on_device = any(operand.device is not None for operand in call.operands)
    if on_device and _may_use_nccl(call, algorithm):
        facts.append("in device memory")
    moved = ""
    if call.op is None and call.has_one_type:
        moved = next(filter(None, map(_type_moved, call.operands)), "")
    return Statement(", ".join(facts), moved, call_site(), sequence, call.would_run_in_c)


def _may_use_nccl(call: Call, algorithm: str | None) -> bool:
    """Whether selection considers NCCL, which it must do on all ranks."""
    return algorithm == NCCL or (algorithm is None and select.is_named(call.collective.name, NCCL))


def _type_moved(operand: Operand) -> str:
    return _type_stated(operand.dtype) if operand.dtype is not None and operand.nbytes else ""


@cache
def _type_stated(dtype: object) -> str:
    name = str(dtype)
    return "" if name in _RAW or name.startswith("[") else name


class _Waiting:
    """The state of a call that waits for something beside a schedule; see `Record.plan`."""

    unfinished = True
    runs_ahead = False
    step = None

    def __init__(self, text: str) -> None:
        self.text = text

    def where(self) -> str:
        """What the ranks do, for a person."""
        return self.text

    def peer(self) -> int | None:
        """None: the call waits for all ranks alike."""
        return None


COMPARING = _Waiting("comparing the call with those of the other ranks")
MEETING = _Waiting("finding out with the other ranks whether NCCL can serve them")
#: for a request of MPI's own, which is polled
POLLING = _Waiting("")


def agree(context: Context, requests: Iterable[MPI.Request], on: _Waiting = COMPARING) -> None:
    """Await what ranks tell each other in a blocking call: it is in no call of MPI's own then."""
    record = context.recorder.blocking
    plan, record.plan = record.plan, on
    try:
        context.wait_for(requests, on)
    finally:
        record.plan = plan


def noted(record: Record, requests: Iterable[MPI.Request]) -> Iterator[MPI.Request]:
    """What `agree` notes, in a call that does not block: a generator of the same requests."""
    record.plan = COMPARING
    yield from requests
    record.plan = None


def comparing(
    call: Call, algorithm: str | None, segment_bytes: int | None, record: Record
) -> Iterable[MPI.Request]:
    """Requests of the comparison with the other ranks, to be awaited; () where there is none.

    Called in program order, as it takes call numbers; the requests may be awaited later.
    """
    context = call.context
    if context.check == OFF:
        return ()
    statement = statement_of(call, algorithm, segment_bytes, record.sequence)
    call.what = statement.what
    sampled = is_sampled(call, algorithm, segment_bytes)
    if not context.must_compare(statement.what, record.place, sampled):
        call.runs_in_c = statement.what in context.cache.runs_in_c
        return ()
    call.is_new = True
    numbers = context.next_call(), context.next_call()
    return noted(record, _comparing(call, context, statement, numbers))


def is_known_to_run_in_c(
    call: Call, algorithm: str | None, segment_bytes: int | None
) -> bool:
    """Whether a call like it was compared, and the extension would execute it on all ranks."""
    return statement_of(call, algorithm, segment_bytes).what in call.context.cache.runs_in_c


def _comparing(
    call: Call, context: Context, statement: Statement, numbers: tuple[int, int]
) -> Iterator[MPI.Request]:
    yield from compare(context, statement, numbers[0])
    if not call.counts_shared:
        yield from sharing_counts(call, numbers[1])


def is_sampled(call: Call, algorithm: str | None, segment_bytes: int | None) -> bool:
    """Whether ranks that compare all calls compare one of so many like this one.

    These are blocking calls of so few bytes that MPI serves them without a choice.
    """
    if call.context.check != ALWAYS:
        return False
    if algorithm is not None or segment_bytes is not None or call.form != call.method:
        return False
    limit = select.native_below(call.collective.name, call.context.topology)
    return call.nbytes is not None and call.nbytes < limit


def refused(context: Context, error: Exception) -> None:
    """Tell ranks that compare every call that this rank makes none: they would wait for it."""
    site = f"{call_site()} ({type(error).__name__}: {error})"
    statement = Statement("a call whose arguments were refused", "", site)
    if not _complete_in_time(context, compare(context, statement, context.next_call())):
        context.in_disorder(context.reason(f"a call at {call_site()}", error))
        context.channel.withdraw()


def compare_end(context: Context) -> None:
    """Compare the calls so far, before a communicator with check="always" is freed."""
    if context.check != ALWAYS or context.broken:
        return
    try:
        is_complete = _complete_in_time(context, _comparing_end(context, call_site()))
    except CollectiveMismatch:
        raise
    except MpicollError:  # other ranks have died, or given it up: it is freed all the same
        is_complete = False
    if not is_complete:
        context.channel.withdraw()
        # never released: the next user of the wire would receive messages of this one
        context.channel.wire.use()


def compare_at_exit() -> None:
    """Compare the calls on communicators that are never freed, if the other ranks exit, too."""
    if MPI.Is_finalized() or getattr(sys, "last_value", None) is not None:
        return
    for context in sorted(Context.living(), key=lambda context: context.channel.name):
        if context.check != ALWAYS or context.broken or not context.recorder.has_uncompared:
            continue
        try:
            if not _complete_in_time(context, _comparing_end(context, "the end of the program")):
                return
        except (MpicollError, MPI.Exception) as error:
            head = f"mpicoll: rank {MPI.COMM_WORLD.Get_rank()}, at the end of the program"
            print(f"{head}: {error}", file=sys.stderr, flush=True)


def _comparing_end(context: Context, site: str) -> Iterator[MPI.Request]:
    statement = Statement("the end of this communicator", "", site, context.recorder.sequence)
    return compare(context, statement, context.next_call())


def _complete_in_time(context: Context, requests: Iterable[MPI.Request]) -> bool:
    """Await the requests for a limited time: the other ranks may be in a call of MPI's own."""
    deadline = perf_counter() + _PATIENCE
    for request in requests:
        while not request.Test():
            context.look_around()
            if context.queue.error is not None:
                PROGRESS.end_failed(context.queue)
                raise context.queue.error
            if perf_counter() > deadline:
                return False
            sleep(_PAUSE)
    return True


def sharing_counts(call: Call, number: int) -> Iterator[MPI.Request]:
    """Requests of an exchange of counts, to be awaited.

    After it all ranks know the counts of Gatherv and Scatterv; those of Alltoallv and Alltoallw are
    compared.
    """
    if isinstance(call, NeighborCall):
        yield from call.share_counts(number)
    elif call.collective.personal:
        recv = call.recv
        assert call.counts is not None and recv is not None and recv.counts is not None
        yield from compare_blocks(call.context, call.method, call.counts, recv.counts, number)
    elif not call.counts_agreed:
        assert call.root is not None
        call.counts = yield from share_blocks(
            call.context, call.method, call.root, call.counts or (), call.own_bytes, number
        )
        call.counts_agreed = True
