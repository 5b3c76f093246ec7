"""Add in one order, so that bits do not depend on the message size (ROCm rocm-systems #11661)."""
import numpy as np
from mpi4py import MPI

import mpicoll

numbers = np.random.default_rng(MPI.COMM_WORLD.rank).normal(size=8).astype(np.float32)
deterministic = mpicoll.Communicator(MPI.COMM_WORLD, deterministic=True)
for name, comm in ("MPI_Allreduce", MPI.COMM_WORLD), ("deterministic=True", deterministic):
    sums = set()
    for copies in 1, 64, 512, 4096, 32768:  # the same eight numbers again and again
        result = np.empty(8 * copies, np.float32)
        comm.Allreduce(np.tile(numbers, copies), result)
        sums |= {row.tobytes() for row in result.reshape(copies, 8)}
    if comm.rank == 0:
        print(f"{name}: {len(sums)} different sums of the same numbers")
