"""`Communicator.explain`: what a call would do, for a person."""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from .. import nccl, select
from ..algorithms import LIBRARIES, NCCL, find
from ..buffers import operand
from ..collectives import BARRIER
from ..codes import Codes, codes_of
from ..errors import ArgumentError
from ..schedule import MAX_MESSAGE_BYTES, MESSAGES, SENDS, Part, is_coded, offsets, pieces
from ..select import probe
from ..simulate import lower_bound
from ..support import settings
from ..support.units import format_bytes, many
from .call import Call
from .comparing import is_known_to_run_in_c
from .operations import schedule_of


class Explanation(NamedTuple):
    """What one rank does in a call.

    nbytes, rounds, messages and bytes_sent are None where this rank cannot know them. Bytes that
    are sent are those of codes where messages have codes.
    """

    collective: str
    algorithm: str
    size: int
    nbytes: int | None
    rounds: int | None
    messages: int | None
    bytes_sent: int | None
    #: bytes that the busiest sender sends at least
    lower_bound: float | None
    #: None where nothing was measured
    predicted_seconds: float | None
    #: upper bound of the pieces that messages are cut into; None: not cut
    segment_bytes: int | None
    reason: str
    #: the codes in the messages, by name; "": elements as they are
    compression: str = ""
    #: how often a value is quantised at most: as it is contributed, and as a part of the sum
    quantisations: int = 0
    #: of a compressed call: the relative error (RMS) of Gaussian data
    expected_error: float = 0.0

    def __str__(self) -> str:
        is_compressed = bool(self.compression)
        choice = select.Choice(self.algorithm, self.segment_bytes, self.reason, is_compressed)
        who = "pairs of ranks know" if self.collective == "alltoall" else "the root knows"
        size = f" of sizes that only {who}"
        if self.collective == BARRIER.name:
            size = ""
        elif self.nbytes is not None:
            size = f" of {format_bytes(self.nbytes)} bytes"
        lines = [f"{self.collective}{size} on {many(self.size, 'rank')}: {choice}"]
        if self.rounds is not None:
            rounds = many(self.rounds, "round")
            messages = many(self.messages or 0, "message")
            nbytes = many(self.bytes_sent or 0, "byte")
            lines.append(f"this rank takes part in {rounds} and sends {messages}, {nbytes}")
        if self.lower_bound is not None:
            lines.append(f"lower bound: {self.lower_bound:,.0f} bytes sent by the busiest rank")
        if self.predicted_seconds is not None:
            lines.append(f"predicted: {self.predicted_seconds * 1e3:.3g} ms")
        if self.compression:
            lines += _contract(codes_of(self.compression), self.quantisations)
        return "\n".join(lines)


def explain(call: Call, algorithm: str | None, segment_bytes: int | None) -> Explanation:
    """The `Explanation` of a `Call`; nothing is sent."""
    choose = partial(
        select.choose, explicit=algorithm, segment_bytes=segment_bytes,
        probe=partial(probe.known, call.comm),
    )  # fmt: skip
    call.runs_in_c = is_known_to_run_in_c(call, algorithm, segment_bytes)
    choice = choose(call.query)
    name, segment_bytes, reason, compressed = choice
    if call.would_run_in_c and not call.runs_in_c:
        later = choose(call.query._replace(engine=settings.C))
        if later.name != name:
            reason += f"; repeated, if it runs in C on all ranks: {later}"
    collective = call.collective.name
    if name == NCCL and (obstacle := nccl.lacks(call)):
        raise ArgumentError(f"nccl cannot serve this {collective}: {obstacle}")
    rounds = messages = bytes_sent = None
    if name not in LIBRARIES:
        refusal = call.context.topology.refusal
        if refusal:
            reason += f"; messages inside a node go through MPI: {refusal}"
        if call.counts_known(name):
            served = call.in_codes() if compressed else call
            rounds, messages, bytes_sent = _traffic(served, name, segment_bytes)
    least = (call.nbytes or 0) * _least_sent(collective, call.size) if call.has_size else None
    predicted = probe.predicted(call.comm, collective, name, call.nbytes, segment_bytes)
    codes = None
    often = 0
    if compressed:
        codes = codes_of(call.compression)
        predicted = None  # the cost model knows no codes
        often = _quantisations(call, name)
        if least is not None:
            least *= codes.nbytes / codes.group / call.dtype.itemsize
    return Explanation(
        collective=collective,
        algorithm=name,
        size=call.size,
        nbytes=call.explained_bytes,
        rounds=rounds,
        messages=messages,
        bytes_sent=bytes_sent,
        lower_bound=least,
        predicted_seconds=predicted,
        segment_bytes=segment_bytes,
        reason=reason,
        compression=codes.name if codes else "",
        quantisations=often,
        expected_error=codes.expected_error(often) if codes else 0.0,
    )


def _quantisations(call: Call, name: str) -> int:
    from ..verify import quantisations  # not needed by calls

    algorithm = find(call.collective.name, name)
    return quantisations(algorithm, call.size, call.context.topology.nodes)


def _contract(codes: Codes, quantisations: int) -> Iterator[str]:
    """What a compressed call promises of its result."""
    if not quantisations:
        yield f"{codes.name}: no message is compressed, and the result is exact"
        return
    once = "each value once, as it is contributed"
    often = f"{once}, and the result once" if quantisations > 1 else once
    if codes.largest:
        group = f"{codes.group} values share a scale, their largest magnitude / {codes.largest}"
        yield f"{codes.name} quantises {often}; {group}"
        step = "scale"
    else:
        yield f"{codes.name} rounds {often}"
        step = "distance of two codes"
    bound = f"half the sum of the contributions' {step}s"
    if quantisations > 1:
        bound += f" + half the result's {step}"
    yield f"an element is off by at most {bound} + rounding of the sum"
    error = codes.expected_error(quantisations)
    yield f"relative error (RMS) to expect of Gaussian data: {error:.2g}"


def _traffic(call: Call, name: str, segment_bytes: int | None) -> tuple[int, int, int]:
    """Rounds that this rank takes part in, and the messages and bytes that it sends."""
    schedule = schedule_of(call, name, segment_bytes)
    most_bytes = min(schedule.segment_bytes or MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES)
    itemsize = call.dtype.itemsize
    elements = codes = _Items(schedule.edges, itemsize, most_bytes // itemsize)
    own = {
        place: _Items(edges, itemsize, most_bytes // itemsize)
        for place, edges in (call.own_edges or {}).items()
    }
    if call.codes is not None:
        groups = [call.codes.groups(high - low) for low, high in pairwise(schedule.edges)]
        limit = call.codes.per_message(most_bytes)
        codes = _Items(offsets(groups), call.codes.nbytes, limit)
        elements = _Items(schedule.edges, itemsize, limit * call.codes.group)
    rounds = 0
    messages = 0
    nbytes = 0
    for operations in schedule.rounds:
        rounds += any(type(operation) in MESSAGES for operation in operations)
        for operation in operations:
            if type(operation) in SENDS:
                items = codes if is_coded(operation.part) else elements
                items = own.get(operation.part.place, items)
                for length in items.messages(operation.part):
                    messages += 1
                    nbytes += length
    return rounds, messages, nbytes


class _Items:
    """What messages are made of: elements, or the codes of groups of elements."""

    def __init__(self, edges: list[int], nbytes: int, limit: int) -> None:
        self._edges = edges
        self._nbytes = nbytes
        self._limit = max(1, limit)

    def messages(self, part: Part) -> Iterator[int]:
        """The bytes of each message of a part."""
        for start, end in pieces(part, self._edges, self._limit):
            yield self._nbytes * (end - start)


def _least_sent(collective: str, size: int) -> float:
    """Bytes that the busiest sender sends at least, per byte of the vector."""
    if collective == "gather":  # the root only receives
        return min(1, size - 1) / size
    return lower_bound(collective, size).sent


def in_place_form(name: str, buffer: Any, at_root: bool, size: int) -> tuple[Any, Any]:
    """The send and receive buffer of a call with this input, for `explain` with a single buffer."""
    if name == "reduce":
        return (MPI.IN_PLACE, buffer) if at_root else (buffer, None)
    if name in ("allreduce", "reduce_scatter", "alltoall", "scan", "exscan"):
        return MPI.IN_PLACE, buffer
    if name in ("allgather", "gather"):
        send = operand(buffer)
        # in place of the buffer: nothing reads the data
        block = np.empty(send.nbytes, np.uint8).view(send.dtype or np.uint8)
        whole = np.empty(block.size * size, block.dtype)
        return block, (whole if name == "allgather" or at_root else None)
    if name == "scatter":
        return (buffer, MPI.IN_PLACE) if at_root else (None, buffer[: len(buffer) // size])
    return buffer, None
