"""Comparison of candidates at one size, with every result checked."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from ..algorithms import LIBRARIES
from ..measure import alternate, calls_per_time, collect, how_often, statistics
from .workload import Workload


class Candidate(NamedTuple):
    """A measured candidate: an algorithm with its segment size, or the call of a peer."""

    algorithm: str
    segment_bytes: int | None = None
    #: for a peer: a function of a workload that returns its call, or None if it cannot serve it
    make: Callable[[Workload], Callable[[], object] | None] | None = None
    #: a context for each call, outside of the measured time
    within: Callable[[], AbstractContextManager[object]] = nullcontext
    #: whether it is measured however slow it is
    always: bool = False

    def call(self, case: Workload) -> Callable[[], object] | None:
        """The function that is measured."""
        if self.make:
            return self.make(case)
        return case.call(self.algorithm, self.segment_bytes)


def compare(
    comm: Any,
    collective: str,
    candidates: Iterable[Candidate],
    nbytes: int,
    dtype: "np.dtype[Any]",
    seconds: float = 1.0,
    repeats: int | None = None,
    hopeless: float | None = None,
    least: int = 5,
    **options: Any,
) -> list[dict[str, Any]]:
    """A `bench --json` entry for each candidate at one size. Collective over a `Communicator`.

    seconds: for all candidates together, but at least `least` repetitions; unused with `repeats`.
    hopeless: skip candidates that are so many times slower than the fastest after two calls.
    options: of `Workload`. Before and after the measured calls a call of each candidate is checked,
    every element, on buffers with wrong values.
    """
    private = comm.Dup()  # freed with the plans and the scratch of this size
    case = Workload(private, collective, nbytes // dtype.itemsize, dtype, **options)
    calls = {}
    for candidate in candidates:
        call = candidate.call(case)
        if call is not None:
            calls[candidate] = call
    hooks = _Hooks(case, dict.fromkeys(calls, 0))
    times = hooks.checked(calls, 3)
    # the first call binds plans and touches memory
    times = {candidate: trial[1:] for candidate, trial in times.items()}
    once = {candidate: trial.min() for candidate, trial in times.items()}
    slowest = hopeless * min(once.values()) if hopeless else float("inf")
    rest = {
        candidate: call
        for candidate, call in calls.items()
        if candidate.always or once[candidate] <= slowest
    }
    # several calls are timed together, since a single short call finds cold caches; but calls of a
    # rooted collective would overlap
    several = 1 if case.collective.rooted else calls_per_time(once)
    costs = {candidate: several * once[candidate] for candidate in rest}
    repeats = repeats or how_often(costs, seconds, least)
    with np.errstate(all="ignore"):  # several calls in place are sums of sums
        times |= alternate(private, rest, repeats, hooks.setup, hooks.teardown, several)
    hooks.checked(rest, 1)
    counts = np.array(list(hooks.wrong.values()))
    collect(private, counts, MPI.SUM)
    entries = [
        _entry(case, candidate, times[candidate], int(count), candidate in rest)
        for candidate, count in zip(calls, counts)
    ]
    private.Free()
    return entries


class _Hooks:
    """Setup and checks around each measured call."""

    def __init__(self, case: Workload, wrong: dict[Candidate, int]) -> None:
        self.case = case
        #: the number of wrong elements of each candidate
        self.wrong = wrong
        self._stack = ExitStack()

    def setup(self, candidate: Candidate, repetition: int) -> None:
        self.case.prepare(poison=repetition == 0)
        self._stack.enter_context(candidate.within())

    def teardown(self, candidate: Candidate, repetition: int) -> None:
        self._stack.close()

    def check(self, candidate: Candidate, repetition: int) -> None:
        self.teardown(candidate, repetition)
        self.wrong[candidate] += self.case.wrong() if repetition == 0 else 0

    def checked(
        self, calls: dict[Candidate, Callable[[], object]], repeats: int
    ) -> dict[Candidate, Any]:
        """The times of calls; the first call is checked."""
        return alternate(self.case.comm, calls, repeats, self.setup, self.check)


def _entry(
    case: Workload, candidate: Candidate, times: Any, wrong: int, in_race: bool
) -> dict[str, Any]:
    result = statistics(times)
    algbw, busbw = case.rates(result["median_us"] / 1e6)
    return {
        "collective": case.collective.name,
        **({} if case.split == "even" else {"split": case.split}),
        "algorithm": candidate.algorithm,
        **_served(case, candidate),
        "bytes": case.nbytes,
        "count": case.count,
        "dtype": str(case.dtype),
        "op": case.op if case.collective.reduces else None,
        **result,
        "algbw": round(algbw, 6),
        "busbw": round(busbw, 6),
        "wrong": wrong,
        "repeats": len(times),
        **({} if in_race else {"hopeless": True}),
    }


def _served(case: Workload, candidate: Candidate) -> dict[str, Any]:
    """The segment size of the messages, and for `auto` the algorithm that it chose."""
    if candidate.make or candidate.algorithm in LIBRARIES:
        return {"segment_bytes": None}
    word, pieces = case.served_by(candidate.algorithm, candidate.segment_bytes)
    return {"segment_bytes": pieces, **({"chose": word} if candidate.algorithm == "auto" else {})}
