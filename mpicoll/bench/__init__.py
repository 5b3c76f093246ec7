"""The benchmark harness: collectives with known results, candidates compared in one run, tuning tables made from it.

May import: errors, support, schedule, collectives, algorithms, simulate, buffers, execute,
measure, select.
"""

from . import tuning
from .compare import Candidate, compare
from .workload import METHODS, Workload, operation

__all__ = ["Candidate", "METHODS", "Workload", "compare", "operation", "tuning"]
