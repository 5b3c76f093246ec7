"""An error where ranks call different things, which says what (pytorch #78022, #174844)."""
import numpy as np
from mpi4py import MPI

import mpicoll

comm = mpicoll.Communicator(MPI.COMM_WORLD)
x, y = np.arange(4.0), np.empty(4)
op = MPI.MAX if comm.rank == 1 else MPI.SUM  # the mistake
MPI.COMM_WORLD.Allreduce(x, y, op=op)
results = comm.gather(y.tolist())
if comm.rank == 0:
    print("MPI, no error:", *results)
try:
    comm.Allreduce(x, y, op=op)
except mpicoll.CollectiveMismatch as error:
    if comm.rank == 0:
        print("mpicoll:", error)
