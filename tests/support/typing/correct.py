"""A user's program that type checkers must accept."""

from collections.abc import Iterator

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll import verify
from mpicoll.schedule import Input, Output, Recv, Reduce, Round, Scratch, Send


def exchange(rank: int, size: int) -> Iterator[Round]:
    received = Scratch("received", 0)
    yield Send(1 - rank, Input(0)), Recv(1 - rank, received), Reduce(Input(0), received, Output(0))


comm = mpicoll.Communicator(MPI.COMM_WORLD)
size: int = comm.Get_size()
x, y = np.ones(8, np.float32), np.zeros(8, np.float32)
everything = np.zeros((size, 8), np.float32)

comm.Allreduce(MPI.IN_PLACE, x)
comm.Allreduce(x, y, op=MPI.MAX, algorithm="ring", segment_bytes=1 << 20)
comm.Bcast([x, MPI.FLOAT], root=0, algorithm=None)
comm.Gatherv(x, [everything, [8] * size, [8 * r for r in range(size)], MPI.FLOAT] if comm.Get_rank() == 0 else None)
comm.Reduce_scatter(everything, y, recvcounts=[8] * size)

requests: list[mpicoll.Request] = [comm.Iallreduce(x, y, algorithm="circulant"), comm.Ibcast(x), comm.Ibarrier()]
MPI.Request.Waitall(requests)

plan: mpicoll.Plan = comm.Allgather_init(x, everything, algorithm="bruck")
plan.Start()
done: bool = plan.Wait()
plan.Free()

half: mpicoll.Communicator = comm.Split(comm.Get_rank() % 2).Dup()
messages, nbytes = half.sent
explanation: mpicoll.Explanation = comm.explain("allreduce", x, algorithm="ring")
print(explanation.rounds, explanation.reason, messages + nbytes)

mine = mpicoll.register("allreduce", "mine", exchange, blocks=lambda size: 1, max_size=2)
comm.Allreduce(x, y, algorithm=mine)
for name in mpicoll.list_algorithms("allreduce"):
    comm.Allreduce(x, y, algorithm=name)
comm.Allreduce(x, y, algorithm=mpicoll.AlgorithmName("from a file"))

cost: verify.Cost = verify.check("allreduce", exchange, 2, blocks=1)
print(cost.rounds, cost.ranks[0].bytes_sent)
try:
    mpicoll.install_abort_hook()
except (mpicoll.ArgumentError, mpicoll.BufferError, mpicoll.ScheduleError) as error:
    print(error)
