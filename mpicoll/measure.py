"""Measuring: candidates alternate in one run, so that whatever disturbs the machine disturbs all of them alike."""

from time import perf_counter

import numpy as np
from mpi4py import MPI

from . import algorithms, select
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
    once = sum(times[1] for times in trial.values()) * calls
    return int(min(max(seconds / max(once, 1e-9), least), most))


def statistics(times):
    """Median, minimum and 95th percentile in microseconds."""
    median, p95 = np.percentile(times, (50, 95)) * 1e6
    figures = {"median_us": median, "min_us": times.min() * 1e6, "p95_us": p95}
    return {name: round(float(value), 3) for name, value in figures.items()}


def compare(comm, collective, words, nbytes, dtype, segment_bytes=None, seconds=1.0, repeats=None, **options):
    """One entry of `bench --json` for each algorithm word at one size, all checked. Collective over a `Communicator`.

    seconds: for all words together, unless `repeats` is given. options: of `Workload`. In the first and the last
    repetition of each word every element is checked, on buffers that were wrong before.
    """
    own = comm.Dup()  # freed with the plans and the scratch of this size
    case = Workload(own, collective, nbytes // dtype.itemsize, dtype, **options)
    candidates = {word: case.call(word, segment_bytes) for word in words}
    wrong, checked = np.zeros(len(words), np.int64), {0}

    def before(name, repetition):
        case.prepare(poison=repetition in checked)

    def after(name, repetition):
        if repetition in checked:
            wrong[words.index(name)] += case.wrong()

    repeats = repeats or repeats_for(own, candidates, seconds, before, after)
    checked.add(repeats - 1)
    times = alternate(own, candidates, repeats, before, after)
    _collect(own, wrong, MPI.SUM)
    own.Free()
    return [_entry(case, word, segment_bytes, times[word], int(count)) for word, count in zip(words, wrong)]


def _entry(case, word, segment_bytes, times, wrong):
    scheduled = [each for each in algorithms.registered(case.collective.name) if each.name == word]
    pipelined = bool(scheduled) and scheduled[0].blocks == "segments"
    result = statistics(times)
    algbw, busbw = case.rates(result["median_us"] / 1e6)
    return {
        "collective": case.collective.name, "algorithm": word,
        "segment_bytes": (segment_bytes or select.SEGMENT_BYTES) if pipelined else None,
        "bytes": case.nbytes, "count": case.count, "dtype": str(case.dtype),
        "op": case.op if case.collective.reduces else None, **result,
        "algbw": round(algbw, 6), "busbw": round(busbw, 6), "wrong": wrong, "repeats": len(times),
    }  # fmt: skip
