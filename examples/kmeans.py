"""k-means on all ranks, switched from mpi4py to mpicoll by two lines.

    mpiexec -n 4 python examples/kmeans.py

Each rank has points of its own. A step sums, over all ranks, the points of each cluster and their number: one Allreduce, in
place. The two lines marked with <- are all that mpi4py's version does not have.
"""

import numpy as np
from mpi4py import MPI

import mpicoll  # <-

CLUSTERS, DIMENSIONS, POINTS, STEPS = 8, 16, 20_000, 15

comm = mpicoll.Communicator(MPI.COMM_WORLD)  # <-
source = np.random.default_rng(comm.rank)
true = np.random.default_rng(99).normal(scale=6, size=(CLUSTERS, DIMENSIONS))
points = true[source.integers(CLUSTERS, size=POINTS)] + source.normal(size=(POINTS, DIMENSIONS))

centres = points[:CLUSTERS].copy()
comm.Bcast(centres, root=0)

for step in range(STEPS):
    squares = (centres**2).sum(axis=1) - 2 * points @ centres.T  # of the distances, but for what is the same for all
    nearest = squares.argmin(axis=1)
    sums = np.zeros((CLUSTERS, DIMENSIONS + 1))
    np.add.at(sums[:, :-1], nearest, points)
    sums[:, -1] = np.bincount(nearest, minlength=CLUSTERS)

    comm.Allreduce(MPI.IN_PLACE, sums)

    filled = sums[:, -1] > 0
    centres[filled] = sums[filled, :-1] / sums[filled, -1:]

if comm.rank == 0:
    print(comm.explain("allreduce", sums))
same = comm.allgather(centres.tobytes())
assert len(set(same)) == 1, "all ranks have the same centres, to the bit"
if comm.rank == 0:
    print(f"{comm.size} ranks, {comm.size * POINTS} points: {int(filled.sum())} clusters")
