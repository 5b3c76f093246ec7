"""Memory that the ranks of a node share: arrays in it, and messages that bypass MPI."""

from .bell import ASKED, BELL, GIVEN_UP
from .heap import HEAP, SHARED, shared_array
from .messages import LARGE, Distant, Incoming, Landing, Outgoing, Packing, Polled, Writing
from .neighbours import NOBODY, Neighbour, Neighbours, meet
from .ring import BLOCKING, COPIED, PLANS, TASKS, WORD, Links, Pipe, track

__all__ = [
    "ASKED", "BELL", "BLOCKING", "COPIED", "GIVEN_UP", "HEAP", "LARGE", "NOBODY", "PLANS", "SHARED",
    "TASKS", "WORD", "Distant", "Incoming", "Landing", "Links", "Neighbour", "Neighbours",
    "Outgoing", "Packing", "Pipe", "Polled", "Writing", "meet", "shared_array", "track",
]
