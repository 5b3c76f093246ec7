"""Detect a collective that hangs, and say why (open-mpi PR #3700, mpich PR #7120)."""
import numpy as np
from mpi4py import MPI

import mpicoll

comm, world = mpicoll.Communicator(MPI.COMM_WORLD, timeout=1), MPI.COMM_WORLD
x, y, own = np.ones(100_000), np.empty((2, 100_000)), None
if comm.rank == 1:
    world.recv(source=0)  # the mistake: the others are in Iallreduce and Allreduce
else:
    own = world.Iallreduce(x, y[0])
    try:
        comm.Allreduce(x, y[1], algorithm="ring")
    except mpicoll.CollectiveTimeout as error:
        if comm.rank == 0:
            print("MPI's Iallreduce is complete:", own.Test())
            print("mpicoll:", *[line for line in str(error).splitlines() if "ank 1" in line][-2:])
            world.send(None, 1)
(own or world.Iallreduce(x, y[0])).Wait()
