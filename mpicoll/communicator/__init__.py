"""`Communicator`: an MPI.Intracomm whose collectives are served by schedules or by MPI itself.

`blocking` has the thirteen collectives and their documentation, `nonblocking` and `persistent`
their other forms. All of them call `base`. `watched` has the collectives that mpi4py serves by
itself. `communicator` makes communicators and describes them. `background` begins a collective
with a callback.
"""

from ..failure import all_agree, deaths, note_missing, outnumbers, refusal
from .background import BackgroundExchange, begin_task, run_task
from .communicator import Communicator, release, wrapped
from .handles import Plan, Request

__all__ = [
    "BackgroundExchange", "Communicator", "Plan", "Request", "all_agree", "begin_task", "deaths",
    "note_missing", "outnumbers", "refusal", "release", "run_task", "wrapped",
]
