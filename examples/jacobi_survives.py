"""Heat in a plate by Jacobi's iteration, which goes on with fewer ranks when some die.

    mpirun --with-ft ulfm -n 4 python examples/jacobi_survives.py

Each rank has some rows; every KEPT steps all ranks get the whole plate. When ranks die, the others go back to the last whole
plate and deal its rows out anew. The result is, bit for bit, that of a run in which nobody died.
"""

import sys

import numpy as np
from mpi4py import MPI

from mpicoll import Communicator, RankFailure

ROWS, COLUMNS, KEPT = 96, 64, 100
STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 2000


def advanced(comm: Communicator, plate: np.ndarray, steps: int) -> np.ndarray:
    """The whole plate after so many steps, on all ranks."""
    edges = [rank * ROWS // comm.size for rank in range(comm.size + 1)]
    low, high = edges[comm.rank], edges[comm.rank + 1]
    above = comm.rank - 1 if low > 0 else MPI.PROC_NULL
    below = comm.rank + 1 if high < ROWS else MPI.PROC_NULL
    mine = np.zeros((high - low + 2, COLUMNS))  # with a row of each neighbour
    mine[1:-1] = plate[low:high]
    fixed = [row - low + 1 for row in (0, ROWS - 1) if low <= row < high]  # the edges keep their temperature
    for _ in range(steps):
        comm.Sendrecv(mine[1], above, recvbuf=mine[-1], source=below)
        comm.Sendrecv(mine[-2], below, recvbuf=mine[0], source=above)
        kept = mine[fixed]
        mine[1:-1, 1:-1] = (mine[:-2, 1:-1] + mine[2:, 1:-1] + mine[1:-1, :-2] + mine[1:-1, 2:]) / 4
        mine[fixed] = kept
    whole = np.empty_like(plate)
    comm.Allgatherv(mine[1:-1], [whole, [COLUMNS * (end - start) for start, end in zip(edges, edges[1:])]])
    return whole


comm, step, plate, failed = Communicator(MPI.COMM_WORLD), 0, np.zeros((ROWS, COLUMNS)), False
plate[0] = 100
while step < STEPS or failed:
    try:
        if failed:  # one rank may have got the last whole plate, and another not
            comm = comm.shrink()
            step, plate = max(comm.allgather((step, plate)), key=lambda found: found[0])
            failed = False
        if step < STEPS:
            plate, step = advanced(comm, plate, min(KEPT, STEPS - step)), min(step + KEPT, STEPS)
        comm.Barrier()  # nobody leaves before all have got here
    except RankFailure as failure:
        print(failure, file=sys.stderr)
        failed = True
if comm.rank == 0:
    print(f"{comm.size} ranks, {STEPS} steps, mean {float(plate.mean())!r}")
