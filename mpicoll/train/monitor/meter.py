"""What each training step costs on this rank: seconds and bytes, and on request a timeline."""

from contextlib import contextmanager
from statistics import median, median_low
from time import perf_counter

from ...support.arrays import synchronize

#: what is kept of each step
FIELDS = ("step_s", "compute_s", "communication_s", "exposed_s", "bytes", "data_bytes")
#: steps back to which a flight still counts: it may have begun in an earlier step, and be reported in a later one
_LATE = 4
#: steps that `summary_of_ranks` compares
_COMPARED = 1000


class Meter:
    """Clocks and byte counters around the phases of a step; all times are those of `time.perf_counter`, in seconds.

    `step_s`: the whole step. `compute_s`: the phases of arithmetic. `communication_s`: during which anything was being
    moved, with or without computation beside it, waiting for ranks that compute longer included. `exposed_s`: during
    which the main thread stood still for it. `bytes`: gradients and parameters this rank hands to MPI in schedules;
    `estimate` replaces them where MPI's own calls move the data and cannot be counted. `data_bytes`: samples.

    Phases may nest; each counts only the time that is not spent in phases inside it. Outside `step` they count nowhere.
    With `tracing` set, `events` gets (track, name, begin, end) of each; tracks: step, compute, wait, communication.
    A phase costs about a microsecond. All but `flew` is for the main thread.
    """

    def __init__(self, comm, module, estimate=None):
        self._comm, self._estimate = comm, estimate
        # asked once: looking for a missing attribute of a module takes microseconds
        self._device = module if hasattr(module, "cuda") else None
        self._steps, self._recent = [], []
        self._now, self._inner = dict.fromkeys(FIELDS, 0), 0.0
        self.tracing, self.events, self.ranks = False, [], None

    @contextmanager
    def step(self):
        """Around one step: its phases are added up, and the sums appended to `steps`, unless an exception ends it."""
        outside, self._now = self._now, dict.fromkeys(FIELDS, 0)
        current = _Step(self._now, perf_counter())
        self._recent = [*self._settled()[1 - _LATE:], current]
        try:
            yield
            current.end = perf_counter()
            self._close(current)
        finally:
            self._now = outside

    def _close(self, step):
        step.sums["step_s"] = step.end - step.begin
        if self._estimate is not None:
            step.sums["bytes"] = self._estimate
        if self.tracing:
            self.events.append(("step", f"step {len(self._steps)}", step.begin, step.end))
        self._steps.append(step.sums)

    def computing(self, name="compute"):
        """Around arithmetic."""
        return _Computing(self, name)

    def waiting(self, name="wait"):
        """Around waiting for a non-blocking collective: exposed communication."""
        return _Waiting(self, name)

    def communicating(self, name="communicate"):
        """Around blocking collectives of gradients or parameters, with no other one in flight: exposed communication."""
        return _Blocking(self, name, "bytes")

    def feeding(self, name="samples"):
        """Around sending samples to the ranks by blocking collectives: exposed communication."""
        return _Blocking(self, name, "data_bytes")

    def flew(self, name, begin, end):
        """A non-blocking collective was in flight from `begin` to `end`, seconds of perf_counter.

        Each step gets the part inside it. Call it at the latest in the step after the one in which the flight ended; what
        lies four steps back is no longer counted. Any thread may call it.
        """
        for step in self._recent[::-1]:
            step.flights.append((begin, end))
            if begin >= step.begin:
                break
        if self.tracing:
            self.events.append(("communication", name, begin, end))

    def count(self, nbytes):
        """Add bytes of gradients or parameters handed to MPI by non-blocking collectives in this step."""
        self._now["bytes"] += nbytes

    def _settled(self):
        """The recent steps, their `communication_s` brought up to date with the flights known by now."""
        for step in self._recent:
            step.sums["communication_s"] = _covered(step.flights, step.begin, step.end)
        return self._recent

    @property
    def steps(self):
        """A dict of FIELDS per finished step, in order."""
        self._settled()
        return self._steps

    def total(self, field, start=0):
        """Sum of a field over the steps from number `start` on."""
        return sum(step[field] for step in self.steps[start:])

    def typical(self, field, start=0, stop=None):
        """Median of a field over the steps start to stop (default: all); of bytes, one that occurred."""
        values = [step[field] for step in self.steps[start:stop]]
        return (median_low if field.endswith("bytes") else median)(values)

    def hidden(self, start=0, stop=None):
        """Which part of the communication that computation could hide was hidden in the steps start to stop.

        Medians over the steps: (communication - exposed) / min(compute, communication), from 0 to 1; None where nothing
        was computed or communicated, or there are no such steps. `start` may be negative: the last steps.
        """
        steps = self.steps[start:stop]
        if not steps:
            return None
        hideable = min(self.typical(field, start, stop) for field in ("compute_s", "communication_s"))
        hidden = median(max(0.0, step["communication_s"] - step["exposed_s"]) for step in steps)
        return min(1.0, hidden / hideable) if hideable else None

    def summary_of_ranks(self):
        """Compare the ranks' last 1,000 steps; the result is kept in `ranks`. Collective: an allgather of their seconds.

        `compute_min_s`, `compute_median_s`, `compute_max_s`: of the ranks' median seconds of computing per step;
        `slowest_rank` has the last of them. `waiting_s`: median over the steps of how much longer the rank that computed
        longest did so than this rank: exposed time that is waiting for that rank, not for the network.
        All ranks have made the same number of steps, at least one.
        """
        everyone = self._comm.allgather([step["compute_s"] for step in self._steps[-_COMPARED:]])
        mine, medians = everyone[self._comm.Get_rank()], [median(seconds) for seconds in everyone]
        self.ranks = {
            "compute_min_s": min(medians),
            "compute_median_s": median(medians),
            "compute_max_s": max(medians),
            "slowest_rank": medians.index(max(medians)),
            "waiting_s": median(max(step) - own for step, own in zip(zip(*everyone), mine)),
        }
        return self.ranks


class _Step:
    """Sums of a step, its begin and end, and when collectives were in flight."""

    __slots__ = ("sums", "begin", "end", "flights")

    def __init__(self, sums, begin):
        self.sums, self.begin, self.end, self.flights = sums, begin, float("inf"), []


class _Phase:
    """Base of the `with` blocks: a class, because a generator costs twice as much."""

    __slots__ = ("meter", "name", "begin", "end", "outer")

    def __init__(self, meter, name):
        self.meter, self.name = meter, name

    def __enter__(self):
        self.outer, self.meter._inner = self.meter._inner, 0.0
        self.begin = perf_counter()

    def stop(self):
        """Read the clock; return the seconds that were not spent in phases inside this one."""
        meter, self.end = self.meter, perf_counter()
        spent = self.end - self.begin
        own, meter._inner = spent - meter._inner, self.outer + spent
        return own

    def trace(self, track):
        if self.meter.tracing:
            self.meter.events.append((track, self.name, self.begin, self.end))


class _Computing(_Phase):
    __slots__ = ()

    def __exit__(self, *error):
        if self.meter._device:
            synchronize(self.meter._device)
        self.meter._now["compute_s"] += self.stop()
        self.trace("compute")


class _Waiting(_Phase):
    __slots__ = ()

    def __exit__(self, *error):
        self.meter._now["exposed_s"] += self.stop()
        self.trace("wait")


class _Blocking(_Phase):
    __slots__ = ("counter", "before")

    def __init__(self, meter, name, counter):
        super().__init__(meter, name)
        self.counter = counter

    def __enter__(self):
        self.before = self.meter._comm.sent[1]
        super().__enter__()

    def __exit__(self, *error):
        meter = self.meter
        if meter._device:
            synchronize(meter._device)
        meter._now["exposed_s"] += self.stop()
        meter._now[self.counter] += meter._comm.sent[1] - self.before
        self.trace("wait")
        meter.flew(self.name, self.begin, self.end)


def _covered(intervals, begin, end):
    """Seconds between `begin` and `end` that lie in at least one of the intervals (pairs)."""
    covered, reached = 0, begin
    for start, stop in sorted(intervals):
        start, stop = max(start, reached), min(stop, end)
        if stop > start:
            covered, reached = covered + (stop - start), stop
    return covered
