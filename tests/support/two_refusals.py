"""Each rank says what it is told where it makes a communicator."""

from mpi4py import MPI

import mpicoll

try:
    mpicoll.Communicator(MPI.COMM_WORLD)
except mpicoll.LaunchError as error:
    print(f"was told: {error}\n", end="", flush=True)
