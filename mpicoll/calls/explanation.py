"""What a call would do, for a person: `Communicator.explain`."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from .. import select
from ..algorithms import LIBRARIES, NCCL
from ..buffers import operand
from ..errors import ArgumentError
from ..execute import nccl
from ..schedule import MAX_MESSAGE_BYTES, MESSAGES, SENDS, pieces
from ..select import probe
from ..simulate import lower_bound
from ..support.units import format_bytes, many
from .binding import schedule_of
from .call import Call


class Explanation(NamedTuple):
    """What one rank does in a call. nbytes, rounds, messages and bytes_sent are None where this rank cannot know them.

    lower_bound: bytes that the busiest sender cannot do without. predicted_seconds: None where nothing was measured.
    segment_bytes: messages are cut into pieces of at most so many bytes; None: not cut.
    """

    collective: str
    algorithm: str
    size: int
    nbytes: int | None
    rounds: int | None
    messages: int | None
    bytes_sent: int | None
    lower_bound: float | None
    predicted_seconds: float | None
    segment_bytes: int | None
    reason: str

    def __str__(self) -> str:
        choice = select.Choice(self.algorithm, self.segment_bytes, self.reason)
        size = "sizes that only the root knows" if self.nbytes is None else f"{format_bytes(self.nbytes)} bytes"
        lines = [f"{self.collective} of {size} on {many(self.size, 'rank')}: {choice}"]
        if self.rounds is not None:
            sent = f"sends {many(self.messages or 0, 'message')}, {many(self.bytes_sent or 0, 'byte')}"
            lines.append(f"this rank takes part in {many(self.rounds, 'round')} and {sent}")
        if self.lower_bound is not None:
            lines.append(f"lower bound: {self.lower_bound:,.0f} bytes sent by the busiest rank")
        if self.predicted_seconds is not None:
            lines.append(f"predicted: {self.predicted_seconds * 1e3:.3g} ms")
        return "\n".join(lines)


def explain(call: Call, algorithm: str | None, segment_bytes: int | None) -> Explanation:
    """The `Explanation` of a `Call`; nothing is sent."""
    measured = partial(probe.known, call.comm)
    name, segment_bytes, reason = select.choose(call.query, algorithm, segment_bytes, measured)
    if name == NCCL and (reason_against := nccl.lacks(call)):
        raise ArgumentError(f"nccl cannot serve this {call.collective.name}: {reason_against}")
    rounds = messages = nbytes = None
    refusal = call.context.topology.refusal
    if name not in LIBRARIES and refusal:
        reason += f"; messages inside a node go through MPI: {refusal}"
    if name not in LIBRARIES and call.counts_known:
        rounds, messages, nbytes = _traffic(call, name, segment_bytes)
    seconds = probe.predicted(call.comm, call.collective.name, name, call.nbytes, segment_bytes)
    least = None if call.nbytes is None else call.nbytes * _least(call.collective.name, call.size)
    return Explanation(
        call.collective.name, name, call.size, call.nbytes, rounds, messages, nbytes, least, seconds, segment_bytes, reason
    )


def _traffic(call: Call, name: str, segment_bytes: int | None) -> tuple[int, int, int]:
    """Rounds that this rank takes part in, and the messages and bytes that it sends."""
    schedule, itemsize = schedule_of(call, name, segment_bytes), call.dtype.itemsize
    limit = max(1, min(schedule.segment_bytes or MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES) // itemsize)
    operations = [operation for step in schedule.rounds for operation in step]
    sends = [list(pieces(op.part, schedule.edges, limit)) for op in operations if type(op) in SENDS]
    rounds = sum(any(type(op) in MESSAGES for op in step) for step in schedule.rounds)
    return rounds, sum(map(len, sends)), itemsize * sum(end - start for cut in sends for start, end in cut)


def _least(collective: str, size: int) -> float:
    """The least bytes per byte of the vector that the busiest sender sends; in a gather the root only receives."""
    return min(1, size - 1) / size if collective == "gather" else lower_bound(collective, size).sent


def in_place_form(name: str, buffer: Any, at_root: bool, size: int) -> tuple[Any, Any]:
    """The two buffers of a call whose input is `buffer`, where a caller who only asks gave no second one."""
    if name == "reduce":
        return (MPI.IN_PLACE, buffer) if at_root else (buffer, None)
    if name in ("allreduce", "reduce_scatter", "alltoall"):
        return MPI.IN_PLACE, buffer
    if name in ("allgather", "gather"):
        one = operand(buffer)
        block = np.empty(one.nbytes, np.uint8).view(one.dtype or np.uint8)  # stands for it: the data are never looked at
        whole = np.empty(block.size * size, block.dtype)
        return block, whole if name == "allgather" or at_root else None
    if name == "scatter":
        return (buffer, MPI.IN_PLACE) if at_root else (None, buffer[: len(buffer) // size])
    return buffer, None
