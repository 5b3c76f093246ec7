"""A rank on another processor: calls of each kind against results that are known."""

import platform

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll import engine

comm = mpicoll.Communicator(MPI.COMM_WORLD)
rank, size = comm.Get_rank(), comm.Get_size()
wrong = 0
for algorithm in ("ring", "recursive_doubling", "halving_doubling"):
    for count in (1, 7, 1001, 100003):
        for dtype in ("float32", "float64", "int32"):
            sent = np.arange(count).astype(dtype) + rank
            expected = size * np.arange(count).astype(dtype) + size * (size - 1) // 2
            received = np.empty_like(sent)
            for _ in range(3):
                comm.Allreduce(sent, received, algorithm=algorithm)
                wrong += not np.array_equal(received, expected)
            comm.Iallreduce(sent, received, algorithm=algorithm).Wait()
            wrong += not np.array_equal(received, expected)
print(f"{platform.machine()}: rank {rank} of {size}, {engine.status().reason}, wrong: {wrong}\n", end="", flush=True)
