"""A compressed allreduce whose error is known (ColossalAI #5926, LoongForge PR #223)."""
import numpy as np
from mpi4py import MPI

import mpicoll

comm = mpicoll.Communicator(MPI.COMM_WORLD)
x = np.random.default_rng(comm.rank).normal(size=1 << 16).astype(np.float32)
y, exact = np.empty_like(x), np.empty(len(x))
comm.Allreduce(x.astype(float), exact)
half_scales = np.abs(x.reshape(-1, 256)).max(axis=1) / 127 / 2
before = comm.sent[1]
comm.Allreduce(x, y, compression="int8", algorithm="pairwise")
sent = comm.sent[1] - before
bound = comm.allreduce(half_scales) + np.abs(y.reshape(-1, 256)).max(axis=1) / 127 / 2
error = np.abs(y - exact).reshape(-1, 256).max(axis=1)
if comm.rank == 0:
    print(f"float32 would send {4 * len(x)} bytes, int8 sent {sent}")
    within = (error <= bound * 1.001).all()
    print(f"largest error {error.max():.4f}; within the stated bound: {within}")
