"""Scans in log rounds, and Alltoallw (open-mpi PR #4985, #5718; mpi4py-fft #14, #37)."""
import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.algorithms import find
from mpicoll.verify import check

comm = mpicoll.Communicator(MPI.COMM_WORLD)
rounds = [check("scan", find("scan", name).generator, 64).rounds for name in ("linear", "binomial")]
part, own, ours = np.random.default_rng(comm.rank).normal(size=(3, 100, 100 * comm.size))
places = [[0, 100 * rank] for rank in range(comm.size)]
types = [MPI.DOUBLE.Create_subarray(part.shape, [100, 100], at).Commit() for at in places]
sides = [[array, [1] * comm.size, [0] * comm.size, types] for array in (part, own, ours)]
MPI.COMM_WORLD.Alltoallw(sides[0], sides[1])
comm.Alltoallw(sides[0], sides[2], algorithm="direct")
if comm.rank == 0:
    print("rounds of a scan on 64 ranks:", f"linear {rounds[0]}, binomial {rounds[1]}")
    print("Alltoallw, one message per rank, equals MPI's:", np.array_equal(own, ours))
