"""Timing: candidates alternate in one run, so that a disturbance affects all of them alike."""

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

Name = TypeVar("Name")
Function = Callable[[], object]
Hook = Callable[[Any, int], object]  # of a candidate's name and the number of the repetition
Times = np.ndarray[Any, np.dtype[np.float64]]


def alternate(
    comm: MPI.Comm,
    candidates: Mapping[Name, Function],
    repeats: int,
    setup: Hook | None = None,
    teardown: Hook | None = None,
    calls: int = 1,
) -> dict[Name, Times]:
    """Seconds per call of each candidate: {name: `repeats` times, each the maximum over ranks}.

    Collective.

    candidates: {name: function}. setup(name, repetition) and teardown(name, repetition) run outside
    the measured time.
    calls: how many calls one time is the mean of; a few where one call takes about as long as the
    barrier before it.
    """

    def seconds_of(name: Name, repetition: int) -> float:
        if setup:
            setup(name, repetition)
        seconds = _timed(comm, candidates[name], calls)
        if teardown:
            teardown(name, repetition)
        return seconds

    return in_turn(comm, list(candidates), repeats, seconds_of)


def in_turn(
    comm: MPI.Comm,
    names: Sequence[Name],
    repeats: int,
    seconds_of: Callable[[Name, int], float],
) -> dict[Name, Times]:
    """The same, where seconds_of(name, repetition) gives a candidate's time on this rank."""
    times = np.zeros((len(names), repeats))
    # A call finds the caches as its predecessor left them (a quarter of the time at 1 MiB), and a
    # rotated order would keep every predecessor: so the order is shuffled, on all ranks alike.
    shuffle = np.random.default_rng(0)
    for repetition in range(repeats):
        for which in shuffle.permutation(len(names)):
            times[which, repetition] = seconds_of(names[which], repetition)
    collect(comm, times, MPI.MAX)
    return dict(zip(names, times))


def _timed(comm: MPI.Comm, function: Function, calls: int) -> float:
    comm.Barrier()
    start = perf_counter()
    for _ in range(calls):
        function()
    return (perf_counter() - start) / calls


def collect(comm: MPI.Comm, figures: "np.ndarray[Any, Any]", op: MPI.Op) -> None:
    """Reduce figures over all ranks, in place, by MPI's own call and not the one measured."""
    MPI.Comm.Allreduce(comm, MPI.IN_PLACE, figures, op)


def repeats_for(
    comm: MPI.Comm,
    candidates: Mapping[Name, Function],
    seconds: float,
    setup: Hook | None = None,
    teardown: Hook | None = None,
    calls: int = 1,
    least: int = 5,
) -> int:
    """How many repetitions fill `seconds`, the same number on all ranks. Collective.

    Each candidate runs twice: the first time binds plans and touches memory, the second is
    measured.
    """
    trial = alternate(comm, candidates, 2, setup, teardown, calls)
    return how_often({name: times[1] * calls for name, times in trial.items()}, seconds, least)


#: a time is the mean of several calls where one is shorter than so many seconds, but of no more
#: than this number
SHORT = 2e-3
MOST_CALLS = 20


def calls_per_time(once: Mapping[Any, float]) -> int:
    """How many calls one time is averaged over. once: {name: seconds of one call}."""
    return max(1, min(MOST_CALLS, int(SHORT / max(min(once.values()), 1e-9))))


def how_often(once: Mapping[Any, float], seconds: float, least: int = 5, most: int = 1000) -> int:
    """How many repetitions of all candidates fill `seconds`. once: what one of each takes."""
    return int(min(max(seconds / max(sum(once.values()), 1e-9), least), most))


def statistics(times: Times) -> dict[str, float]:
    """Median, minimum, 95th percentile, mean and maximum in microseconds."""
    median, p95 = np.percentile(times, (50, 95)) * 1e6
    figures = {
        "median_us": median,
        "min_us": times.min() * 1e6,
        "p95_us": p95,
        "mean_us": times.mean() * 1e6,
        "max_us": times.max() * 1e6,
    }
    return {name: round(float(value), 3) for name, value in figures.items()}
