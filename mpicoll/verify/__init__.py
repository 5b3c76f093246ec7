"""The verifier: proves without MPI and without data what a schedule does.

May import: errors, schedule, collectives, algorithms.
"""

from .flow import flows_in_pieces
from .prover import Cost, RankCost, check
from .registering import cases, check_cases, register

__all__ = ["Cost", "RankCost", "cases", "check", "check_cases", "flows_in_pieces", "register"]
