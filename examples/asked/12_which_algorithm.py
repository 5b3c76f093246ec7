"""Which algorithm serves a call, and why (open-mpi #10261, mpich PR #7547)."""
import numpy as np
from mpi4py import MPI

import mpicoll

comm = mpicoll.Communicator(MPI.COMM_WORLD)
x, y = np.ones(1 << 17), np.empty(1 << 17)
if comm.rank == 0:
    asked = [name for name in dir(MPI.Comm) if "algorithm" in name.lower()]
    print("MPI: methods that tell the algorithm:", asked)
    print("mpicoll:", comm.explain("allreduce", x, y, algorithm="circulant"))
