"""Faulty programs that `bugs` starts: `mpiexec -n 3 python -m benchmarks.run.faulty root 20000 met`.

One function each. The classes are those of the MPI Bugs Initiative and of MPI-BugBench, for
collectives; the programs are written anew. Rank 1 makes the mistake, in a line that ends with
`# wrong`; where it makes no call, that line is where it is instead. `met`: calls of the same kinds
were made before, so that no rank compares them for the first time.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

import mpicoll

#: {class: {name: program}}; a program takes the communicator and two vectors
PROGRAMS: dict[str, dict[str, Callable[..., Any]]] = {}
RANK, SIZE, WRONG = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size(), 1
HERE = RANK == WRONG
#: seconds that a rank spends elsewhere
LONG = 600


def error(kind: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A program of this class of errors."""

    def enter(program: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS.setdefault(kind, {})[program.__name__] = program
        return program

    return enter


# Order: the same calls, but not in the same order, or not the same calls.


@error("order")
def order(comm, x, y):
    if HERE:
        comm.Bcast(x)  # wrong
        comm.Allreduce(x, y)
    else:
        comm.Allreduce(x, y)
        comm.Bcast(x)


@error("order")
def order_of_requests(comm, x, y):
    if HERE:
        requests = [comm.Ibcast(x)]  # wrong
        requests.append(comm.Iallreduce(x.copy(), y))
    else:
        requests = [comm.Iallreduce(x.copy(), y)]
        requests.append(comm.Ibcast(x))
    for request in requests:
        request.Wait()


@error("order")
def order_of_plans(comm, x, y):
    if HERE:
        comm.Bcast_init(x)  # wrong
        comm.Allreduce_init(x, y)
    else:
        comm.Allreduce_init(x, y)
        comm.Bcast_init(x)


@error("order")
def reduce_for_allreduce(comm, x, y):
    if HERE:
        comm.Reduce(x, y)  # wrong
    else:
        comm.Allreduce(x, y)
    comm.Barrier()


@error("order")
def gather_for_allgather(comm, x, y):
    whole = np.zeros(SIZE * x.size)
    if HERE:
        comm.Gather(x, whole)  # wrong
    else:
        comm.Allgather(x, whole)
    comm.Barrier()


@error("order")
def barrier_for_bcast(comm, x, y):
    if HERE:
        comm.Barrier()  # wrong
        comm.Bcast(x)
    else:
        comm.Bcast(x)
        comm.Barrier()


@error("order")
def objects(comm, x, y):
    if HERE:
        comm.allgather(x)  # wrong
    else:
        comm.bcast(x)
    comm.Allreduce(x, y)


@error("order")
def without_blocking(comm, x, y):
    if HERE:
        comm.Iallreduce(x, y).Wait()  # wrong
    else:
        comm.Allreduce(x, y)
    comm.Barrier()


@error("order")
def persistent(comm, x, y):
    if HERE:
        plan = comm.Allreduce_init(x, y)  # wrong
        plan.Start()
        plan.Wait()
    else:
        comm.Allreduce(x, y)
    comm.Barrier()


@error("order")
def scatter_for_gather(comm, x, y):
    whole = np.zeros(SIZE * x.size)
    if HERE:
        comm.Scatter(whole, x)  # wrong
    else:
        comm.Gather(x, whole)
    comm.Barrier()


# Missing: a rank leaves a call out, or makes one too many.


@error("missing call")
def missing(comm, x, y):
    if HERE:
        time.sleep(LONG)  # wrong
    comm.Allreduce(x, y)


@error("missing call")
def missing_at_root(comm, x, y):
    if HERE:
        time.sleep(LONG)  # wrong
    comm.Bcast(x, root=WRONG)
    comm.Allreduce(x, y)


@error("missing call")
def left_out(comm, x, y):
    if not HERE:
        comm.Bcast(x, root=WRONG)
    comm.Allreduce(x, y)  # wrong
    comm.Barrier()


@error("missing call")
def one_too_many(comm, x, y):
    if HERE:
        comm.Bcast(x, root=WRONG)  # wrong
    comm.Allreduce(x, y)
    comm.Barrier()


@error("missing call")
def one_step_less(comm, x, y):
    for _ in range(9 if HERE else 10):
        comm.Allreduce(x, y)
    comm.Bcast(x)  # wrong
    comm.Barrier()


@error("missing call")
def missing_in_a_part(comm, x, y):
    part = comm.Split(int(RANK == 0))
    if not HERE:
        part.Allreduce(x, y)
    comm.Bcast(x)  # wrong
    comm.Barrier()  # wrong


@error("missing call")
def ended(comm, x, y):
    if HERE:
        sys.exit()
    comm.Allreduce(x, y)


@error("missing call")
def plan_not_started(comm, x, y):
    plan = comm.Allreduce_init(x, y)
    if HERE:
        time.sleep(LONG)  # wrong
    plan.Start()
    plan.Wait()


# Communicators: calls on different ones.


@error("communicator")
def other_communicator(comm, x, y):
    copy = comm.Dup()
    if HERE:
        copy.Allreduce(x, y)  # wrong
    else:
        comm.Allreduce(x, y)


@error("communicator")
def crossed(comm, x, y):
    copy = comm.Dup()
    if HERE:
        copy.Allreduce(x, y)  # wrong
        comm.Allreduce(x, y)
    else:
        comm.Allreduce(x, y)
        copy.Allreduce(x, y)


@error("communicator")
def part_for_whole(comm, x, y):
    part = comm.Split(int(RANK == 2))
    if HERE:
        part.Allreduce(x, y)  # wrong
    else:
        comm.Allreduce(x, y)


# Arguments that must be equal on all ranks.


@error("root")
def root(comm, x, y):
    comm.Bcast(x, root=1 if HERE else 0)  # wrong
    comm.Barrier()


@error("root")
def root_of_reduce(comm, x, y):
    comm.Reduce(x, y, root=1 if HERE else 0)  # wrong
    comm.Barrier()


@error("root")
def root_of_request(comm, x, y):
    comm.Ibcast(x, root=1 if HERE else 0).Wait()  # wrong
    comm.Barrier()


@error("root")
def root_of_plan(comm, x, y):
    comm.Bcast_init(x, root=1 if HERE else 0)  # wrong
    comm.Barrier()


@error("op")
def op(comm, x, y):
    comm.Allreduce(x, y, MPI.MAX if HERE else MPI.SUM)  # wrong
    comm.Barrier()


@error("op")
def op_of_request(comm, x, y):
    comm.Iallreduce(x, y, MPI.MAX if HERE else MPI.SUM).Wait()  # wrong
    comm.Barrier()


@error("op")
def op_of_reduce(comm, x, y):
    comm.Reduce(x, y, MPI.PROD if HERE else MPI.SUM)  # wrong
    comm.Barrier()


@error("type")
def kind(comm, x, y):
    i, j = x.view(np.int64), y.view(np.int64)
    comm.Allreduce(*((i, j) if HERE else (x, y)))  # wrong
    comm.Barrier()


@error("type")
def kind_moved(comm, x, y):
    comm.Bcast(x.view(np.int64) if HERE else x)  # wrong
    comm.Barrier()


@error("type")
def smaller_kind(comm, x, y):
    i, j = x.view(np.float32), y.view(np.float32)
    comm.Allreduce(*((i, j) if HERE else (x, y)))  # wrong
    comm.Barrier()


@error("count")
def count(comm, x, y):
    n = x.size // 2 if HERE else x.size
    comm.Allreduce(x[:n], y[:n])  # wrong
    comm.Barrier()


@error("count")
def count_of_bcast(comm, x, y):
    n = x.size // 2 if HERE else x.size
    comm.Bcast(x[:n])  # wrong
    comm.Barrier()


@error("count")
def count_of_request(comm, x, y):
    n = x.size // 2 if HERE else x.size
    comm.Iallreduce(x[:n], y[:n]).Wait()  # wrong
    comm.Barrier()


@error("count")
def counts_of_allgatherv(comm, x, y):
    n = x.size
    counts = [n, n, n - 1] if HERE else [n, n, n]
    comm.Allgatherv(x, [np.zeros(n * SIZE), counts])  # wrong
    comm.Barrier()


@error("count")
def block_of_gatherv(comm, x, y):
    n = x.size
    whole = [np.zeros(n * SIZE), [n] * SIZE] if RANK == 0 else None
    comm.Gatherv(x[: n - 1] if HERE else x, whole)  # wrong
    comm.Barrier()


@error("count")
def block_of_scatterv(comm, x, y):
    n = x.size
    whole = [np.zeros(n * SIZE), [n] * SIZE] if RANK == 0 else None
    comm.Scatterv(whole, x[: n - 1] if HERE else x)  # wrong
    comm.Barrier()


@error("count")
def blocks_of_alltoallv(comm, x, y):
    n = x.size
    sent = [np.zeros(n * SIZE), [n, n, n - 1] if HERE else [n] * SIZE]
    comm.Alltoallv(sent, [np.zeros(n * SIZE), [n] * SIZE])  # wrong
    comm.Barrier()


# Arguments that no call may have.


@error("invalid argument")
def root_out_of_range(comm, x, y):
    comm.Bcast(x, root=SIZE if HERE else 0)  # wrong


@error("invalid argument")
def negative_root(comm, x, y):
    comm.Reduce(x, y, root=-1 if HERE else 0)  # wrong


@error("invalid argument")
def null_op(comm, x, y):
    comm.Allreduce(x, y, MPI.OP_NULL if HERE else MPI.SUM)  # wrong


@error("invalid argument")
def no_op(comm, x, y):
    comm.Allreduce(x, y, "sum" if HERE else MPI.SUM)  # wrong


@error("invalid argument")
def freed(comm, x, y):
    copy = comm.Dup()
    if HERE:
        copy.Free()
    copy.Allreduce(x, y)  # wrong


@error("invalid argument")
def null_communicator(comm, x, y):
    one = mpicoll.Communicator(MPI.COMM_NULL) if HERE else comm
    one.Allreduce(x, y)  # wrong


@error("invalid argument")
def short_result(comm, x, y):
    comm.Allreduce(x, y[:-1] if HERE else y)  # wrong


@error("invalid argument")
def read_only(comm, x, y):
    if HERE:
        y.flags.writeable = False
    comm.Allreduce(x, y)  # wrong


@error("invalid argument")
def two_types(comm, x, y):
    comm.Allreduce(x, y.view(np.int64) if HERE else y)  # wrong


@error("invalid argument")
def beyond_the_buffer(comm, x, y):
    comm.Bcast([x, x.size + (1 if HERE else 0), MPI.DOUBLE])  # wrong


@error("invalid argument")
def negative_count(comm, x, y):
    comm.Bcast([x, -1 if HERE else x.size, MPI.DOUBLE])  # wrong


@error("invalid argument")
def null_type(comm, x, y):
    comm.Bcast([x, x.size, MPI.DATATYPE_NULL if HERE else MPI.DOUBLE])  # wrong


@error("invalid argument")
def overlapping(comm, x, y):
    z = np.zeros(2 * x.size)
    comm.Allreduce(z[:-1] if HERE else x[:-1], z[1:] if HERE else y[:-1], MPI.MAX) if x.size > 1 else None  # wrong
    comm.Barrier()


@error("invalid argument")
def in_place_beside_the_root(comm, x, y):
    comm.Reduce(MPI.IN_PLACE if HERE else x, y)  # wrong


@error("invalid argument")
def no_buffer(comm, x, y):
    comm.Allreduce(None if HERE else x, None if HERE else y)  # wrong


@error("invalid argument")
def counts_for_fewer_ranks(comm, x, y):
    n = x.size
    comm.Allgatherv(x, [np.zeros(n * SIZE), [n] * (SIZE - 1 if HERE else SIZE)])  # wrong


# Requests, plans and communicators: how long they live.


@error("life of requests")
def never_awaited(comm, x, y):
    request = comm.Iallreduce(x, y)  # wrong
    if not HERE:
        request.Wait()


@error("life of requests")
def never_freed(comm, x, y):
    plan = comm.Allreduce_init(x, y)  # wrong
    if not HERE:
        plan.Free()


@error("life of requests")
def communicator_never_freed(comm, x, y):
    copy = comm.Dup()  # wrong
    copy.Allreduce(x, y)
    if not HERE:
        copy.Free()


@error("life of requests")
def started_twice(comm, x, y):
    plan = comm.Allreduce_init(x, y)
    plan.Start()
    if HERE:
        plan.Start()  # wrong
    plan.Wait()


@error("life of requests")
def freed_in_flight(comm, x, y):
    plan = comm.Allreduce_init(x, y)
    if HERE:
        plan.Start()
        plan.Free()  # wrong
    comm.Barrier()


@error("life of requests")
def started_after_free(comm, x, y):
    plan = comm.Allreduce_init(x, y)
    if HERE:
        plan.Free()
    plan.Start()  # wrong
    plan.Wait()


@error("life of requests")
def freed_twice(comm, x, y):
    copy = comm.Dup()
    copy.Free()
    if HERE:
        copy.Free()  # wrong


# Data: written while they are under way, or not what the other ranks have.


@error("data race")
def sent_is_written(comm, x, y):
    request = comm.Iallreduce(x, y)  # wrong
    if HERE:
        x[:] = 7
    request.Wait()


@error("data race")
def received_is_written(comm, x, y):
    request = comm.Ibcast(x)  # wrong
    if HERE:
        x[-1] = -5
        time.sleep(0.2)
        x[-1] = -6
    request.Wait()


@error("data race")
def written_while_a_plan_runs(comm, x, y):
    plan = comm.Allreduce_init(x, y)
    plan.Start()  # wrong
    if HERE:
        x[:] = 7
    plan.Wait()


@error("wrong result")
def flipped(comm, x, y):
    function = MPI.Op.Create(lambda a, b, datatype: _flip(a, b), commute=True)
    comm.Allreduce(x, y, function)  # wrong
    comm.Barrier()


def _flip(a, b):
    """As the memory of one host might."""
    ours, result = np.frombuffer(a), np.frombuffer(b)
    result += ours
    if HERE:
        result[-1] += 1


# Collectives and messages wait for each other.


@error("messages")
def received_before(comm, x, y):
    if HERE:
        comm.Recv(y, source=0)  # wrong
    comm.Allreduce(x, y)
    if RANK == 0:
        comm.Send(x, dest=WRONG)


@error("messages")
def sent_before(comm, x, y):
    if HERE:
        comm.Ssend(x, dest=0)  # wrong
    comm.Allreduce(x, y)
    if RANK == 0:
        comm.Recv(y, source=WRONG)


@error("messages")
def of_nobody(comm, x, y):
    if HERE:
        comm.Recv(y, source=2, tag=5)  # wrong
    comm.Bcast(x, root=WRONG)


def meet(comm: mpicoll.Communicator, x: Any, y: Any) -> None:
    """Calls of all kinds, as they ought to be."""
    whole = np.zeros(SIZE * x.size)
    for a, b in ((x, y), (x[: x.size // 2], y[: x.size // 2]), (x.view("i8"), y.view("i8")), (x.view("f4"), y.view("f4"))):
        for one in (MPI.SUM, MPI.MAX):
            comm.Allreduce(a, b, one)
            comm.Iallreduce(a, b, one).Wait()
        for root_ in (0, 1):
            comm.Bcast(a, root=root_)
            comm.Ibcast(a, root=root_).Wait()
    for root_ in (0, 1):
        for one in (MPI.SUM, MPI.PROD):
            comm.Reduce(x, y, one, root_)
    comm.Gather(x, whole)
    comm.Scatter(whole, x)
    comm.Allgather(x, whole)
    comm.Allgatherv(x, [whole, [x.size] * SIZE])
    comm.Allreduce_init(x, y).Free()
    for root_ in (0, 1):
        comm.Bcast_init(x, root=root_).Free()


def legal(comm: mpicoll.Communicator, calls: int) -> int:
    """Calls that are as they ought to be; the same on all ranks, but not their memory or the spelling. Returns how many."""
    draw, vectors = np.random.default_rng(1), {n: np.ones(n) for n in (1, 2, 100, 3000)}
    plan_x, plan_y = np.ones(5), np.zeros(5)
    plan, made = comm.Allreduce_init(plan_x, plan_y), 0
    while made < calls:
        for what, size, where in draw.integers(0, (12, 4, SIZE), (1000, 3)):
            x = vectors[(1, 2, 100, 3000)[size]]
            if where == RANK:
                x = x.copy()
            given, y = [x, MPI.DOUBLE] if where == RANK else x, np.empty_like(x)
            if what < 3:
                comm.Allreduce(given, y, (MPI.SUM, MPI.MAX, MPI.MIN)[what])
            elif what == 3:
                comm.Bcast(given, root=int(where))
            elif what == 4:
                comm.Iallreduce(x, y).Wait()
            elif what == 5:
                comm.Allgather(x, np.empty(SIZE * x.size))
            elif what == 6:
                comm.Reduce(x, y, root=int(where))
            elif what == 7:
                comm.Barrier()
            elif what == 8:
                comm.Allgatherv(x[:RANK], [np.empty(SIZE), [min(rank, x.size) for rank in range(SIZE)]])
            elif what == 9:
                plan.Start()
                plan.Wait()
            elif what == 10:
                comm.Gatherv(x[:RANK], [np.empty(SIZE), [min(rank, x.size) for rank in range(SIZE)]] if RANK == 0 else None)
            else:
                comm.Alltoall(np.ones(SIZE * x.size), np.empty(SIZE * x.size))
        made += 1000
    plan.Free()
    return made


def main() -> None:
    name, size, *met = sys.argv[1:]
    mpicoll.install_abort_hook()
    comm = mpicoll.Communicator(MPI.COMM_WORLD)
    if name == "legal":
        print(f"legal calls: {legal(comm, int(size))}", flush=True)
        return
    x, y = np.ones(int(size)), np.zeros(int(size))
    if met:
        meet(comm, x, y)
    program = {name: program for programs in PROGRAMS.values() for name, program in programs.items()}[name]
    program(comm, x, y)
    comm.Barrier()
    print("came to its end", flush=True)


if __name__ == "__main__":
    main()
