"""The variables of torchrun, from those of MPI launchers.

They are for scripts that read them before MPI starts.
"""

from __future__ import annotations

import os

#: variables of torchrun, and those of MPICH and Intel MPI, of Open MPI, and of SLURM's steps
_VARIABLES = {
    "RANK": ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"),
    "WORLD_SIZE": ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"),
    "LOCAL_RANK": ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"),
    "LOCAL_WORLD_SIZE": ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE"),
}


def tell_scripts() -> None:
    """Set RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE in a job of an MPI launcher.

    Nothing changes in a job of a single process, where any of them is set, by torchrun for example,
    or where the launcher does not tell rank and size.
    """
    if any(name in os.environ for name in _VARIABLES):
        return
    values = {}
    for name, sources in _VARIABLES.items():
        values[name] = next((os.environ[source] for source in sources if source in os.environ), "")
    rank = values["RANK"]
    size = values["WORLD_SIZE"]
    if rank.isdigit() and size.isdigit() and int(size) > 1:
        os.environ.update({name: value for name, value in values.items() if value})
