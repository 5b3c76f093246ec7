"""Memory that the ranks of a node share: arrays in it, and messages that bypass MPI."""

from .bell import BELL
from .heap import HEAP, shared_array
from .messages import Distant, Incoming, Landing, Outgoing, Polled, Writing
from .neighbours import Neighbours, meet
from .ring import BLOCKING, PLANS, RING_BYTES, TASKS, Links, track

__all__ = [
    "BELL", "BLOCKING", "HEAP", "PLANS", "RING_BYTES", "TASKS", "Distant", "Incoming", "Landing",
    "Links", "Neighbours",
    "Outgoing", "Polled", "Writing", "meet", "shared_array", "track",
]
