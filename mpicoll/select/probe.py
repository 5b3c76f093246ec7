"""A short measurement at first use, where no table knows the transport: is a schedule clearly faster than MPI's own call?

Sizes are served by decades: 16K to 160K, 160K to 1600K, and above. The first call of a decade has MPI's own call and a few
algorithms timed at one size in it, whole and in pieces: those that the cost model finds promising, which is fed with the
time of a tiny and of a large exchange between neighbours. A decade whose calls take too long for that is served as the one
below it. A probe takes half a second or so at most, or what MPICOLL_PROBE says; MPICOLL_PROBE=0 leaves it out, and MPI's
own call then serves what no table knows.
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
from ..support import settings
from ..support.units import format_bytes
from . import table
from .choice import SMALL, Choice, Query
from .table import Link

#: collectives that are probed; the others stay with MPI
PROBED = ("allreduce", "reduce_scatter", "allgather", "alltoall", "bcast", "reduce")
#: how much faster a schedule must be than MPI's own call
CLEAR = 1.15
#: pieces that messages are cut into: below the size at which MPI libraries ask before they send, and larger ones
PIECES = 60_000, 256 << 10
#: the last decade; it serves all larger calls, whose trials would take memory that the caller may need
LAST = 2
#: algorithms that are tried: so many, and those predicted to take less than so many times as long as the best
MOST, LIKELY = 4, 2.5
#: what takes so many times as long as the fastest in its first calls is not timed again
HOPELESS = 2.0
#: the part of the time that first calls may take, so that some is left to repeat the fast ones
FIRST = 0.75
_REPEATS, _LARGE, _ROUNDS = 5, 128 << 10, 5

Candidate = tuple[str, int | None]  # algorithm, segment_bytes
#: trial(comm, collective, nbytes, candidates): a context that gives for each candidate a function that makes the call
Trial = Callable[
    [MPI.Intracomm, str, int, Sequence[Candidate]], AbstractContextManager[dict[Candidate, Callable[[], object]]]
]
_NATIVE: Candidate = (algorithms.NATIVE, None)


class Probe(NamedTuple):
    """Seconds of each candidate at one size in bytes, the same on all ranks; none where a call takes `expected` seconds."""

    nbytes: int
    seconds: dict[Candidate, float]
    expected: float = 0.0

    def choice(self, note: str = "") -> Choice:
        """The `Choice` that it leads to. note: what else there is to say."""
        if not self.seconds:
            what = f"too slow to probe, a call of {format_bytes(self.nbytes)} takes {self.expected * 1e3:.0f} ms or more"
            return Choice(*_NATIVE, f"{what} (the links are slow, or ranks share cores and wait for each other's turn){note}")
        best = min(self.seconds, key=self.seconds.__getitem__)
        gains = {one: self.seconds[_NATIVE] / seconds for one, seconds in self.seconds.items()}
        tried = ", ".join(f"{_name(*one)} {gains[one]:.2f} x" for one in sorted(gains, key=lambda one: -gains[one]))
        found = f"probed at {format_bytes(self.nbytes)} bytes: {tried} as fast as MPI's own call"
        return Choice(*(best if gains[best] >= CLEAR else _NATIVE), found + note)


def _name(algorithm: str, segment_bytes: int | None) -> str:
    return f"{algorithm} in pieces of {segment_bytes}" if segment_bytes else algorithm


def decade(nbytes: int) -> int:
    """Which decade so many bytes are in: 0 from 16K, 1 from 160K, 2 from 1600K on."""
    found = 0
    while found < LAST and nbytes >= SMALL * 10 ** (found + 1):
        found += 1
    return found


def size_of(which: int) -> int:
    """The bytes at which a decade is probed: near its middle."""
    return 4 * SMALL * int(10**which)


def best(trial: Trial, comm: MPI.Intracomm, query: Query) -> Choice | None:
    """The `Choice` that a probe leads to, or None where nothing is probed. Collective over `comm`, a decade's first time."""
    if query.collective not in PROBED or not settings.probe():
        return None
    measured, which = Context.of(comm).measured, decade(query.nbytes or 0)
    if (query.collective, which) not in measured:
        link = measured["link"] = measured.get("link") or _measure_link(comm)
        measured[query.collective, which] = _probe(trial, comm, query, link, which)
        Context.of(comm).forget_calls()  # those that do not block are served by what was measured before
    return known(comm, query)


def known(comm: MPI.Intracomm, query: Query) -> Choice | None:
    """As `best`, but only from what was measured before, for this decade or the nearest. Local."""
    measured, which = Context.of(comm).measured, decade(query.nbytes or 0)
    probed = [key[1] for key in measured if isinstance(key, tuple) and key[0] == query.collective]
    if not probed:
        return None
    nearest = min(probed, key=lambda one: (abs(one - which), one))
    note = "" if nearest == which else f", until a call of {format_bytes(SMALL * 10**which)} or more has probed"
    probe: Probe = measured[query.collective, nearest]
    return probe.choice(note)


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


def _probe(trial: Trial, comm: MPI.Intracomm, query: Query, link: Link, which: int) -> Probe:
    """The `Probe` of a decade, or of the largest below it whose calls are short enough."""
    measured, limit = Context.of(comm).measured, settings.probe()
    for lower in range(which, -1, -1):
        if (query.collective, lower) in measured:
            found: Probe = measured[query.collective, lower]
            return found
        nbytes = size_of(lower)
        expected = min(predictions(query, link, nbytes).values(), default=0.0)
        if 4 * expected <= limit:  # two calls each of two candidates
            tried = [_NATIVE, *candidates(query, link, nbytes)]
            with trial(comm, query.collective, nbytes, tried) as functions:
                return Probe(nbytes, _timed(comm, functions, limit))
    return Probe(nbytes, {}, expected)


def _timed(comm: MPI.Comm, functions: dict[Candidate, Callable[[], object]], limit: float) -> dict[Candidate, float]:
    """Seconds of each candidate, in `limit` or little more. Times are the largest of all ranks, so all decide alike."""
    from ..measure import alternate  # where no probe is made nothing is measured

    first: dict[Candidate, float] = {}
    spent = 0.0
    for one, function in functions.items():
        if len(first) > 1 and spent > FIRST * limit:
            break  # those that come later are the less promising
        times = alternate(comm, {one: function}, 2)[one]
        first[one] = float(times[1])  # the first touches memory and connects
        spent += float(times.sum())
    close = {one: functions[one] for one in first if one == _NATIVE or first[one] <= HOPELESS * min(first.values())}
    each = sum(first[one] for one in close)
    repeats = min(_REPEATS, int((limit - spent) / max(each, 1e-9)))
    if repeats < 1:
        return first
    timed = alternate(comm, close, repeats)
    return {one: float(np.median(times)) for one, times in timed.items()}


def predictions(query: Query, link: Link, nbytes: int) -> dict[Candidate, float]:
    """Seconds of each algorithm by the cost model, whole and in the pieces that cut its messages; the least first."""
    found: dict[Candidate, float] = {}
    for one in algorithms.registered(query.collective):
        pipelined = one.blocks == "segments"
        message = nbytes if pipelined else nbytes // query.size
        for piece in (None, *(piece for piece in PIECES if piece < message)):
            segments = -(-nbytes // piece) if pipelined and piece else 1
            seconds = link.seconds(query.collective, one.name, query.size, nbytes, segments)
            if seconds is not None:
                found[one.name, piece] = seconds
    return dict(sorted(found.items(), key=lambda entry: entry[1]))


def candidates(query: Query, link: Link, nbytes: int) -> list[Candidate]:
    """What is tried beside MPI's own call, the most promising first."""
    return list(_candidates(query, predictions(query, link, nbytes), nbytes))


def _candidates(query: Query, seconds: dict[Candidate, float], nbytes: int) -> Iterator[Candidate]:
    if 1 < query.topology.node_count < query.size and "hierarchical" in algorithms.list_algorithms(query.collective):
        pieces = [piece for piece in PIECES if piece < nbytes // query.size]
        yield from (("hierarchical", piece) for piece in (None, *pieces))
    likely = [one for one in seconds if seconds[one] <= LIKELY * min(seconds.values())]
    names = list(islice(dict.fromkeys(name for name, _ in likely), MOST))
    yield from (one for one in likely if one[0] in names)
    if query.collective == "allreduce" and nbytes == size_of(0):
        yield "tree", None  # it has no formula; few rounds of whole vectors


def _measure_link(comm: MPI.Intracomm) -> Link:
    """The `Link` between neighbours, the slowest on any rank."""
    context = Context.of(comm)
    right, left = (comm.Get_rank() + 1) % comm.Get_size(), (comm.Get_rank() - 1) % comm.Get_size()
    tag = context.call_tag(context.next_call(), 0)
    times = []
    for nbytes in (8, _LARGE):
        receive = context.channel.receiver(np.zeros(nbytes, np.uint8), left)
        send = context.channel.sender(np.zeros(nbytes, np.uint8), right)
        times.append(_typical(lambda: MPI.Request.Waitall((receive(tag), send(tag)))))
    vector = np.ones(_LARGE // 4, np.float32)
    times.append(_typical(lambda: np.add(vector, vector, out=vector)))
    slowest = np.array(times)
    MPI.Comm.Allreduce(comm, MPI.IN_PLACE, slowest, MPI.MAX)
    small, large, adding = map(float, slowest)
    return Link(small, _LARGE / max(large - small, 1e-9), adding / _LARGE)


def _typical(function: Callable[[], object]) -> float:
    """Seconds that it takes; the first time, which connects, does not count."""
    times = []
    for _ in range(_ROUNDS + 1):
        start = perf_counter()
        function()
        times.append(perf_counter() - start)
    return float(np.median(times[1:]))
