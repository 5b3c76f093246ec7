"""Run a script in which ranks are killed: `dying.py METHOD CALL RANK[,RANK…] SCRIPT [ARGUMENT…]`.

Each of these ranks sends itself SIGKILL when it calls that method of `Communicator` for the CALL-th time.
"""

import os
import runpy
import signal
import sys

from mpi4py import MPI

from mpicoll import Communicator

method, call, ranks, script, *arguments = sys.argv[1:]
if str(MPI.COMM_WORLD.rank) in ranks.split(","):
    real, left = getattr(Communicator, method), [int(call)]

    def dying(*given, **named):
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*given, **named)

    setattr(Communicator, method, dying)
sys.argv = [script, *arguments]
runpy.run_path(script, run_name="__main__")
