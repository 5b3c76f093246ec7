"""What is left at the end of a program on ranks: python left_over.py; rank 1 leaves things over, the others do not."""

import numpy as np
from mpi4py import MPI

import mpicoll

comm = mpicoll.Communicator(MPI.COMM_WORLD)
x, y, last = np.ones(1000), np.zeros(1000), comm.Get_rank() == 1
copy = comm.Dup()
request, plan = comm.Iallreduce(x, y), comm.Allreduce_init(x, y)
awaited, freed = comm.Iallreduce(x, y.copy()), comm.Bcast_init(x)
tested = comm.Ibcast(x)
MPI.Request.Waitall([awaited, tested])
freed.Free()
if not last:
    request.Wait()
    plan.Free()
    copy.Free()
print("done", flush=True)
