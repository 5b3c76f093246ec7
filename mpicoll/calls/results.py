"""Results that must be equal on all ranks, compared by a digest of 64 bits (MPICOLL_CHECK=digest).

A digest finds wrong data, not calls in a wrong order: memory or a network that flips bits, a user's
op that differs between ranks, a rank that writes to an array in use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain
from typing import Any

import numpy as np
from mpi4py import MPI

from ..buffers import Operand, frozen, host_copies, operand, ops
from ..errors import CollectiveMismatch
from ..execute import BYTES, Context, everyone_says, largest_of_all
from ..progress import until_done
from ..support.callsite import call_site
from ..support.checks import groups, ranks_text
from .comparing import agree
from .request import Submit

#: bits of the fraction of x86's long double, and the bytes that hold its value
_EXTENDED_BITS = 63
_EXTENDED_BYTES = 10
#: calls with the same result on all ranks, by the functions of `arguments`: the position of the
#: result in the arguments, and whether it has a block per rank
_EQUAL_RESULTS = {
    "bcast": (0, False),
    "allreduce": (1, False),
    "allgather": (1, True),
    "allgatherv": (1, True),
}


def compare_results(context: Context, name: str, args: Sequence[object]) -> None:
    """Compare the result of a blocking call, after its end.

    name: of its function in `arguments`; args: the arguments.
    """
    agree(context, _comparing_results(context, name, args))


def with_results_compared(
    submit: Submit, context: Context, name: str, args: Sequence[object]
) -> Submit:
    """A `Submit` that compares the result as a last step of the call."""
    comparison = _comparing_results(context, name, frozen(args))

    def submit_compared(context: Context, steps: Iterator[object], *details: Any) -> object:
        return submit(context, chain(steps, until_done(comparison)), *details)

    return submit_compared


def _comparing_results(
    context: Context, name: str, args: Sequence[object]
) -> Iterable[MPI.Request]:
    """Requests of the comparison, to be awaited after the end of the call; () where there is none.

    Called in program order, as it takes a call number.
    """
    if name not in _EQUAL_RESULTS:
        return ()
    context.results += 1
    if context.results % context.digest_every:
        return ()
    return _comparing(context, name, args, context.next_call(), call_site())


def _comparing(
    context: Context, name: str, args: Sequence[object], number: int, site: str
) -> Iterator[MPI.Request]:
    position, has_blocks = _EQUAL_RESULTS[name]
    blocks = len(context.channel.ranks) if has_blocks else 0
    result = operand(args[position], blocks, vector=name == "allgatherv")
    digest = digest_of(result)
    words = np.array([digest, ~digest], np.int64)
    yield from largest_of_all(context, words, number)
    if words[0] != ~words[1]:
        digits = f"{digest & 0xFFFFFFFFFFFFFFFF:016x}"
        own_line = f"{name.capitalize()} of {result.nbytes} bytes at {site}: {digits}"
        lines = yield from everyone_says(context, own_line, number)
        lines = [f"  {ranks_text(ranks)}: {line}" for line, ranks in groups(lines)]
        head = "the result of a call is not the same on all ranks, by a digest of its bytes:"
        raise context.in_disorder(CollectiveMismatch("\n".join([head, *lines])), tell=False)


# The digest.


def digest_of(buffer: Operand) -> int:
    """A hash of 64 bits of a buffer's contents; all NaNs are equal."""
    work = buffer.vector
    if work is None or buffer.device is not None:
        dtype = buffer.dtype or _element_type(buffer.datatype) or BYTES
        work = np.empty(buffer.nbytes, BYTES).view(dtype)
        host_copies(buffer)[0](work)
    if work.dtype.kind in "fc" and (missing := np.isnan(work)).any():
        work = np.where(missing, work.dtype.type(np.nan), work)
    data = _without_padding(np.ascontiguousarray(work)).data
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little", signed=True)


def _element_type(datatype: MPI.Datatype | None) -> np.dtype[Any] | None:
    """The type of the numbers in a derived type; None where there are several."""
    if datatype is None:
        return None
    if datatype.is_predefined:
        return ops.numpy_type(datatype.handle)
    inner, combiner, _ = datatype.decode()
    if combiner == "STRUCT":
        return None
    try:
        return _element_type(inner)
    finally:
        if not inner.is_predefined:
            inner.Free()


def _without_padding(work: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bytes of contiguous numbers, without the padding of long doubles: MPI skips it."""
    raw = work.view(BYTES)
    if work.dtype.char not in "gG" or np.finfo(work.dtype).nmant != _EXTENDED_BITS:
        return raw
    return np.ascontiguousarray(raw.reshape(-1, np.dtype("g").itemsize)[:, :_EXTENDED_BYTES])
