"""A job of which rank 1 does not take part in a collective: python stuck.py SCENARIO ALGORITHM.

ALGORITHM may also be objects, begun, first or plan, or a method: other calls that MPI serves alone.

compute: it computes for long. late: for a little. killed, stopped: it is. other: it makes another call. left_out: that too,
but before it left a call out that MPI serves.
"""

import os
import signal
import sys
import time

scenario, algorithm = sys.argv[1:]

if scenario == "funneled":
    import mpi4py

    mpi4py.rc.thread_level = "funneled"

import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402

import mpicoll  # noqa: E402
from mpicoll.execute import Context  # noqa: E402

mpicoll.install_abort_hook()
comm = mpicoll.Communicator(MPI.COMM_WORLD)
context = Context.of(comm)
limit = context.timeout
context.timeout = 1000  # a busy machine is slow to start all ranks
x = np.ones(100_000)
grid = mpicoll.Communicator(MPI.COMM_WORLD.Create_cart([comm.Get_size()], [True]))
Context.of(grid).timeout = 1000
METHODS = {
    "Barrier": lambda: comm.Barrier(algorithm="native"),
    "Exscan": lambda: comm.Exscan(MPI.IN_PLACE, x, algorithm="native"),
    "Alltoallw": lambda: comm.Alltoallw(
        *([np.ones(3), [1] * 3, [0, 8, 16], [MPI.DOUBLE] * 3] for _ in range(2)), algorithm="native"),
    "Neighbor_alltoall": lambda: grid.Neighbor_alltoall(np.ones(2), np.ones(2), algorithm="native"),
}  # fmt: skip
if algorithm in METHODS:
    for _ in range(2):
        METHODS[algorithm]()
elif algorithm in ("objects", "begun", "first", "plan"):  # served by MPI alone
    plan = comm.Allreduce_init(MPI.IN_PLACE, x, algorithm="native")
    for _ in range(2):  # met before, the next one is not compared, and recognised
        comm.Iallreduce(MPI.IN_PLACE, x, algorithm="native").Wait()
else:
    comm.Allreduce(MPI.IN_PLACE, x, algorithm=algorithm)
comm.Bcast(x, algorithm="binomial")
if scenario == "left_out":
    few = np.ones(1)
    comm.Bcast(few)
    if comm.Get_rank() != 1:
        comm.Bcast(few)
    comm.Allreduce(MPI.IN_PLACE, x, algorithm=algorithm)
context.timeout = Context.of(grid).timeout = limit
print(f"pid of rank {comm.Get_rank()} {os.getpid()}", flush=True)
if comm.Get_rank() == 1:
    if scenario == "killed":
        time.sleep(1.5)  # the others leave reports meanwhile
    if scenario in ("killed", "stopped"):
        os.kill(os.getpid(), {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}[scenario])
    elif scenario in ("other", "left_out"):
        comm.Bcast(x, algorithm="binomial")
    else:
        time.sleep({"late": 2.5}.get(scenario, 1000))
if algorithm == "objects":
    comm.allgather(x)
elif algorithm == "begun":
    comm.Iallreduce(MPI.IN_PLACE, x, algorithm="native").Wait()
elif algorithm == "first":
    comm.Iallreduce(MPI.IN_PLACE, x[:-1], algorithm="native").Wait()
elif algorithm == "plan":
    plan.Start()
    plan.Wait()
elif algorithm in METHODS:
    for _ in range(3):  # a rank may leave a scan, or an exchange of neighbours, before another comes
        METHODS[algorithm]()
else:
    comm.Allreduce(MPI.IN_PLACE, x, algorithm=algorithm)
print("done", flush=True)
