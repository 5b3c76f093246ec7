"""What a call would do, for a person: `Communicator.explain`."""

from typing import NamedTuple

from . import select
from .algorithms import NATIVE
from .schedule import MAX_MESSAGE_BYTES, Recv, Send, pieces

#: the least bytes per vector byte that some rank must send, as a function of the number of ranks
_LEAST = {
    "allreduce": lambda p: 2 * (p - 1) / p, "reduce_scatter": lambda p: (p - 1) / p, "allgather": lambda p: (p - 1) / p,
    "bcast": lambda p: 1 if p > 1 else 0, "reduce": lambda p: 1 if p > 1 else 0,
    "scatter": lambda p: (p - 1) / p, "gather": lambda p: 1 / p if p > 1 else 0,
}  # fmt: skip


class Explanation(NamedTuple):
    """What one rank does in a call. nbytes, rounds, messages and bytes_sent are None where this rank cannot know them.

    lower_bound: bytes that the busiest sender cannot do without. predicted_seconds: None until the machine was measured.
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
    reason: str

    def __str__(self):
        lines = [f"{self.collective} of {self.nbytes} bytes on {self.size} ranks: {self.algorithm} ({self.reason})"]
        if self.rounds is not None:
            lines.append(f"this rank takes part in {self.rounds} rounds and sends {self.messages} messages, "
                         f"{self.bytes_sent} bytes")  # fmt: skip
        if self.lower_bound is not None:
            lines.append(f"lower bound: {self.lower_bound:.0f} bytes sent by the busiest rank")
        return "\n".join(lines)


def explain(call, algorithm, segment_bytes):
    """The `Explanation` of a `Call`; nothing is sent."""
    name, reason = select.choose(call.request, algorithm)
    rounds = messages = nbytes = None
    if name != NATIVE and call.counts_known:
        steps, edges = call.steps(name, segment_bytes)
        limit = MAX_MESSAGE_BYTES // call.dtype.itemsize
        sends = [list(pieces(op.part, edges, limit)) for step in steps for op in step if type(op) is Send]
        rounds = sum(any(type(op) in (Send, Recv) for op in step) for step in steps)
        messages = sum(map(len, sends))
        nbytes = call.dtype.itemsize * sum(end - start for cut in sends for start, end in cut)
    least = None if call.nbytes is None else call.nbytes * _LEAST[call.collective.name](call.size)
    return Explanation(call.collective.name, name, call.size, call.nbytes, rounds, messages, nbytes, least, None, reason)
