"""Faulty programs that `bugs` starts, on 3 ranks.

    mpiexec -n 3 python -m benchmarks.run.faulty root 20000 met

A program is a call or a function. The classes are those of the MPI Bugs Initiative and of
MPI-BugBench, for collectives; the programs are written anew. Rank 1 makes the mistake, in a line
that ends with `# wrong`; where it makes no call, that line is where it is instead. `met`: calls of
the same kinds were made before, so that no rank compares them for the first time.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

import mpicoll

RANK = MPI.COMM_WORLD.Get_rank()
SIZE = MPI.COMM_WORLD.Get_size()
#: the rank that makes the mistake
WRONG = 1
HERE = RANK == WRONG
#: seconds that a rank spends elsewhere
LONG = 600
MAX_OR_SUM = MPI.MAX if HERE else MPI.SUM
NULL = MPI.DATATYPE_NULL

#: {class: {name: a call with wrong arguments on rank WRONG}}; its lines are where it is wrong
CALLS = {
    "root": {
        "root": lambda comm, x, y: comm.Bcast(x, root=int(HERE)),
        "root_of_reduce": lambda comm, x, y: comm.Reduce(x, y, root=int(HERE)),
        "root_of_request": lambda comm, x, y: comm.Ibcast(x, root=int(HERE)).Wait(),
        "root_of_plan": lambda comm, x, y: comm.Bcast_init(x, root=int(HERE)),
    },
    "op": {
        "op": lambda comm, x, y: comm.Allreduce(x, y, op=MAX_OR_SUM),
        "op_of_request": lambda comm, x, y: comm.Iallreduce(x, y, op=MAX_OR_SUM).Wait(),
        "op_of_reduce": lambda comm, x, y: comm.Reduce(x, y, MPI.PROD if HERE else MPI.SUM),
    },
    "type": {
        "kind": lambda comm, x, y: comm.Allreduce(viewed(x, "i8"), viewed(y, "i8")),
        "kind_moved": lambda comm, x, y: comm.Bcast(viewed(x, "i8")),
        "smaller_kind": lambda comm, x, y: comm.Allreduce(viewed(x, "f4"), viewed(y, "f4")),
    },
    "count": {
        "count": lambda comm, x, y: comm.Allreduce(half(x), half(y)),
        "count_of_bcast": lambda comm, x, y: comm.Bcast(half(x)),
        "count_of_request": lambda comm, x, y: comm.Iallreduce(half(x), half(y)).Wait(),
        "counts_of_allgatherv": lambda comm, x, y: comm.Allgatherv(x, blocks(x, last=-int(HERE))),
        "block_of_gatherv": lambda comm, x, y: comm.Gatherv(shorter(x), at_root(blocks(x))),
        "block_of_scatterv": lambda comm, x, y: comm.Scatterv(at_root(blocks(x)), shorter(x)),
        "blocks_of_alltoallv": lambda comm, x, y: comm.Alltoallv(
            blocks(x, last=-int(HERE)), blocks(x)
        ),
    },
    "invalid argument": {
        "root_out_of_range": lambda comm, x, y: comm.Bcast(x, root=SIZE if HERE else 0),
        "negative_root": lambda comm, x, y: comm.Reduce(x, y, root=-int(HERE)),
        "null_op": lambda comm, x, y: comm.Allreduce(x, y, MPI.OP_NULL if HERE else MPI.SUM),
        "no_op": lambda comm, x, y: comm.Allreduce(x, y, "sum" if HERE else MPI.SUM),
        "null_communicator": lambda comm, x, y: null_or(comm).Allreduce(x, y),
        "short_result": lambda comm, x, y: comm.Allreduce(x, shorter(y)),
        "two_types": lambda comm, x, y: comm.Allreduce(x, viewed(y, "i8")),
        "beyond_the_buffer": lambda comm, x, y: comm.Bcast([x, x.size + int(HERE), MPI.DOUBLE]),
        "negative_count": lambda comm, x, y: comm.Bcast([x, -1 if HERE else x.size, MPI.DOUBLE]),
        "null_type": lambda comm, x, y: comm.Bcast([x, x.size, NULL if HERE else MPI.DOUBLE]),
        "in_place_beside_the_root": lambda comm, x, y: comm.Reduce(MPI.IN_PLACE if HERE else x, y),
        "no_buffer": lambda comm, x, y: comm.Allreduce(None if HERE else x, None if HERE else y),
        "counts_for_fewer_ranks": lambda comm, x, y: comm.Allgatherv(x, blocks(x, fewer=int(HERE))),
    },
}


def viewed(array, dtype):
    """The array, as another type on the wrong rank."""
    return array.view(dtype) if HERE else array


def half(array):
    """The array, half of it on the wrong rank."""
    return array[: array.size // 2] if HERE else array


def shorter(array):
    """The array, without its last element on the wrong rank."""
    return array[:-1] if HERE else array


def blocks(array, last=0, fewer=0):
    """A vector with a block of this size for each rank. last: added to the last count."""
    counts = [array.size] * (SIZE - fewer)
    counts[-1] += last
    return [np.zeros(array.size * SIZE), counts]


def at_root(buffer):
    return buffer if RANK == 0 else None


def null_or(comm):
    """The communicator, a null one on the wrong rank."""
    return mpicoll.Communicator(MPI.COMM_NULL) if HERE else comm


#: {name: function of the communicator and two vectors}; lines that are wrong end with `# wrong`
PROGRAMS: dict[str, Callable[..., Any]] = {}


def error(kind: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A program of this class of errors, which `bugs` reads in the text."""

    def enter(program: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[program.__name__] = program
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


@error("order")
def gather_for_allgather(comm, x, y):
    whole = np.zeros(SIZE * x.size)
    if HERE:
        comm.Gather(x, whole)  # wrong
    else:
        comm.Allgather(x, whole)


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


@error("order")
def persistent(comm, x, y):
    if HERE:
        plan = comm.Allreduce_init(x, y)  # wrong
        plan.Start()
        plan.Wait()
    else:
        comm.Allreduce(x, y)


@error("order")
def scatter_for_gather(comm, x, y):
    whole = np.zeros(SIZE * x.size)
    if HERE:
        comm.Scatter(whole, x)  # wrong
    else:
        comm.Gather(x, whole)


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


@error("missing call")
def one_too_many(comm, x, y):
    if HERE:
        comm.Bcast(x, root=WRONG)  # wrong
    comm.Allreduce(x, y)


@error("missing call")
def one_step_less(comm, x, y):
    for _ in range(9 if HERE else 10):
        comm.Allreduce(x, y)
    comm.Bcast(x)  # wrong


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


# Arguments that no call may have.


@error("invalid argument")
def freed(comm, x, y):
    copy = comm.Dup()
    if HERE:
        copy.Free()
    copy.Allreduce(x, y)  # wrong


@error("invalid argument")
def read_only(comm, x, y):
    if HERE:
        y.flags.writeable = False
    comm.Allreduce(x, y)  # wrong


@error("invalid argument")
def overlapping(comm, x, y):
    z = np.zeros(2 * x.size)
    send = z[:-1] if HERE else x[:-1]
    receive = z[1:] if HERE else y[:-1]
    comm.Allreduce(send, receive, MPI.MAX)  # wrong


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


def _flip(a, b):
    """As the memory of one host might."""
    result = np.frombuffer(b)
    result += np.frombuffer(a)
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
    first = slice(x.size // 2)
    others = ((array[first], array.view("i8"), array.view("f4")) for array in (x, y))
    for a, b in ((x, y), *zip(*others)):
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
    """Make correct calls, the same on all ranks but for memory and spelling; returns how many."""
    draw = np.random.default_rng(1)
    vectors = {n: np.ones(n) for n in (1, 2, 100, 3000)}
    plan_x = np.ones(5)
    plan_y = np.zeros(5)
    plan = comm.Allreduce_init(plan_x, plan_y)
    made = 0
    while made < calls:
        for what, size, where in draw.integers(0, (12, 4, SIZE), (1000, 3)):
            x = vectors[(1, 2, 100, 3000)[size]]
            if where == RANK:
                x = x.copy()
            given = [x, MPI.DOUBLE] if where == RANK else x
            y = np.empty_like(x)
            counts = [np.empty(SIZE), [min(rank, x.size) for rank in range(SIZE)]]
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
                comm.Allgatherv(x[:RANK], counts)
            elif what == 9:
                plan.Start()
                plan.Wait()
            elif what == 10:
                comm.Gatherv(x[:RANK], at_root(counts))
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
    x = np.ones(int(size))
    y = np.zeros(int(size))
    if met:
        meet(comm, x, y)
    programs = PROGRAMS | {name: call for calls in CALLS.values() for name, call in calls.items()}
    programs[name](comm, x, y)
    comm.Barrier()
    print("came to its end", flush=True)


if __name__ == "__main__":
    main()
