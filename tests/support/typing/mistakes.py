"""Eleven typical mistakes: type checkers must find these lines, and no other."""

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll import verify
from mpicoll.algorithms import allreduce

comm = mpicoll.Communicator(MPI.COMM_WORLD)
x, y = np.ones(8), np.zeros(8)

comm.Allreduce(x, y, algoritm="ring")  # 1: a misspelt keyword
comm.Allreduce(x, y, algorithm="rign")  # 2: a misspelt name
comm.Allreduce(x, y, op=np.add)  # 3: no MPI operation
comm.Bcast(x, root="0")  # 4: a root that is no number
comm.Allgather(x)  # 5: one buffer too few
comm.Allreduce(x, y).Wait()  # 6: a blocking call returns nothing to wait for
comm.Ibcast(x, algorithm="bruck")  # 7: a name of another collective
comm.Allreduce_init(x, y, segment_bytes="64K").Start()  # 8: text instead of bytes
mpicoll.list_algorithms("alreduce")  # 9: no such collective
verify.check("allreduce", allreduce.ring, size="4")  # 10: text instead of a number
mpicoll.Comunicator(MPI.COMM_WORLD)  # 11: a misspelt class
