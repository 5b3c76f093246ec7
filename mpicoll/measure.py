"""Measuring: candidates alternate in one run, so that whatever disturbs the machine disturbs all of them alike."""

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from time import perf_counter
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from .workload import Workload


def alternate(comm, candidates, repeats, before=None, after=None, calls=1):
    """Seconds per call of each candidate: {name: array of `repeats` times, each the maximum over ranks}. Collective.

    candidates: {name: function}. before(name, repetition) and after(name, repetition) run outside the measured time.
    calls: how many calls one time is the mean of; a few where one call takes about as long as the barrier before it.
    """
    names = list(candidates)
    times = np.zeros((len(names), repeats))
    # A call finds the caches as its predecessor left them (a quarter of the time at 1 MiB), and a rotated order would
    # keep every predecessor: so the order is shuffled, on all ranks alike.
    shuffle = np.random.default_rng(0)
    for repetition in range(repeats):
        for which in shuffle.permutation(len(names)):
            name = names[which]
            if before:
                before(name, repetition)
            times[which, repetition] = _timed(comm, candidates[name], calls)
            if after:
                after(name, repetition)
    _collect(comm, times, MPI.MAX)
    return dict(zip(names, times))


def _timed(comm, function, calls):
    comm.Barrier()
    start = perf_counter()
    for _ in range(calls):
        function()
    return (perf_counter() - start) / calls


def _collect(comm, figures, op):
    """Over all ranks, in place, by MPI's own call: what is measured must not carry its own results."""
    MPI.Intracomm.Allreduce(comm, MPI.IN_PLACE, figures, op)


def repeats_for(comm, candidates, seconds, before=None, after=None, calls=1, least=5, most=1000):
    """How many repetitions fill `seconds`, the same number on all ranks. Collective.

    Each candidate runs twice: the first time binds plans and touches memory, the second is measured.
    """
    trial = alternate(comm, candidates, 2, before, after, calls)
    return how_often({name: times[1] * calls for name, times in trial.items()}, seconds, least, most)


def how_often(once, seconds, least=5, most=1000):
    """How many repetitions of all candidates fill `seconds`. once: what one of each takes."""
    return int(min(max(seconds / max(sum(once.values()), 1e-9), least), most))


def statistics(times):
    """Median, minimum and 95th percentile in microseconds."""
    median, p95 = np.percentile(times, (50, 95)) * 1e6
    figures = {"median_us": median, "min_us": times.min() * 1e6, "p95_us": p95}
    return {name: round(float(value), 3) for name, value in figures.items()}


#: a repetition makes several calls until it takes so many seconds, but not more than this number
SHORT, MOST_CALLS = 2e-3, 20


class Candidate(NamedTuple):
    """What is measured: an algorithm's word, the pieces its messages are cut into, or a peer made by a function.

    make(case): for what is no algorithm of ours; returns the function to call on the arguments of a `Workload`, or None
    where the peer cannot serve it. around: makes a context that each call runs in, which is not measured. always: it is
    measured as often as the fastest however slow it is.
    """

    word: str
    segment_bytes: int | None = None
    make: Callable | None = None
    around: Callable = nullcontext
    always: bool = False


def compare(comm, collective, candidates, nbytes, dtype, seconds=1.0, repeats=None, hopeless=None, least=5, **options):
    """One entry of `bench --json` for each candidate at one size, all checked. Collective over a `Communicator`.

    seconds: for all candidates together, but `least` repetitions, unless `repeats` is given. hopeless: measure no more
    than twice what is then so many times slower than the fastest. options: of `Workload`. Before and after the measured
    calls one of each candidate is checked, every element, on buffers that were wrong before.
    """
    own = comm.Dup()  # freed with the plans and the scratch of this size
    case = Workload(own, collective, nbytes // dtype.itemsize, dtype, **options)
    calls = {one: one.make(case) if one.make else case.call(one.word, one.segment_bytes) for one in candidates}
    calls = {one: call for one, call in calls.items() if call}
    wrong, stack = dict.fromkeys(calls, 0), ExitStack()

    def before(one, repetition):
        case.prepare(poison=repetition == 0)
        stack.enter_context(one.around())

    def after(one, repetition):
        stack.close()

    def checking(one, repetition):
        stack.close()
        wrong[one] += case.wrong() if repetition == 0 else 0

    times = alternate(own, calls, 3, before, checking)
    times = {one: trial[1:] for one, trial in times.items()}  # the first call binds plans and touches memory
    once = {one: trial.min() for one, trial in times.items()}
    best = min(once.values())
    rest = {one: call for one, call in calls.items() if not hopeless or one.always or once[one] <= hopeless * best}
    several = max(1, min(MOST_CALLS, int(SHORT / best)))  # of the same: a lone short call finds the caches cold
    repeats = repeats or how_often({one: several * once[one] for one in rest}, seconds, least)
    with np.errstate(all="ignore"):  # several calls in place are sums of sums
        times |= alternate(own, rest, repeats, before, after, several)
    alternate(own, rest, 1, before, checking)
    counts = np.array(list(wrong.values()))
    _collect(own, counts, MPI.SUM)
    entries = [_entry(case, one, times[one], int(count), one in rest) for one, count in zip(calls, counts)]
    own.Free()
    return entries


def _entry(case, candidate, times, wrong, in_race):
    result = statistics(times)
    algbw, busbw = case.rates(result["median_us"] / 1e6)
    return {
        "collective": case.collective.name, "algorithm": candidate.word, **_served(case, candidate),
        "bytes": case.nbytes, "count": case.count, "dtype": str(case.dtype),
        "op": case.op if case.collective.reduces else None, **result,
        "algbw": round(algbw, 6), "busbw": round(busbw, 6), "wrong": wrong, "repeats": len(times),
        **({} if in_race else {"hopeless": True}),
    }  # fmt: skip


def _served(case, candidate):
    """The pieces that messages were cut into, and for `auto` what it chose."""
    if candidate.make or candidate.word == "native":
        return {"segment_bytes": None}
    said = case.explain(candidate.word, candidate.segment_bytes)
    return {"segment_bytes": said.segment_bytes, **({"chose": said.algorithm} if candidate.word == "auto" else {})}
