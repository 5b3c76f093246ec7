"""`Communicator`: an MPI.Intracomm whose collectives are served by schedules or by MPI, whichever is chosen.

The thirteen collectives lie in three forms, `blocking_…`, `nonblocking_…` and `persistent_…`: those that move data, and
reductions. What all of them go through is in `base`; those that mpi4py serves by itself are `watched`; how communicators are
made, and what else they tell, is in `communicator`; `tasks` begins calls for those who want to be called at the end.

May import: errors, support, collectives, algorithms, buffers, shared_memory, execute, select, calls, bench, launch,
watch.
"""

from ..execute import all_agree, deaths, note_missing, outnumbers, refusal
from .communicator import Communicator, wrapped
from .handles import Plan, Request
from .tasks import Exchange, begin_task, run_task

__all__ = [
    "Communicator", "Exchange", "Plan", "Request", "all_agree", "begin_task", "deaths", "note_missing", "outnumbers", "refusal",
    "run_task", "wrapped",
]
