"""One collective call: its arguments understood and checked, then served by a schedule or by MPI.

May import: errors, support, schedule, collectives, algorithms, simulate, buffers, shared_memory, execute, select.
"""

from . import arguments
from .beginning import begin, begin_again
from .call import Call
from .comparing import refused
from .explanation import Explanation, explain, in_place_form
from .repeated import repeated
from .request import Request
from .serving import persist, run

__all__ = [
    "Call", "Explanation", "Request", "arguments", "begin", "begin_again", "explain", "in_place_form", "persist", "refused",
    "repeated", "run",
]
