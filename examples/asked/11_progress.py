"""Non-blocking collectives that progress while the program computes (open-mpi #13074, #9759)."""
import time

import numpy as np
from mpi4py import MPI

import mpicoll

x = np.ones(1 << 20)
for name, options, limit in ("MPI", {}, 2), ("mpicoll", {"algorithm": "ring"}, 300):
    comm = mpicoll.Communicator(MPI.COMM_WORLD) if options else MPI.COMM_WORLD
    y = np.zeros_like(x)
    request = comm.Iallreduce(x, y, **options)
    start = time.monotonic()
    while y.sum() < comm.size * len(x) and time.monotonic() < start + limit:
        pass  # the program computes, and calls nothing
    complete = bool(y.sum() == comm.size * len(x))
    request.Wait()
    if comm.rank == 0:
        print(f"{name}: complete before Wait: {complete}")
