"""What can be known and done before MPI is there: which of the processes that a launcher started this one is."""

import faulthandler
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "PALS_RANKID", "SLURM_PROCID")


def is_first() -> bool:
    """Whether this process is rank 0 of those started together, or was started alone: what all would say alike, it says."""
    return _rank() == "0"


def _rank() -> str:
    return next((os.environ[name] for name in _RANKS if name in os.environ), "0")


@contextmanager
def starting_within(seconds: float) -> Iterator[None]:
    """End this process, with a message, where MPI's start takes longer: the others wait in it for one that died before.

    mpi4py keeps Python's lock while MPI starts: the limit is faulthandler's, which needs none, and the message another
    process's, to which faulthandler writes.
    """
    # quirk: init-waits-for-the-dead
    reading, writing = os.pipe()
    speaker = os.fork()
    if not speaker:
        os.close(writing)
        with open(reading, "rb") as told:
            if told.read():  # and not only its end, when the other closes it, or dies
                print(f"mpicoll: rank {_rank()} has waited {seconds:g} s in MPI_Init for the others, and ends: one of them "
                      "died before, or is slow. Start the job again, or let it wait longer (MPICOLL_TIMEOUT, in seconds)",
                      file=sys.stderr, flush=True)  # fmt: skip
        os._exit(0)
    os.close(reading)
    faulthandler.dump_traceback_later(seconds, exit=True, file=writing)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        os.close(writing)
        os.waitpid(speaker, 0)
