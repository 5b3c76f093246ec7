"""Candidates compared at one size, every result checked."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from ..algorithms import LIBRARIES
from ..measure import alternate, calls_per_time, collect, how_often, statistics
from .workload import Workload


class Candidate(NamedTuple):
    """A measured candidate: an algorithm with its segment size, or a peer made by a function.

    make(case): for what is no algorithm of ours; returns the function to call on the arguments of a
    `Workload`, or None where the peer cannot serve it. within: makes a context that each call runs
    in, which is not measured. always: it is measured as often as the fastest however slow it is.
    """

    algorithm: str
    segment_bytes: int | None = None
    make: Callable[[Workload], Callable[[], object] | None] | None = None
    within: Callable[[], AbstractContextManager[object]] = nullcontext
    always: bool = False


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
    """A `bench --json` entry for each candidate at one size, checked. Collective over a
    `Communicator`.

    seconds: for all candidates together, but `least` repetitions, unless `repeats` is given.
    hopeless: measure no more than twice what is then so many times slower than the fastest.
    options: of `Workload`. Before and after the measured calls one of each candidate is checked,
    every element, on buffers that were wrong before.
    """
    private = comm.Dup()  # freed with the plans and the scratch of this size
    case = Workload(private, collective, nbytes // dtype.itemsize, dtype, **options)
    made = {
        candidate: (
            candidate.make(case)
            if candidate.make
            else case.call(candidate.algorithm, candidate.segment_bytes)
        )
        for candidate in candidates
    }
    calls = {candidate: call for candidate, call in made.items() if call}
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
    # of the same: a lone short call finds the caches cold; but one of a rooted collective would
    # overlap the next
    several = 1 if case.collective.rooted else calls_per_time(once)
    repeats = repeats or how_often(
        {candidate: several * once[candidate] for candidate in rest}, seconds, least
    )
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
    """Setup and checks around each measured call. wrong: wrong elements of each candidate."""

    def __init__(self, case: Workload, wrong: dict[Candidate, int]) -> None:
        self.case = case
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
        """Times of calls of which the first is checked."""
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
    """The pieces that messages were cut into, and for `auto` what it chose."""
    if candidate.make or candidate.algorithm in LIBRARIES:
        return {"segment_bytes": None}
    word, pieces = case.served_by(candidate.algorithm, candidate.segment_bytes)
    return {"segment_bytes": pieces, **({"chose": word} if candidate.algorithm == "auto" else {})}
