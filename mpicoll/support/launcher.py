"""The launcher's view of this process before MPI starts, and a time limit for MPI's start."""

import faulthandler
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "PALS_RANKID", "SLURM_PROCID")


def is_first() -> bool:
    """Whether this process is rank 0 of its job, or alone: it prints what all would print alike."""
    return _rank() == "0"


def _rank() -> str:
    return next((os.environ[name] for name in _RANKS if name in os.environ), "0")


@contextmanager
def starting_within(seconds: float) -> Iterator[None]:
    """End this process, with a message, where MPI's start takes longer.

    All other ranks wait in MPI_Init for a rank that dies before. mpi4py keeps Python's lock while
    MPI starts. So the limit is that of faulthandler, which needs no lock, and a child process, to
    which faulthandler writes, prints the message.
    """
    # quirk: init-waits-for-the-dead
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(writing)
        with open(reading, "rb") as pipe:
            if pipe.read():  # empty where the parent closes its end, or dies
                print(
                    f"mpicoll: rank {_rank()} has waited {seconds:g} s in MPI_Init for the others, "
                    "and ends: one of them died before, or is slow. Start the job again, or let it "
                    "wait longer (MPICOLL_TIMEOUT, in seconds)",
                    file=sys.stderr,
                    flush=True,
                )
        os._exit(0)
    os.close(reading)
    faulthandler.dump_traceback_later(seconds, exit=True, file=writing)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        os.close(writing)
        os.waitpid(child, 0)
