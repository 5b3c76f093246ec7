"""What calls could leave behind in a process, counted; and calls of all kinds that must leave nothing."""

import gc
import os
import threading
import time
from collections import Counter

import numpy as np
from mpi4py import MPI

from mpicoll.execute import Context
from mpicoll.progress import PROGRESS

SIZES = (1, 100, 2000, 10_000)
WORDS = (None, "ring", "recursive_doubling", "native")


def counted() -> Counter:
    """Communicators, requests under way, open files, threads, and objects of each class of mpicoll's."""
    gc.collect()
    kinds = (f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.get_objects())
    objects = Counter(kind for kind in kinds if kind.startswith("mpicoll."))
    del objects["mpicoll.failure.recorder._Passed"]  # of which a fixed number is kept
    return objects + Counter({
        "communicators": len(Context.living()), "tasks": len(PROGRESS._tasks), "threads": threading.active_count(),
        "open files": len(os.listdir("/proc/self/fd")),
    })  # fmt: skip


def left_over(before: Counter) -> dict[str, int]:
    """What there is more of now."""
    found: dict[str, int] = {}

    def nothing():
        found.clear()
        found.update(sorted((counted() - before).items()))
        return not found

    eventually(nothing)
    return found


def eventually(condition) -> bool:
    """Whether it comes true: a thread may still have the call in its hands that it ended last."""
    for _ in range(200):
        if condition():
            return True
        time.sleep(0.02)
    return False


# Each takes a communicator and gives a function of the number of the call.


def blocking(comm):
    """On the same memory and on fresh memory in turn."""
    same = [np.ones(size) for size in SIZES]

    def call(number):
        vector = same[number // 2 % 4] if number % 2 else np.ones(SIZES[number // 2 % 4])
        comm.Allreduce(MPI.IN_PLACE, vector, MPI.MAX, algorithm=WORDS[number // 8 % 4])
        assert vector[-1] == 1

    return call


def nonblocking(comm):
    """Up to four at a time."""
    under_way = []

    def call(number):
        vector = np.ones(SIZES[number // 2 % 4])
        under_way.append((comm.Iallreduce(MPI.IN_PLACE, vector, MPI.MAX, algorithm=WORDS[number // 8 % 4]), vector))
        if len(under_way) == 4:
            MPI.Request.Waitall([request for request, _ in under_way])
            assert all(vector[-1] == 1 for _, vector in under_way)
            under_way.clear()

    return call


def plans(comm):
    """Made, started and freed; every third one is forgotten instead, some have a datatype of their own."""
    size = comm.Get_size()

    def call(number):
        word = ("ring", "circulant")[number % 2]
        if number % 5:
            plan = comm.Allreduce_init(MPI.IN_PLACE, np.ones(SIZES[number % 4]), MPI.MAX, algorithm=word)
        else:
            every_second = MPI.DOUBLE.Create_vector(50, 1, 2).Commit()
            plan = comm.Allgather_init([np.ones(100), 1, every_second], np.zeros(50 * size), algorithm=word)
            every_second.Free()
        plan.Start()
        plan.Wait()
        if number % 3:
            plan.Free()

    return call


def native_plans(comm):
    """MPI's own, made by us."""
    return _plans_of_mpi(lambda vector: comm.Allreduce_init(MPI.IN_PLACE, vector, MPI.MAX, algorithm="native"))


def mpi4py_plans(comm):
    """The same without us: what they keep is MPI's."""
    plain = MPI.Intracomm(comm)
    return _plans_of_mpi(lambda vector: plain.Allreduce_init(MPI.IN_PLACE, vector, MPI.MAX))


def _plans_of_mpi(make):
    def call(number):
        vector = np.ones(SIZES[number % 4])  # mpi4py would not keep it
        plan = make(vector)
        plan.Start()
        plan.Wait()
        plan.Free()

    return call


def communicators(comm):
    """Duplicates and parts: made, used, freed."""
    rank = comm.Get_rank()

    def call(number):
        made = comm.Dup() if number % 2 else comm.Split(number // 2 % 2 * (rank % 2), -rank)
        vector = np.ones(2000)
        made.Allreduce(MPI.IN_PLACE, vector, MPI.MAX, algorithm="ring")
        made.Iallreduce(MPI.IN_PLACE, vector, MPI.MAX, algorithm="ring").Wait()
        made.Free()

    return call


ALL = {one.__name__: one for one in (blocking, nonblocking, plans, native_plans, mpi4py_plans, communicators)}
