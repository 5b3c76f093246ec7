"""Communication behind computation: a call that does not block, and a plan for one that is made again and again.

    mpiexec -n 4 python examples/overlap.py

Power iteration for the largest eigenvalue of a matrix of which each rank has some rows. The norm of one step is summed while
the next product is computed from the vector that is not scaled yet, and divided by it later.
"""

import numpy as np
from mpi4py import MPI

import mpicoll

SIZE, STEPS = 720, 60  # 720: so many rows can be dealt out to 1 to 6, 8, 9, 10 and 12 ranks evenly

comm = mpicoll.Communicator(MPI.COMM_WORLD)
rows = SIZE // comm.size
matrix = np.random.default_rng(0).normal(size=(SIZE, SIZE))
matrix = matrix + matrix.T + np.diag(np.linspace(0, 200, SIZE))
matrix[0, 0] += 400  # well apart from the others: few steps suffice
mine = matrix[comm.rank * rows : (comm.rank + 1) * rows]

vector, part = np.ones(comm.size * rows), np.empty(rows)
gather = comm.Allgather_init(part, vector)  # bound once, started in each step
square, total = np.empty(1), np.empty(1)

part[:] = mine @ vector
for step in range(STEPS):
    gather.Start()
    square[0] = part @ part
    norm = comm.Iallreduce(square, total)  # both are on their way
    gather.Wait()
    product = mine @ vector  # while the norm travels
    norm.Wait()
    part[:] = product / np.sqrt(total[0])
gather.Free()

eigenvalue = float(np.sqrt(comm.allreduce(part @ part)))
if comm.rank == 0:
    exact = float(abs(np.linalg.eigvalsh(matrix)).max())
    print(f"{comm.size} ranks: {eigenvalue:.6f}, exactly {exact:.6f}")
