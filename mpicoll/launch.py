"""How the program was launched: the abort hook, and the check for N separate worlds of one rank.

May import: errors.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from types import TracebackType

from mpi4py import MPI

from .errors import LaunchError

#: what launchers tell each process about the number of processes they started
_COUNTS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "PALS_NRANKS", "PMIX_SIZE")
#: the two by which a launcher says that one process is all there is
_TRUSTED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def install_abort_hook() -> None:
    """Let an uncaught exception on one rank end the whole job, with its traceback.

    Without it the rank that failed waits in MPI_Finalize for the others, and they wait for its messages: a hang.
    ``python -m mpi4py script.py`` does the same from outside, without the half second in which launchers read the traceback.
    The exit status of the job is not zero.
    """

    def hook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        rank = MPI.COMM_WORLD.Get_rank() if not MPI.Is_finalized() else "?"
        text = "".join(traceback.format_exception(kind, value, trace))
        abort(f"mpicoll: rank {rank} failed, the job ends:\n{text}")

    sys.excepthook = hook


def abort(message: str, status: int = 1) -> None:
    """Print the message on standard error, and end the job on all ranks with this exit status."""
    print(message, file=sys.stderr, flush=True)
    if not MPI.Is_finalized():
        time.sleep(0.5)  # mpiexec and srun end a job without reading what is still in their pipes; prterun may hang then
        MPI.COMM_WORLD.Abort(status)


def check_launch() -> None:
    """Raise LaunchError where a launcher started several processes and MPI connected none of them.

    It happens when launcher and MPI library do not speak the same protocol (``srun`` without ``--mpi``, an mpiexec of
    the other MPI): each process then believes that it is alone, all write the same files, and the job "succeeds".
    """
    if MPI.COMM_WORLD.Get_size() > 1 or any(os.environ.get(name) == "1" for name in _TRUSTED):
        return
    for name in _COUNTS:
        count = os.environ.get(name, "")
        if count.isdigit() and int(count) > 1:
            library = MPI.Get_library_version().splitlines()[0].strip("\x00 ")
            raise LaunchError(
                f"{name}={count}: the launcher started {count} processes, but each is alone in a world "
                f"of one rank, because the launcher and the MPI library ({library}) do not understand each other. "
                "Use the mpiexec of this MPI library, or `srun --mpi=pmix` for Open MPI and `srun --mpi=pmi2` for "
                "MPICH; `srun --mpi=list` shows what this cluster offers. Where one rank is meant: mpiexec -n 1."
            )
