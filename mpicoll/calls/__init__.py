"""One collective call: arguments parsed and checked, then served by a schedule or by MPI."""

from . import arguments
from .beginning import Hold, begin, begin_again
from .call import Call
from .comparing import compare_at_exit, compare_end, refused
from .explanation import Explanation, explain, in_place_form
from .repeated import repeated
from .request import Request
from .results import GuardedPlan, comparing_results, guarded, wait_for_results, with_results_compared
from .serving import persist, run
from .tasks import as_task, at_once

__all__ = [
    "Call", "Explanation", "GuardedPlan", "Hold", "Request", "arguments", "as_task", "at_once", "begin", "begin_again",
    "compare_at_exit", "compare_end", "comparing_results", "explain", "guarded", "in_place_form", "persist",
    "refused", "repeated", "run", "wait_for_results", "with_results_compared",
]
