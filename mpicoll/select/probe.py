"""A short measurement at first use, where no table knows the transport: is a schedule clearly faster than MPI's own call?

The cost model, fed with the time of a tiny and of a large exchange between neighbours, names the most promising
algorithm; it and MPI's own call are then timed at one or two sizes, and straight lines through these times serve all
sizes. One probe per communicator and collective, of about half a second at most on a slow network; MPICOLL_PROBE=0 leaves it
out, and MPI's own call then serves what no table knows.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from time import perf_counter
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from .. import algorithms
from ..execute import Context
from ..measure import race
from ..support import settings
from ..support.units import format_bytes
from . import table
from .choice import Choice, Query, default_segment
from .table import Link

#: collectives that are probed; the rooted ones stay with MPI
PROBED = ("allreduce", "reduce_scatter", "allgather")
SIZES = 64 << 10, 1 << 20
SECONDS = 0.5
#: how much faster a schedule must be than MPI's own call
CLEAR = 1.15
_REPEATS, _LARGE, _ROUNDS = 3, 128 << 10, 5
#: calls of each candidate at one size: `measure.race` makes two before those that count
_CALLS = _REPEATS + 2

Candidate = tuple[str, int | None]  # algorithm, segment_bytes
#: trial(comm, collective, nbytes, candidates): a context that gives for each candidate a function that makes the call
Trial = Callable[
    [MPI.Intracomm, str, int, Sequence[Candidate]], AbstractContextManager[dict[Candidate, Callable[[], object]]]
]


class Point(NamedTuple):
    """Seconds of MPI's own call and of the algorithm at one size in bytes."""

    nbytes: int
    native: float
    ours: float


class Probe(NamedTuple):
    """Times of MPI's own call and of one algorithm at each size; none on too slow a link."""

    algorithm: str
    segment_bytes: int | None
    points: tuple[Point, ...]

    def gain(self, nbytes: int) -> float:
        """How many times faster the algorithm is at this size, on the lines through the measured points."""
        first, last = self.points[0], self.points[-1]
        if nbytes <= first.nbytes or first.nbytes == last.nbytes:
            return first.native / first.ours
        along = (nbytes - first.nbytes) / (last.nbytes - first.nbytes)
        native, ours = (a + (b - a) * along for a, b in zip(first[1:], last[1:]))
        return native / ours if native > 0 < ours else last.native / last.ours


def best(trial: Trial, comm: MPI.Intracomm, query: Query) -> Choice | None:
    """The `Choice` that a probe leads to, or None where nothing is probed. Collective over `comm`, the first time."""
    if query.collective not in PROBED or not settings.probe():
        return None
    context = Context.of(comm)
    if query.collective not in context.measured:
        context.connect(comm)
        assert context.comm is not None
        link = context.measured["link"] = context.measured.get("link") or _measure_link(context.comm)
        context.measured[query.collective] = _measure(trial, comm, query, link)
    return known(comm, query)


def known(comm: MPI.Intracomm, query: Query) -> Choice | None:
    """As `best`, but only from what was measured before. Local."""
    probe: Probe | None = Context.of(comm).measured.get(query.collective)
    if probe is None:
        return None
    if not probe.points:
        return Choice(algorithms.NATIVE, None, "too slow a link to probe")
    gain = probe.gain(query.nbytes or 0)
    measured = " and ".join(format_bytes(point.nbytes) for point in probe.points)
    reason = f"probed at {measured} bytes: {probe.algorithm} {gain:.2f} x as fast as MPI's own call"
    if gain < CLEAR:
        return Choice(algorithms.NATIVE, None, f"{reason}, no clear gain")
    return Choice(probe.algorithm, probe.segment_bytes, reason)


def predicted(
    comm: MPI.Intracomm, collective: str, algorithm: str, nbytes: int | None, segment_bytes: int | None
) -> float | None:
    """Seconds by the cost model, or None where nothing was measured or there is no formula. Local."""
    if nbytes is None:
        return None
    context = Context.of(comm)
    link: Link | None = context.measured.get("link") or table.link(context.topology)
    segments = max(1, -(-nbytes // segment_bytes)) if segment_bytes else 1
    return link.seconds(collective, algorithm, comm.Get_size(), nbytes, segments) if link else None


def _measure(trial: Trial, comm: MPI.Intracomm, query: Query, link: Link) -> Probe:
    algorithm = promising(query, link)
    segment = default_segment(query, algorithm)
    native, ours = (algorithms.NATIVE, None), (algorithm, segment)
    points: list[Point] = []
    start = perf_counter()
    expected = link.seconds(query.collective, algorithm, query.size, SIZES[0])
    if expected and 2 * _CALLS * expected > SECONDS:
        return Probe(algorithm, segment, ())
    for nbytes in SIZES:
        with trial(comm, query.collective, nbytes, [native, ours]) as functions:
            times = race(comm, functions, _REPEATS)
        points.append(Point(nbytes, float(np.median(times[native])), float(np.median(times[ours]))))
        next_takes = (points[-1].native + points[-1].ours) * _CALLS * SIZES[-1] / SIZES[0]
        if _largest(comm, perf_counter() - start) + next_takes > SECONDS:
            break
    return Probe(algorithm, segment, tuple(points))


def _largest(comm: MPI.Comm, seconds: float) -> float:
    """The largest value of all ranks."""
    value = np.array([seconds])
    MPI.Comm.Allreduce(comm, MPI.IN_PLACE, value, MPI.MAX)
    return float(value[0])


def promising(query: Query, link: Link) -> str:
    """The algorithm with the least predicted time at the largest probed size."""
    if 1 < query.topology.node_count < query.size:
        return "hierarchical"
    times = {}
    for algorithm in algorithms.list_algorithms(query.collective):
        seconds = link.seconds(query.collective, algorithm, query.size, SIZES[-1])
        if seconds is not None:
            times[algorithm] = seconds
    return min(times, key=times.__getitem__)


def _measure_link(comm: MPI.Comm) -> Link:
    """The `Link` between neighbours, the slowest on any rank."""
    rank, size = comm.Get_rank(), comm.Get_size()
    times = []
    for nbytes in (8, _LARGE):
        sent, received = np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
        comm.Sendrecv(sent, (rank + 1) % size, 0, received, (rank - 1) % size, 0)
        start = perf_counter()
        for _ in range(_ROUNDS):
            comm.Sendrecv(sent, (rank + 1) % size, 0, received, (rank - 1) % size, 0)
        times.append((perf_counter() - start) / _ROUNDS)
    vector = np.ones(_LARGE // 4, np.float32)
    start = perf_counter()
    for _ in range(_ROUNDS):
        np.add(vector, vector, out=vector)
    times.append((perf_counter() - start) / _ROUNDS)
    small, large, adding = (_largest(comm, seconds) for seconds in times)
    return Link(small, _LARGE / max(large - small, 1e-9), adding / _LARGE)
