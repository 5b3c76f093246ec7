import mpicoll
from mpicoll.schedule import Input, Output, Recv, Reduce, Scratch, Send


def my_ring(rank, size):
    outgoing = Input(rank)
    for t in range(size - 1):  # each block gathers a contribution at every rank …
        block = rank - t - 1
        received = Scratch("received", block)
        yield Send(rank + 1, outgoing), Recv(rank - 1, received), Reduce(received, Input(block), Output(block))
        outgoing = Output(block)
    for t in range(size - 1):  # … and its sum is passed on to all
        yield Send(rank + 1, Output(rank + 1 - t)), Recv(rank - 1, Output(rank - t))


mpicoll.register("allreduce", "my_ring", my_ring)
