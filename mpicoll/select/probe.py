"""Probes: short measurements at first use, where no table has an entry for the transport.

A probe tells whether a schedule is clearly faster than MPI's own call. Sizes belong to decades: 16K
to 160K, 160K to 1600K, and above. The first call of a decade times MPI's own call and a few
algorithms at one size of the decade, whole and in pieces: the most promising algorithms by the cost
model, with the link figures of a tiny and of a large exchange between neighbours. A decade that is
too slow to probe uses the result of the decade below. A probe takes about half a second at most, or
MPICOLL_PROBE seconds; with MPICOLL_PROBE=0 there is no probe, and MPI's own call serves.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from time import perf_counter
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from .. import algorithms
from ..execute import Context
from ..schedule import segment_count
from ..support import settings
from ..support.units import format_bytes
from . import table
from .choice import SMALL, Choice, Query
from .table import Link

#: collectives that are probed; MPI's own call serves the others
PROBED = (
    "allreduce",
    "reduce_scatter",
    "allgather",
    "alltoall",
    "bcast",
    "reduce",
    "scan",
    "exscan",
)
#: the speed of a schedule, relative to MPI's own call, from which it is taken
CLEAR = 1.15
#: bytes of pieces: below the eager limit of MPI libraries, and larger
PIECES = 60_000, 256 << 10
#: the last decade, for all larger calls: trials of these would take memory that the caller may need
LAST = 2
#: the largest number of algorithms that are tried
MOST = 4
#: tried algorithms take less than this many times the least predicted time
LIKELY = 2.5
#: a candidate that takes this many times the least time in its first calls is not timed again
HOPELESS = 2.0
#: the part of the time for first calls; the rest is for repetitions of fast candidates
FIRST = 0.75
#: repetitions of the fast candidates
_REPEATS = 5
#: bytes of the large exchange between neighbours
_LARGE = 128 << 10
#: repetitions of an exchange
_ROUNDS = 5

#: algorithm, segment_bytes
Candidate = tuple[str, int | None]
#: by candidate, a function that makes the call
Calls = dict[Candidate, Callable[[], object]]
#: trial(comm, collective, nbytes, candidates)
Trial = Callable[[MPI.Intracomm, str, int, Sequence[Candidate]], AbstractContextManager[Calls]]
_NATIVE: Candidate = (algorithms.NATIVE, None)


class Probe(NamedTuple):
    """The result of a probe at one size, the same on all ranks."""

    nbytes: int
    #: of each candidate; empty where calls are too slow
    seconds: dict[Candidate, float]
    #: predicted seconds of a call that is too slow
    expected: float = 0.0

    def choice(self, note: str = "") -> Choice:
        """The `Choice` by this probe. note: the end of its reason."""
        size = format_bytes(self.nbytes)
        if not self.seconds:
            slow = f"a call of {size} takes {self.expected * 1e3:.0f} ms or more"
            cause = "the links are slow, or ranks share cores and wait for each other's turn"
            return Choice(*_NATIVE, f"too slow to probe, {slow} ({cause}){note}")
        native = self.seconds[_NATIVE]
        fastest_first = sorted(self.seconds.items(), key=lambda entry: -(native / entry[1]))
        gains = [f"{_name(*each)} {native / seconds:.2f} x" for each, seconds in fastest_first]
        best = min(self.seconds, key=self.seconds.__getitem__)
        taken = best if native / self.seconds[best] >= CLEAR else _NATIVE
        reason = f"probed at {size} bytes: {', '.join(gains)} as fast as MPI's own call"
        return Choice(*taken, reason + note)


def _name(algorithm: str, segment_bytes: int | None) -> str:
    return f"{algorithm} in pieces of {segment_bytes}" if segment_bytes else algorithm


def decade(nbytes: int) -> int:
    """The decade of a size: 0 from 16K, 1 from 160K, 2 from 1600K on."""
    number = 0
    while number < LAST and nbytes >= SMALL * 10 ** (number + 1):
        number += 1
    return number


def size_of(number: int) -> int:
    """The bytes at which a decade is probed: near its middle."""
    return 4 * SMALL * int(10**number)


def best(trial: Trial, comm: MPI.Intracomm, query: Query) -> Choice | None:
    """The `Choice` by a probe, or None where nothing is probed.

    Collective over `comm` at the first call of a decade.
    """
    if query.collective not in PROBED or not settings.probe():
        return None
    context = Context.of(comm)
    measured = context.measured
    number = decade(query.nbytes or 0)
    if (query.collective, number) not in measured:
        link = measured["link"] = measured.get("link") or _measure_link(comm)
        measured[query.collective, number] = _probe(trial, comm, query, link, number)
        context.forget_calls()  # non-blocking calls were chosen by older measurements
    return known(comm, query)


def known(comm: MPI.Intracomm, query: Query) -> Choice | None:
    """The `Choice` by an earlier probe, of this decade or the nearest. Local."""
    measured = Context.of(comm).measured
    number = decade(query.nbytes or 0)
    probed = [key[1] for key in measured if isinstance(key, tuple) and key[0] == query.collective]
    if not probed:
        return None
    nearest = min(probed, key=lambda other: (abs(other - number), other))
    note = ""
    if nearest != number:
        note = f", until a call of {format_bytes(SMALL * 10**number)} or more has probed"
    probe: Probe = measured[query.collective, nearest]
    return probe.choice(note)


def predicted(
    comm: MPI.Intracomm,
    collective: str,
    algorithm: str,
    nbytes: int | None,
    segment_bytes: int | None,
) -> float | None:
    """Seconds by the cost model, or None without link figures or a formula. Local."""
    if nbytes is None:
        return None
    context = Context.of(comm)
    link: Link | None = context.measured.get("link") or table.link(context.topology)
    segments = segment_count(nbytes, segment_bytes)
    return link.seconds(collective, algorithm, comm.Get_size(), nbytes, segments) if link else None


def _probe(trial: Trial, comm: MPI.Intracomm, query: Query, link: Link, number: int) -> Probe:
    """The `Probe` of a decade, or of the largest decade below whose calls are short enough."""
    measured = Context.of(comm).measured
    limit = settings.probe()
    for lower in range(number, -1, -1):
        if (query.collective, lower) in measured:
            earlier: Probe = measured[query.collective, lower]
            return earlier
        nbytes = size_of(lower)
        expected = min(predictions(query, link, nbytes).values(), default=0.0)
        if 4 * expected <= limit:  # two calls each of two candidates
            tried = [_NATIVE, *candidates(query, link, nbytes)]
            with trial(comm, query.collective, nbytes, tried) as calls:
                return Probe(nbytes, _timed(comm, calls, limit))
    return Probe(nbytes, {}, expected)


def _timed(comm: MPI.Comm, calls: Calls, limit: float) -> dict[Candidate, float]:
    """Seconds of each candidate, measured in `limit` seconds or little more.

    Times are maxima over ranks, so that all ranks choose the same algorithm.
    """
    from ..measure import alternate  # imported only for a probe

    first: dict[Candidate, float] = {}
    spent = 0.0
    for candidate, function in calls.items():
        if len(first) > 1 and spent > FIRST * limit:
            break  # later candidates are less promising
        times = alternate(comm, {candidate: function}, 2)[candidate]
        first[candidate] = float(times[1])  # times[0] includes connections and page faults
        spent += float(times.sum())
    limit_of_close = HOPELESS * min(first.values())
    close = [each for each in first if each == _NATIVE or first[each] <= limit_of_close]
    round_seconds = sum(first[candidate] for candidate in close)
    repeats = min(_REPEATS, int((limit - spent) / max(round_seconds, 1e-9)))
    if repeats < 1:
        return first
    timed = alternate(comm, {candidate: calls[candidate] for candidate in close}, repeats)
    return {candidate: float(np.median(times)) for candidate, times in timed.items()}


def predictions(query: Query, link: Link, nbytes: int) -> dict[Candidate, float]:
    """Seconds by the cost model of each algorithm, whole and in pieces, in ascending order."""
    seconds_of: dict[Candidate, float] = {}
    for algorithm in algorithms.proposed(query.collective):
        pipelined = algorithm.blocks == "segments"
        message = nbytes if pipelined else nbytes // query.size
        for piece in (None, *(piece for piece in PIECES if piece < message)):
            segments = segment_count(nbytes, piece if pipelined else None)
            seconds = link.seconds(query.collective, algorithm.name, query.size, nbytes, segments)
            if seconds is not None:
                seconds_of[algorithm.name, piece] = seconds
    return dict(sorted(seconds_of.items(), key=lambda entry: entry[1]))


def candidates(query: Query, link: Link, nbytes: int) -> list[Candidate]:
    """The candidates beside MPI's own call, the most promising first."""
    return list(_candidates(query, predictions(query, link, nbytes), nbytes))


def _candidates(query: Query, seconds: dict[Candidate, float], nbytes: int) -> Iterator[Candidate]:
    several_nodes = 1 < query.topology.node_count < query.size
    if several_nodes and "hierarchical" in algorithms.list_algorithms(query.collective):
        pieces = [piece for piece in PIECES if piece < nbytes // query.size]
        yield from (("hierarchical", piece) for piece in (None, *pieces))
    likely = [each for each in seconds if seconds[each] <= LIKELY * min(seconds.values())]
    names = list(islice(dict.fromkeys(name for name, _ in likely), MOST))
    yield from ((name, piece) for name, piece in likely if name in names)
    if query.collective == "allreduce" and nbytes == size_of(0):
        yield "tree", None  # few rounds of whole vectors; the cost model has no formula


def _measure_link(comm: MPI.Intracomm) -> Link:
    """The `Link` between neighbours, the slowest of all ranks."""
    context = Context.of(comm)
    rank, size = comm.Get_rank(), comm.Get_size()
    tag = context.call_tag(context.next_call(), 0)
    times = []
    for nbytes in (8, _LARGE):
        receive = context.channel.receiver(np.zeros(nbytes, np.uint8), (rank - 1) % size)
        send = context.channel.sender(np.zeros(nbytes, np.uint8), (rank + 1) % size)
        times.append(_typical(lambda: MPI.Request.Waitall((receive(tag), send(tag)))))
    vector = np.ones(_LARGE // 4, np.float32)
    times.append(_typical(lambda: np.add(vector, vector, out=vector)))
    slowest = np.array(times)
    MPI.Comm.Allreduce(comm, MPI.IN_PLACE, slowest, MPI.MAX)
    small, large, adding = map(float, slowest)
    return Link(small, _LARGE / max(large - small, 1e-9), adding / _LARGE)


def _typical(function: Callable[[], object]) -> float:
    """The median time of a function in seconds, without the first call, which connects."""
    times = []
    for _ in range(_ROUNDS + 1):
        start = perf_counter()
        function()
        times.append(perf_counter() - start)
    return float(np.median(times[1:]))
