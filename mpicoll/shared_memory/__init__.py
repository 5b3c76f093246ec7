"""Memory that the ranks of a node share: arrays in it, and messages that bypass MPI."""

from .bell import BELL
from .heap import HEAP, shared_array
from .messages import Distant, Incoming, Landing, Outgoing, Polled, Writing
from .neighbours import NOBODY, Neighbours, meet
from .ring import BLOCKING, PLANS, TASKS, WORD, Links, track

__all__ = [
    "BELL", "BLOCKING", "HEAP", "NOBODY", "PLANS", "TASKS", "WORD", "Distant", "Incoming",
    "Landing", "Links", "Neighbours", "Outgoing", "Polled", "Writing", "meet", "shared_array",
    "track",
]
