"""One description of every collective call, in every form that MPI allows, and MPI's own result on the same data."""

import os
import subprocess
import sys
from functools import cache

import numpy as np
from mpi4py import MPI

from mpicoll import algorithms, collectives
from mpicoll.schedule import INPUT, bounds, offsets

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()
ROOTS = range(SIZE)
#: mpi4py's methods, by the collective they are
METHODS = {
    "Bcast": "bcast", "Scatter": "scatter", "Scatterv": "scatter", "Gather": "gather", "Gatherv": "gather",
    "Allgather": "allgather", "Allgatherv": "allgather", "Alltoall": "alltoall", "Alltoallv": "alltoall",
    "Reduce": "reduce", "Allreduce": "allreduce", "Reduce_scatter": "reduce_scatter", "Reduce_scatter_block": "reduce_scatter",
    "Scan": "scan", "Exscan": "exscan",
}  # fmt: skip
REDUCTIONS = ("Reduce", "Allreduce", "Reduce_scatter", "Reduce_scatter_block", "Scan", "Exscan")
#: awkward lengths; the prime is many segments of SEGMENT bytes
PRIME, SEGMENT = 1009, 512
COUNTS = sorted({0, 1, SIZE - 1, SIZE, SIZE + 1, PRIME})
FORMS = ("apart", "in place", "none", "same")


def words(method, ordered=False, study=False):
    """The words of the algorithms that have a schedule for this method: those to choose from, or those for study."""
    there = [a for a in algorithms.registered(METHODS.get(method, "alltoall")) if a.study == study]
    uneven = method in ("Alltoallv", "Alltoallw")
    fit = [a for a in there if not (uneven and a.equal_blocks)]
    return [a.name for a in fit if a.ordered or not ordered]


EVERY = [(method, word) for method in METHODS for word in words(method)]
STUDY = [(method, word) for method in METHODS for word in words(method, study=True)]


def small_integers(rank, count, dtype):
    """What a rank contributes: from 0 to 2, so that sums and products are exact in every type."""
    return np.random.default_rng([rank, count]).integers(0, 3, count).astype(dtype)


def mixed_magnitudes(rank, count, dtype):
    """What a rank contributes where rounding must show: any other order of additions has other bits."""
    random = np.random.default_rng([rank, count])
    return (random.standard_normal(count) * 10.0 ** random.integers(-3, 4, count)).astype(dtype)


class Case:
    """One call on one rank. `arguments` are mpi4py's, `result` is the array that is then compared, or None.

    count: elements of the vector, or of each block where all blocks are equal. form: "apart" (two buffers), "in place"
    (MPI.IN_PLACE), "none" (None in its stead), "same" (the send buffer is the receive buffer).
    """

    def __init__(
        self, method, count=PRIME, root=0, form="apart", *, dtype="i8", op=MPI.SUM, fill=small_integers, array=np.array
    ):
        self.method, self.root, self.form, self.op = method, root, form, op
        self.collective = collectives.find(METHODS[method])
        equal = method in ("Scatter", "Gather", "Allgather", "Alltoall", "Reduce_scatter_block")
        self.edges = [count * block for block in range(SIZE + 1)] if equal else bounds(count, SIZE)
        if method == "Alltoallv":  # of two ranks each has as much for the other
            self.edges = offsets(np.roll(np.diff(self.edges), -RANK).tolist())
        self.counts = list(np.diff(self.edges))
        self.array, self.dtype = array, np.dtype(dtype)
        self.vector = fill(root if method.startswith(("Scatter", "Bcast")) else RANK, self.edges[-1], self.dtype)
        self.sent = self.kept = self.result = None
        self._build()

    def part(self, condition):
        part = condition(RANK, SIZE, SIZE, self.root)
        return None if part is None else slice(self.edges[part.first], self.edges[part.first + part.count])

    def _empty(self, part):
        """A receive buffer full of what must not stay."""
        return None if part is None else self.array(np.full(part.stop - part.start, 7, self.dtype))

    def _build(self):
        before, after, form = self.part(self.collective.precondition), self.part(self.collective.postcondition), self.form
        if self.method == "Exscan" and after is None:  # its buffer is left as it is, which is compared, too
            form, after = "apart", before
        if self.collective.place != INPUT:
            self.result = self._empty(after) if before is None else self.array(self.vector)
            self.arguments = (self.result, self.root)
            return
        inside = before is not None and after is not None
        if form == "same" and inside and before == after:
            self.result = self.array(self.vector)
            buffers = self.result, self.result
        elif form in ("in place", "none") and inside:
            buffers = self._in_place(before, after)
        else:
            send = None if before is None else self.array(self.vector[before])
            self.sent, self.kept, self.result = send, None if send is None else self.vector[before], self._empty(after)
            buffers = send, self.result
        self.arguments = self._complete(*buffers)

    def _in_place(self, before, after):
        marker = MPI.IN_PLACE if self.form == "in place" else None
        if self.method.startswith("Scatter"):
            whole = self.array(self.vector)
            self.result = whole[after]
            return whole, marker
        whole = self.array(np.full(self.edges[-1], 7, self.dtype))
        whole[before] = self.array(self.vector[before])
        at_front = self.method.startswith("Reduce_scatter")
        self.result = whole[: after.stop - after.start] if at_front else whole[after]
        return marker, whole

    def _complete(self, send, recv):
        """Counts, op and root where the method has them."""
        if self.method in ("Gatherv", "Allgatherv"):
            recv = recv if recv is None else [recv, self.counts]
        elif self.method == "Scatterv":
            send = send if send is None else [send, self.counts]
        elif self.method == "Alltoallv":
            send, recv = (one if one is None or one is MPI.IN_PLACE else [one, self.counts] for one in (send, recv))
        counts = [self.counts] if self.method == "Reduce_scatter" else []
        op = [self.op] if self.collective.reduces else []
        return (send, recv, *counts, *op, *([self.root] if self.collective.rooted else []))

    def call(self, comm, **options):
        """Make the call; the array with the result, or None where this rank gets none."""
        getattr(comm, self.method)(*self.arguments, **options)
        if self.sent is not None:
            same(self.sent, self.kept)  # the input is not modified
        return self.result

    def begin(self, comm, **options):
        """The non-blocking form: its request."""
        return getattr(comm, "I" + self.method.lower())(*self.arguments, **options)

    def init(self, comm, **options):
        """The persistent form."""
        return getattr(comm, self.method + "_init")(*self.arguments, **options)


@cache
def expected(method, count=PRIME, root=0, dtype="i8", op="SUM"):
    """MPI's own result on the data of that `Case`; collective, so asked for by all ranks in the same order."""
    return Case(method, count, root, dtype=dtype, op=getattr(MPI, op)).call(WORLD)


def same(result, wanted):
    """The same type, and the same elements without any tolerance."""
    if wanted is None:
        assert result is None
    else:
        result = result if isinstance(result, np.ndarray) else result.get()
        assert result.dtype == wanted.dtype
        np.testing.assert_array_equal(result, wanted)


def roots_of(method):
    """Every root, where there are roots."""
    return ROOTS if collectives.find(METHODS[method]).rooted else (0,)


def forms_of(method):
    """The forms this method has; one array for both buffers only where both have the same blocks."""
    return FORMS if method in ("Allreduce", "Reduce", "Alltoall", "Scan", "Exscan") else FORMS[:-1]


def everywhere(value):
    """All ranks have this value, or the test fails."""
    assert WORLD.allgather(value) == [value] * SIZE


def outside_of_mpi(code, **environment):
    """Run Python code in a process that no launcher knows of."""
    launchers = ("PMI", "HYD", "MPI", "OMPI_COMM", "PRTE")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(launchers)}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env={**inherited, **environment}, capture_output=True, text=True, check=False)
