"""Get the same sum on any number of ranks (ESCOMP/CMEPS #650, NVIDIA nccl #23)."""
import numpy as np
from mpi4py import MPI

import mpicoll

world = MPI.COMM_WORLD
contributions = np.random.default_rng(0).normal(size=(12, 1000)).astype(np.float32)
plain, reproducible, total = set(), set(), np.empty(1000, np.float32)
for size in 1, 2, 3, 4:
    part = world.Split(world.rank // size, world.rank)
    if part.size == size and world.rank < size:  # the first `size` ranks share the contributions
        mine = contributions[part.rank::size]
        part.Allreduce(mine.sum(axis=0), total)
        plain.add(total.tobytes())
        comm = mpicoll.Communicator(part, reproducible=True)
        comm.Allreduce(mpicoll.Contributions(mine), total)
        reproducible.add(total.tobytes())
if world.rank == 0:
    print(f"on 1, 2, 3, 4 ranks: MPI {len(plain)} sums, reproducible=True {len(reproducible)}")
