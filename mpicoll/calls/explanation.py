"""What a call would do, for a person: `Communicator.explain`."""

from functools import partial
from typing import NamedTuple

from .. import select
from ..algorithms import NATIVE
from ..schedule import MAX_MESSAGE_BYTES, Recv, Send, pieces
from ..select import probe
from ..simulate import lower_bound


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

    def __str__(self):
        choice = select.Choice(self.algorithm, self.segment_bytes, self.reason)
        lines = [f"{self.collective} of {self.nbytes} bytes on {self.size} ranks: {choice}"]
        if self.rounds is not None:
            lines.append(f"this rank takes part in {self.rounds} rounds and sends {self.messages} messages, "
                         f"{self.bytes_sent} bytes")  # fmt: skip
        if self.lower_bound is not None:
            lines.append(f"lower bound: {self.lower_bound:.0f} bytes sent by the busiest rank")
        if self.predicted_seconds is not None:
            lines.append(f"predicted: {self.predicted_seconds * 1e3:.3f} ms")
        return "\n".join(lines)


def explain(call, algorithm, segment_bytes):
    """The `Explanation` of a `Call`; nothing is sent."""
    name, segment_bytes, reason = select.choose(call.request, algorithm, segment_bytes, partial(probe.known, call.comm, None))
    rounds = messages = nbytes = None
    if name != NATIVE and call.counts_known:
        steps, edges = call.steps(name, segment_bytes)
        pieces_of = call.pieces(name, segment_bytes) or MAX_MESSAGE_BYTES
        limit = max(1, min(pieces_of, MAX_MESSAGE_BYTES) // call.dtype.itemsize)
        sends = [list(pieces(op.part, edges, limit)) for step in steps for op in step if type(op) is Send]
        rounds = sum(any(type(op) in (Send, Recv) for op in step) for step in steps)
        messages = sum(map(len, sends))
        nbytes = call.dtype.itemsize * sum(end - start for cut in sends for start, end in cut)
    seconds = probe.predicted(call.comm, call.collective.name, name, call.nbytes, segment_bytes)
    call.release()
    least = None if call.nbytes is None else call.nbytes * _least(call.collective.name, call.size)
    return Explanation(call.collective.name, name, call.size, call.nbytes, rounds, messages, nbytes, least, seconds,
                       segment_bytes, reason)  # fmt: skip


def _least(collective, size):
    """The least bytes per byte of the vector that the busiest sender sends; in a gather the root only receives."""
    return min(1, size - 1) / size if collective == "gather" else lower_bound(collective, size).sent
