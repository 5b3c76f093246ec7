"""One collective call: its arguments understood and checked, then served by a schedule or by MPI.

May import: errors, support, schedule, collectives, algorithms, simulate, buffers, execute, select.
"""

from . import arguments
from .explanation import Explanation, explain
from .repeated import repeated
from .request import Request
from .serving import begin, persist, run

__all__ = ["Explanation", "Request", "arguments", "begin", "explain", "persist", "repeated", "run"]
