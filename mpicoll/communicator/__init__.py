"""`Communicator`: an MPI.Intracomm whose collectives are served by schedules or by MPI, whichever is chosen.

The eleven collectives lie in three forms: `blocking_moves` and `blocking_reductions`, `nonblocking`, `persistent`. What all
of them go through is in `base`; those that mpi4py serves by itself are `watched`; how communicators are made, and what else
they tell, is in `communicator`.

May import: errors, support, collectives, algorithms, shared_memory, execute, select, calls, launch, watch.
"""

from .communicator import Communicator
from .handles import Plan, Request

__all__ = ["Communicator", "Plan", "Request"]
