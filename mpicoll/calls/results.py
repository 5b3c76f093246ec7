"""Results that must be equal on all ranks, compared by a digest of 64 bits (MPICOLL_CHECK=digest); and data under way, watched.

What a digest finds is no mistake in the order of calls but wrong data: memory or a network that flips bits, an op of the
user's that is another one on some rank, ranks that write to an array while it is in use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain
from typing import Any

import numpy as np
from mpi4py import MPI

from .. import errors
from ..buffers import Operand, host_copies, operand, ops
from ..errors import CollectiveMismatch
from ..execute import BYTES, LEFT_OVER, Context, LowerCase, Record, everyone_says, largest_of_all, until_done
from ..support.callsite import call_site
from ..support.checks import groups, ranks_text
from .beginning import Hold
from .call import Call
from .comparing import COMPARING
from .request import Request

#: bits of the fraction of x86's long double, and bytes that it has
_EXTENDED, _EXTENDED_BYTES = 63, 10
#: by the functions of `arguments`: which argument has a result that is the same on all ranks, and whether it has blocks
_EQUAL = {"bcast": (0, ""), "allreduce": (1, ""), "allgather": (1, "blocks"), "allgatherv": (1, "vector")}


def digest_of(one: Operand) -> int:
    """64 bits that stand for what an operand holds now, whatever bits its NaNs have."""
    work = one.vector
    if work is None or one.device is not None:
        work = np.empty(one.nbytes, BYTES).view(one.dtype or _element_of(one.datatype) or BYTES)
        host_copies(one)[0](work)
    if work.dtype.kind in "fc" and (missing := np.isnan(work)).any():
        work = np.where(missing, work.dtype.type(np.nan), work)
    data = _without_padding(np.ascontiguousarray(work)).data
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little", signed=True)


def _element_of(datatype: MPI.Datatype | None) -> np.dtype[Any] | None:
    """The type of the numbers that a derived type consists of; None where there are several."""
    if datatype is None or datatype.is_predefined:
        return None if datatype is None else ops.numpy_type(datatype.handle)
    inner, combiner, _ = datatype.decode()
    if combiner == "STRUCT":
        return None
    try:
        return _element_of(inner)
    finally:
        if not inner.is_predefined:
            inner.Free()


def _without_padding(work: Any) -> Any:
    """The bytes of contiguous numbers; of long doubles those that have a value, as MPI leaves the others as they were."""
    raw = work.view(BYTES)
    if work.dtype.char not in "gG" or np.finfo(work.dtype).nmant != _EXTENDED:
        return raw
    return np.ascontiguousarray(raw.reshape(-1, np.dtype("g").itemsize)[:, :_EXTENDED_BYTES])


# Results.


def comparing_results(
    context: Context, name: str, given: Sequence[Any], site: Callable[[], str] = call_site
) -> Iterable[MPI.Request]:
    """Compare the result of a call, where that is to be done, else (): requests to be awaited once the call has ended.

    A number is taken at once, so this is called in program order. name: of its function in `arguments`; given: its arguments.
    site: where the call is made.
    """
    if not context.digest_every or name not in _EQUAL:
        return ()
    context.results += 1
    if context.results % context.digest_every:
        return ()
    return _comparing(context, name, given, context.next_call(), site())


def _comparing(context: Context, name: str, given: Sequence[Any], number: int, site: str) -> Iterator[MPI.Request]:
    position, form = _EQUAL[name]
    size = len(context.channel.ranks)
    whole = operand(given[position], size if form else 0, vector=form == "vector")
    digest = digest_of(whole)
    words = np.array([digest, ~digest], np.int64)
    yield from largest_of_all(context, words, number)
    if words[0] != ~words[1]:
        text = f"{name.capitalize()} of {whole.nbytes} bytes at {site}: {digest & 0xFFFFFFFFFFFFFFFF:016x}"
        said = yield from everyone_says(context, text, number)
        lines = [f"  {ranks_text(ranks)}: {one}" for one, ranks in groups(said)]
        head = "the result of a call is not the same on all ranks, by a digest of its bytes:"
        raise context.in_disorder(CollectiveMismatch("\n".join([head, *lines])), tell=False)


def wait_for_results(context: Context, compare: Iterable[MPI.Request]) -> None:
    """Await them for a call that blocks."""
    context.wait_for(compare, COMPARING)


def with_results_compared(hold: Hold, compare: Iterable[MPI.Request]) -> Hold:
    """The same for a call that does not block: its result is compared at its end."""

    def held(
        context: Context, steps: Iterator[object], record: Record, operands: Sequence[Operand], track: int | None
    ) -> Any:
        return hold(context, chain(steps, until_done(compare)), record, operands, track)

    return held


# Data under way.


class Guard:
    """What the buffers of a call held when it began, and when it ended, for whoever waits for it."""

    def __init__(self, call: Call, site: str) -> None:
        self.text = f"{call.form} of {call.nbytes} bytes" if call.nbytes is not None else call.form
        self.site, self.rank = site, call.rank
        plain = call.fixed is None and all(one.rows is None for one in call.operands)
        self._sent = call.send if plain and not call.shared else None
        self._received = call.recv if plain else None
        if call.root is not None and call.is_root and call.method == "Bcast":
            self._sent, self._received = self._received, None
        self._before = None if self._sent is None else digest_of(self._sent)
        self._after: int | None = None

    def ended(self) -> Iterator[object]:
        """The last step of the call."""
        if self._received is not None:
            self._after = digest_of(self._received)
        yield from ()

    def check(self) -> None:
        """Raise BufferError where a buffer was written to since."""
        if self._sent is not None and digest_of(self._sent) != self._before:
            self._raise("send")
        if self._received is not None and self._after is not None and digest_of(self._received) != self._after:
            self._raise("receive")

    def _raise(self, which: str) -> None:
        raise errors.BufferError(
            f"rank {self.rank}: the {which} buffer of {self.text}, begun at {self.site}, was written to before the call was "
            "waited for: its result may be wrong on all ranks. Write to it after Wait, or give the call a copy"
        )


def guarded(hold: Hold, call: Call) -> Hold:
    """The same for a call whose buffers are watched, and that is listed at the end where it was never waited for."""
    site = call_site()

    def held(
        context: Context, steps: Iterator[object], record: Record, operands: Sequence[Operand], track: int | None
    ) -> Any:
        guard = Guard(call, site)
        request = hold(context, chain(steps, guard.ended()), record, operands, track)
        if isinstance(request, Request):
            request.task.guard = guard
            LEFT_OVER[request.task] = f"{guard.text}, begun at {site} and never waited for"
        return request

    return held


class GuardedPlan(LowerCase):
    """A persistent plan whose buffers are watched from Start to Wait, and that is listed at the end where it was not freed."""

    def __init__(self, plan: Any, call: Call) -> None:
        self.plan, self._call = plan, call
        self._guard: Guard | None = None
        LEFT_OVER[self] = f"{call.text}, made at {call_site()} and never freed"

    def Start(self) -> None:
        """As the plan."""
        self.plan.Start()
        self._guard = Guard(self._call, call_site())

    def Wait(self, status: MPI.Status | None = None) -> bool:
        """As the plan; raises BufferError where its input was written to since Start."""
        done = bool(self.plan.Wait(status))
        self._check()
        return done

    def Test(self, status: MPI.Status | None = None) -> bool:
        """As the plan; raises BufferError where it is done and its input was written to since Start."""
        done = bool(self.plan.Test(status))
        if done:
            self._check()
        return done

    def Free(self) -> None:
        """As the plan."""
        self.plan.Free()
        LEFT_OVER.pop(self, None)

    def _check(self) -> None:
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.check()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plan, name)
