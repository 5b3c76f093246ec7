"""What launchers of MPI tell each process, in the words of torchrun: for scripts that ask before MPI starts."""

from __future__ import annotations

import os

#: torchrun's words; what MPICH and Intel MPI, Open MPI, and SLURM's steps say
_WORDS = {
    "RANK": ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"),
    "WORLD_SIZE": ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"),
    "LOCAL_RANK": ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"),
    "LOCAL_WORLD_SIZE": ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE"),
}


def tell_scripts() -> None:
    """Set RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE where a launcher of MPI started several processes.

    Nothing is changed where one of them is set, by torchrun, say, nor where rank or size are not known.
    """
    if any(word in os.environ for word in _WORDS):
        return
    said = {word: next((os.environ[name] for name in names if name in os.environ), "") for word, names in _WORDS.items()}
    if said["RANK"].isdigit() and said["WORLD_SIZE"].isdigit() and int(said["WORLD_SIZE"]) > 1:
        os.environ.update({word: value for word, value in said.items() if value})
