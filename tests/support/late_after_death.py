"""Rank 2 dies, rank 0 restores its array, and only then rank 1 makes the call: mpirun --with-ft ulfm -n 3 late_after_death.py.

Rank 1 wrote its part of the old sum into the restored array.
"""

import numpy as np
from mpi4py import MPI

import mpicoll
from tests.support.deaths import die

WORLD = MPI.COMM_WORLD
RANK = WORLD.Get_rank()
comm = mpicoll.Communicator(WORLD.Dup())
x = comm.empty(300_000)
for _ in range(3):
    x[:] = 1
    comm.Allreduce(MPI.IN_PLACE, x, algorithm="direct")
x[:] = 100
die(2)
if RANK == 1:
    WORLD.recv(source=0)
try:
    comm.Allreduce(MPI.IN_PLACE, x, algorithm="direct")
    raise AssertionError("rank 2 made no such call")
except mpicoll.RankFailure:
    x[:] = 100
if RANK == 0:
    WORLD.send(None, 1)
comm = comm.shrink()
assert (x == 100).all(), x
for algorithm in ("direct", "ring"):
    x[:] = 100
    comm.Allreduce(MPI.IN_PLACE, x, algorithm=algorithm)
    assert (x == 200).all(), (algorithm, np.unique(x))
print("done", flush=True)
