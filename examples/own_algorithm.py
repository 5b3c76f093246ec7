"""An allreduce of one's own: a star, proved, drawn by `mpicoll show --file`, and used in a call.

    mpiexec -n 4 python examples/own_algorithm.py
    mpicoll verify --file examples/own_algorithm.py
    mpicoll show allreduce star --file examples/own_algorithm.py --size 4
    mpiexec -n 4 mpicoll bench --file examples/own_algorithm.py --algorithms star,ring --sizes 64K

It is what one would write first: all send to rank 0, which adds and answers. `bench` shows what that costs.
"""

from collections.abc import Iterator
from typing import Any

import mpicoll
from mpicoll.schedule import Input, Output, Recv, Reduce, Scratch, Send


def star(rank: int, size: int) -> Iterator[Any]:
    """One rank's rounds; a vector of `size` blocks, which always travel together."""
    if rank:
        yield Send(0, Input(0, size))
        yield Recv(0, Output(0, size))
        return
    total = Input(0, size)
    for peer in range(1, size):
        theirs = Scratch("theirs", 0, size)
        yield Recv(peer, theirs), Reduce(total, theirs, Output(0, size))
        total = Output(0, size)
    for peer in range(1, size):
        yield Send(peer, Output(0, size))


STAR = mpicoll.register("allreduce", "star", star)  # proved here, for each number of ranks up to 8 and some more

if __name__ == "__main__":
    import numpy as np
    from mpi4py import MPI

    comm = mpicoll.Communicator(MPI.COMM_WORLD)
    x = np.arange(1000.0) + comm.rank
    y = np.empty_like(x)
    comm.Allreduce(x, y, algorithm=STAR)
    assert np.array_equal(y, comm.size * np.arange(1000.0) + sum(range(comm.size)))
    if comm.rank == 0:
        cost = mpicoll.verify.check("allreduce", star, comm.size)
        print(f"star: right on {comm.size} ranks, {cost.rounds} rounds")
