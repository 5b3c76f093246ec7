"""A short measurement at first use, where no table knows the transport: is a schedule clearly faster than MPI's own call?

The cost model, fed with the time of a tiny and of a large exchange between neighbours, names the most promising
algorithm; it and MPI's own call are then timed at one or two sizes, and straight lines through these times serve all
sizes. One probe per communicator and collective, of about half a second at most on a slow network; MPICOLL_PROBE=0 leaves it
out, and MPI's own call then serves what no table knows.
"""

from time import perf_counter
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from .. import algorithms, select
from ..execute import Wire
from ..measure import race
from ..simulate import closed_form
from ..support import settings
from ..support.units import format_bytes
from . import table

#: collectives that are probed; the rooted ones stay with MPI
PROBED = ("allreduce", "reduce_scatter", "allgather")
SIZES = 64 << 10, 1 << 20
SECONDS = 0.5
#: how much faster a schedule must be than MPI's own call
CLEAR = 1.15
_REPEATS, _LARGE, _ROUNDS = 3, 128 << 10, 5
#: calls of each candidate at one size: `measure.race` makes two before those that count
_CALLS = _REPEATS + 2


class Link(NamedTuple):
    """Times of the cost model: seconds per message, bytes per second, seconds per byte reduced."""

    alpha: float
    bandwidth: float
    gamma: float

    def seconds(self, collective, word, size, nbytes, segments=1):
        """The predicted time of a schedule, or None where there is no formula. segments: of pipelined algorithms."""
        cost = closed_form(collective, word, size, segments)
        return cost and cost.seconds(nbytes, *self)


class Probe(NamedTuple):
    """Times of MPI's own call and of one algorithm, (bytes, seconds, seconds) at each size; none on too slow a link."""

    word: str
    segment_bytes: int | None
    points: tuple

    def gain(self, nbytes):
        """How many times faster the algorithm is at this size, on the lines through the measured points."""
        (low, *first), (high, *last) = self.points[0], self.points[-1]
        if nbytes <= low or low == high:
            return first[0] / first[1]
        native, ours = (a + (b - a) * (nbytes - low) / (high - low) for a, b in zip(first, last))
        return native / ours if native > 0 < ours else last[0] / last[1]


def best(comm, trial, request):
    """The `Choice` that a probe leads to, or None where nothing is probed. Collective over `comm`, the first time.

    trial(comm, collective, nbytes, candidates): a context that gives {candidate: function that makes the call}; a candidate
    is (algorithm, segment_bytes).
    """
    if request.collective not in PROBED or not settings.probe():
        return None
    wire = Wire.of(comm)
    if request.collective not in wire.measured:
        wire.connect(comm)
        link = wire.measured["link"] = wire.measured.get("link") or _measure_link(wire.comm)
        wire.measured[request.collective] = _measure(comm, trial, request, link)
    return known(comm, trial, request)


def known(comm, trial, request):
    """As `best`, but only from what was measured before. Local."""
    probe = Wire.of(comm).measured.get(request.collective)
    if probe is None:
        return None
    if not probe.points:
        return select.Choice(algorithms.NATIVE, None, "too slow a link to probe")
    gain = probe.gain(request.nbytes)
    measured = " and ".join(format_bytes(point[0]) for point in probe.points)
    reason = f"probed at {measured} bytes: {probe.word} {gain:.2f} x as fast as MPI's own call"
    if gain < CLEAR:
        return select.Choice(algorithms.NATIVE, None, f"{reason}, no clear gain")
    return select.Choice(probe.word, probe.segment_bytes, reason)


def predicted(comm, collective, word, nbytes, segment_bytes):
    """Seconds by the cost model, or None where nothing was measured or there is no formula. Local."""
    if nbytes is None:
        return None
    wire = Wire.of(comm)
    fitted = table.link(wire.topology)
    link = wire.measured.get("link") or (fitted and Link(*fitted))
    segments = max(1, -(-nbytes // segment_bytes)) if segment_bytes else 1
    return link.seconds(collective, word, comm.Get_size(), nbytes, segments) if link else None


def _measure(comm, trial, request, link):
    word = promising(request, link)
    segment = select.default_segment(request, word)
    points, start = [], perf_counter()
    expected = link.seconds(request.collective, word, request.size, SIZES[0])
    if expected and 2 * _CALLS * expected > SECONDS:
        return Probe(word, segment, ())
    for nbytes in SIZES:
        with trial(comm, request.collective, nbytes, [(algorithms.NATIVE, None), (word, segment)]) as functions:
            times = race(comm, functions, _REPEATS)
        points.append((nbytes, *(float(np.median(seconds)) for seconds in times.values())))
        next_takes = sum(points[-1][1:]) * _CALLS * SIZES[-1] / SIZES[0]
        if _largest(comm, perf_counter() - start) + next_takes > SECONDS:
            break
    return Probe(word, segment, tuple(points))


def _largest(comm, seconds):
    """The largest value of all ranks."""
    value = np.array([seconds])
    MPI.Intracomm.Allreduce(comm, MPI.IN_PLACE, value, MPI.MAX)
    return value[0]


def promising(request, link):
    """The algorithm with the least predicted time at the largest probed size."""
    if 1 < request.topology.count < request.size:
        return "hierarchical"
    words = [word for word in algorithms.list_algorithms(request.collective)
             if link.seconds(request.collective, word, request.size, SIZES[-1]) is not None]  # fmt: skip
    return min(words, key=lambda word: link.seconds(request.collective, word, request.size, SIZES[-1]))


def _measure_link(comm):
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
