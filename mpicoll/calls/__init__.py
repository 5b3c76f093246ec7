"""One collective call: its arguments understood and checked, then served by a schedule or by MPI.

May import: errors, support, schedule, collectives, algorithms, simulate, buffers, execute, select.
"""

from .explanation import Explanation, explain
from .repeated import repeated
from .request import begin

__all__ = ["Explanation", "begin", "explain", "repeated"]
