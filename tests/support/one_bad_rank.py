"""A job in which one rank alone has a bad setting from its start: run under mpiexec by test_mpi.py."""

import os

rank = os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"]
os.environ["MPICOLL_ALGORITHM"] = "allreduce:rung" if rank == "1" else ""

from mpi4py import MPI  # noqa: E402

import mpicoll  # noqa: E402

try:
    mpicoll.Communicator(MPI.COMM_WORLD)
except mpicoll.ArgumentError as error:
    print(f"rank {rank} was told: {error}", flush=True)
