"""What a call says of itself, for the other ranks to compare with what they say of theirs."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from time import perf_counter, sleep

from mpi4py import MPI

from .. import select
from ..algorithms import NCCL
from ..buffers import Operand, ops
from ..errors import MpicollError, RankFailure
from ..execute import Context, Record, Statement, compare, compare_blocks, share_blocks
from ..support.callsite import call_site
from ..support.settings import ALWAYS, OFF
from .call import Call

#: elements that may stand for any others of as many bytes
_RAW = ("uint8", "S1", "int8")
#: seconds that other ranks have to come where they need not, and between two looks for them
_PATIENCE, _PAUSE = 2.0, 1e-4


def statement_of(
    call: Call, algorithm: str | None, segment_bytes: int | None, sequence: int = 0
) -> Statement:
    """What must be equal on all ranks; of data that is only moved, the type too where it is known.

    A contribution of nothing has no type: a rank may write it as an empty list of any numbers.

    sequence: see `Statement`.
    """
    said = [f"{call.form} of {_size(call)}"]
    if call.root is not None:
        said.append(f"root {call.root}")
    if call.op is not None:
        said += [ops.op_name(call.op), call.type_name]
        said += [f"edges {call.fixed.edges}"] if call.fixed and len(call.fixed.edges) > 2 else []
    if algorithm is not None:
        said.append(f"algorithm={algorithm!r}")
    if segment_bytes is not None:
        said.append(f"segment_bytes={segment_bytes}")
    if any(one.device is not None for one in call.operands) and _may_be_for_nccl(call, algorithm):
        said.append("in device memory")
    moved = "" if call.op is not None else next(filter(None, map(_kind_moved, call.operands)), "")
    return Statement(", ".join(said), moved, call_site(), sequence)


def _may_be_for_nccl(call: Call, algorithm: str | None) -> bool:
    """Whether NCCL may be asked, which all ranks must do."""
    return algorithm == NCCL or (algorithm is None and select.is_named(call.collective.name, NCCL))


def _kind_moved(one: Operand) -> str:
    return _kind_of(one.dtype) if one.dtype is not None and one.nbytes else ""


@cache
def _kind_of(dtype: object) -> str:
    name = str(dtype)
    return "" if name in _RAW or name.startswith("[") else name


def _size(call: Call) -> str:
    if not call.collective.blocks_of_ranks or call.counts is None:
        return "blocks" if call.collective.blocks_of_ranks else f"{call.nbytes} bytes"
    if not call.counts_shared:
        return "blocks"  # those of other ranks are known to the root alone, see `comparing`
    if len(set(call.counts)) == 1:
        return f"{len(call.counts)} blocks of {call.counts[0]} bytes"
    return f"blocks of {', '.join(map(str, call.counts))} bytes"


class _Agreeing:
    """Where a call stands meanwhile. text: for a person."""

    unfinished, runs_ahead, step = True, False, None

    def __init__(self, text: str) -> None:
        self.text = text

    def where(self) -> str:
        """For a person."""
        return self.text

    def peer(self) -> int | None:
        """Nobody more than others."""
        return None


COMPARING = _Agreeing("comparing the call with those of the other ranks")
MEETING = _Agreeing("finding out with the other ranks whether NCCL can serve them")


def comparing(call: Call, algorithm: str | None, segment_bytes: int | None, record: Record) -> Iterable[MPI.Request]:
    """Compare the call with those of the other ranks, where that is to be done, else (): requests to be awaited.

    Numbers are taken at once, so this is called in program order; what it returns may run later.
    """
    context = call.context
    if context.check == OFF:
        return ()
    statement = statement_of(call, algorithm, segment_bytes, record.sequence)
    small = is_small(call, algorithm, segment_bytes)
    if not context.must_compare(statement.what, record.place, small):
        return ()
    numbers = context.next_call(), context.next_call()
    return _comparing(call, context, statement, numbers, record)


def _comparing(
    call: Call, context: Context, statement: Statement, numbers: tuple[int, int], record: Record
) -> Iterator[MPI.Request]:
    record.plan = COMPARING
    yield from compare(context, statement, numbers[0])
    if not call.counts_shared:
        yield from sharing_counts(call, numbers[1])
    record.plan = None


def is_small(call: Call, algorithm: str | None, segment_bytes: int | None) -> bool:
    """Whether calls like this one may go to MPI without being looked at, on any rank."""
    limits = call.context.small.limits
    if call.method not in limits:
        limits[call.method] = select.native_below(call.collective.name, call.context.topology)
    is_plain = algorithm is None and segment_bytes is None and call.nbytes is not None
    return is_plain and call.form == call.method and (call.nbytes or 0) < limits[call.method]


def refused(context: Context, error: Exception) -> None:
    """Say that this rank makes no call, where the others compare each one: they would wait for it."""
    site = f"{call_site()} ({type(error).__name__}: {error})"
    statement = Statement("a call whose arguments were refused", "", site)
    if not _are_through(context, compare(context, statement, context.next_call())):
        context.in_disorder(context.reason(f"a call at {call_site()}", error))
        context.channel.withdraw()


def compare_end(context: Context) -> None:
    """Before a communicator with check="always" is freed: compare what was called on it so far."""
    if context.check != ALWAYS or context.broken:
        return
    with suppress(RankFailure):
        if not _are_through(context, _comparing_end(context, call_site())):
            context.channel.withdraw()
            context.channel.wire.use()  # for good: another one would have messages of this one


def compare_at_exit() -> None:
    """The same for those that are never freed, if the other ranks come to their end, too."""
    if MPI.Is_finalized() or getattr(sys, "last_value", None) is not None:
        return
    for context in sorted(Context.living(), key=lambda one: one.channel.name):
        if context.check != ALWAYS or context.broken or not context.recorder.has_uncompared:
            continue
        try:
            if not _are_through(context, _comparing_end(context, "the end of the program")):
                return
        except (MpicollError, MPI.Exception) as error:
            head = f"mpicoll: rank {MPI.COMM_WORLD.Get_rank()}, at the end of the program"
            print(f"{head}: {error}", file=sys.stderr, flush=True)


def _comparing_end(context: Context, site: str) -> Iterator[MPI.Request]:
    context.recorder.enter_unseen()
    statement = Statement("the end of this communicator", "", site, context.recorder.sequence)
    return compare(context, statement, context.next_call())


def _are_through(context: Context, requests: Iterable[MPI.Request]) -> bool:
    """Await them, but not for ever: the other ranks may be in a call of MPI's own."""
    until = perf_counter() + _PATIENCE
    for request in requests:
        while not request.Test():
            context.look_around()
            if context.queue.error is not None:
                raise context.queue.error
            if perf_counter() > until:
                return False
            sleep(_PAUSE)
    return True


def sharing_counts(call: Call, number: int) -> Iterator[MPI.Request]:
    """Have all ranks know the bytes of all blocks of Gatherv and Scatterv, those of Alltoallv each its own: requests."""
    if call.collective.personal:
        recv = call.recv
        assert call.counts is not None and recv is not None and recv.counts is not None
        yield from compare_blocks(call.context, call.method, call.counts, recv.counts, number)
    elif not call.counts_agreed:
        assert call.root is not None
        counts, mine = call.counts or (), call.own_bytes
        call.counts = yield from share_blocks(call.context, call.method, call.root, counts, mine, number)
        call.counts_agreed = True
