"""One collective call: arguments parsed and checked, then served by a schedule or by MPI."""

from . import arguments, neighbor_call
from .arguments import allowing
from .call import Call
from .comparing import compare_at_exit, compare_end, refused
from .explanation import Explanation, explain, in_place_form
from .guards import GuardedPlan, guarded
from .neighbor_call import NeighborCallName
from .operations import schedule_of
from .repeated import key_of
from .request import Request, Submit
from .results import compare_results, with_results_compared
from .serving import begin, begin_again, begin_at_once, persist, run, run_again, run_begun
from .typical import LEARNT, count_call

__all__ = [
    "Call", "Explanation", "GuardedPlan", "LEARNT", "NeighborCallName", "Request", "Submit",
    "allowing", "arguments", "begin", "begin_again", "begin_at_once", "compare_at_exit",
    "compare_end", "compare_results", "count_call", "explain", "guarded", "in_place_form", "key_of",
    "neighbor_call", "persist", "refused", "run", "run_again", "run_begun", "schedule_of",
    "with_results_compared",
]  # fmt: skip
