"""Run a module on all ranks, and tell a job script that all of them have come to its end: as mpicoll's commands by --done.

    mpiexec -n 2 python -m tests.support.done MODULE ARGUMENT …       writes the file that DONE names
"""

import os
import runpy
import sys

from mpi4py import MPI


def main(module, *arguments):
    status = _status(module, arguments)
    everyone = MPI.COMM_WORLD.allgather(status)
    if any(everyone):
        sys.exit(max(everyone))
    if MPI.COMM_WORLD.Get_rank() == 0:
        with open(os.environ["DONE"], "w", encoding="utf-8") as file:
            print(module, *arguments, file=file)


def _status(module, arguments):
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


if __name__ == "__main__":
    main(*sys.argv[1:])
