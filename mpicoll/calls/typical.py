"""The size of calls of which each rank knows its own bytes: ranks agree on it at times.

A choice needs what is equal on all ranks, and to agree before each call would take longer than a
small one. So ranks agree after the first call, the second, the fourth, …: what they choose by is
the size of the last call then, of the rank that has most, as a power of two.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from mpi4py import MPI

from ..execute import Context, largest_of_all
from ..schedule import power_of_two
from .call import Call
from .comparing import agree

#: calls whose sizes are learnt, by the functions of `arguments`
LEARNT = ("alltoallw",)


def count_call(context: Context, name: str) -> None:
    """A blocking call has ended: agree on the size of such calls, where that is due."""
    calls = context.calls_of[name] = context.calls_of.get(name, 0) + 1
    if calls & (calls - 1) == 0:
        agree(context, _agreeing(context, name))


def note_size(call: Call) -> None:
    """Remember the bytes of this rank in a call whose sizes are learnt."""
    name = call.method.lower()
    if name in LEARNT:
        call.context.own_bytes[name] = sum(call.counts or ())


def agree_now(call: Call) -> None:
    """Agree on the size of a call that all ranks are about to prepare, if sizes are learnt."""
    note_size(call)
    name = call.method.lower()
    if name in LEARNT:
        agree(call.context, _agreeing(call.context, name))


def _agreeing(context: Context, name: str) -> Iterator[MPI.Request]:
    words = np.array([context.own_bytes.get(name, 0)], np.int64)
    yield from largest_of_all(context, words, context.next_call())
    agreed = power_of_two(int(words[0])) if words[0] else 0
    if agreed != context.typical_bytes.get(name):
        context.typical_bytes[name] = agreed
        context.forget_calls()  # they were chosen by another size
