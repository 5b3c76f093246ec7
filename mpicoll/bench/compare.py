"""Comparison of candidates at one size, with every result checked."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from ..algorithms import LIBRARIES
from ..errors import ArgumentError
from ..measure import alternate, calls_per_time, collect, how_often, statistics
from .gaussian import Errors, GaussianWorkload
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
    #: the codes that its messages may have, by name
    compression: str = ""

    @property
    def asked(self) -> tuple[str, int | None, str | None]:
        """The arguments of `Workload.call`."""
        return self.algorithm, self.segment_bytes, self.compression or None

    def call(self, case: Workload) -> Callable[[], object] | None:
        """The function that is measured."""
        if self.make:
            return self.make(case)
        return case.call(*self.asked)


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

    MPI's own call has none where it cannot serve the data.

    seconds: for all candidates together, but at least `least` repetitions; unused with `repeats`.
    hopeless: skip candidates that are so many times slower than the fastest after two calls.
    options: of `Workload`. Before and after the measured calls a call of each candidate is checked,
    every element, on buffers with wrong values. Compressed ones have normally distributed data, and
    an element is wrong where it is off by more than the compression's bound.
    """
    candidates = list(candidates)
    private = comm.Dup()  # freed with the plans and the scratch of this size
    count = nbytes // dtype.itemsize
    case = Workload(private, collective, count, dtype, **options)
    inexact = None
    if any(candidate.compression for candidate in candidates):
        inexact = GaussianWorkload(private, collective, count, dtype, **options)
    calls = {}
    cases: dict[Candidate, Workload] = {}
    for candidate in candidates:
        own = inexact if inexact is not None and candidate.compression else case
        call = candidate.call(own)
        if call is not None:
            calls[candidate] = call
            cases[candidate] = own
    if not calls:
        raise ArgumentError(
            f"no candidate can serve {case.collective.name} of {dtype}: name an algorithm of"
            " mpicoll, or auto"
        )
    hooks = _Hooks(private, cases)
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
        _entry(cases[candidate], candidate, times[candidate], int(wrong), candidate in rest)
        | hooks.compressed_entry(candidate)
        for candidate, wrong in zip(calls, counts)
    ]
    private.Free()
    return entries


class _Hooks:
    """Setup and checks around each measured call."""

    def __init__(self, comm: Any, cases: dict[Candidate, Workload]) -> None:
        self._comm = comm
        self._cases = cases
        #: the number of wrong elements of each candidate on this rank
        self.wrong = dict.fromkeys(cases, 0)
        #: of compressed candidates, the errors of each checked call
        self._errors: dict[Candidate, list[Errors]] = {each: [] for each in cases}
        self._stack = ExitStack()

    def setup(self, candidate: Candidate, repetition: int) -> None:
        self._cases[candidate].prepare(poison=repetition == 0)
        self._stack.enter_context(candidate.within())

    def teardown(self, candidate: Candidate, repetition: int) -> None:
        self._stack.close()

    def check(self, candidate: Candidate, repetition: int) -> None:
        self.teardown(candidate, repetition)
        if repetition:
            return
        case = self._cases[candidate]
        if isinstance(case, GaussianWorkload):
            errors = case.errors(*candidate.asked)
            self._errors[candidate].append(errors)
            self.wrong[candidate] += 0 if case.rank else errors.wrong  # already of all ranks
        else:
            self.wrong[candidate] += case.wrong()

    def checked(
        self, calls: dict[Candidate, Callable[[], object]], repeats: int
    ) -> dict[Candidate, Any]:
        """The times of calls; the first call is checked."""
        return alternate(self._comm, calls, repeats, self.setup, self.check)

    def compressed_entry(self, candidate: Candidate) -> dict[str, Any]:
        """What an entry says of compression and of the largest errors; nothing of other calls."""
        case = self._cases[candidate]
        if not isinstance(case, GaussianWorkload):
            return {}
        largest, rms, of_bound, _ = map(max, zip(*self._errors[candidate]))
        return {
            "compression": candidate.compression,
            "quantisations": case.quantisations(*candidate.asked),
            "max_error": largest,
            "rms_error": rms,
            "of_bound": round(of_bound, 4),
        }


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
        "count": case.nbytes // case.dtype.itemsize,
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
    word, pieces = case.served_by(*candidate.asked)[:2]
    return {"segment_bytes": pieces, **({"chose": word} if candidate.algorithm == "auto" else {})}
