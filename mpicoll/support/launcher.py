"""What a launcher tells each process in its environment, before MPI is there: which of those it started this one is."""

import os

_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "PALS_RANKID", "SLURM_PROCID")


def is_first() -> bool:
    """Whether this process is rank 0 of those started together, or was started alone: what all would say alike, it says."""
    return next((os.environ[name] for name in _RANKS if name in os.environ), "0") == "0"
