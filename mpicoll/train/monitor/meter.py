"""What each training step costs on this rank: seconds and bytes, and on request a timeline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median, median_low
from time import perf_counter
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from ...support.events import Event
from .clock import Mark, clock_of

if TYPE_CHECKING:
    from ...communicator import Communicator

#: of a step, by the names of FIELDS: seconds and bytes
Sums: TypeAlias = dict[str, float]

#: what is kept of each step
FIELDS = ("step_s", "compute_s", "communication_s", "exposed_s", "bytes", "data_bytes")
#: steps back to which a transfer still counts: it may have begun in an earlier step, and be
#: reported in a later one
_LATE = 4
#: steps that `summary_of_ranks` compares
_COMPARED = 1000


class Meter:
    """Clocks and byte counters around the phases of a step, in seconds of `perf_counter`.

    `step_s`: the whole step. `compute_s`: the phases of arithmetic. `communication_s`: during which
    anything was being moved, with or without computation beside it, waiting for ranks that compute
    longer included. `exposed_s`: during which the main thread stood still for it. `bytes`:
    gradients and parameters this rank hands to MPI in schedules; `estimate` replaces them where
    MPI's own calls move the data and cannot be counted. `data_bytes`: samples.

    Phases may nest; each counts only the time that is not spent in phases inside it. Outside `step`
    they count nowhere. With `tracing` set, `events` gets an `Event` for each, of kind step,
    compute, wait or communication. A phase costs about a microsecond. All but `in_flight` is for
    the main thread.

    A device computes what it was asked for later, in the current stream. While it does, what the
    main thread waits for is no exposed communication but computation ("device" in a timeline), and
    a collective is in flight only from when its input is there. The host waits for the device at
    the end of a step, and nowhere else.
    """

    def __init__(self, comm: Communicator, module: ModuleType, estimate: int | None = None) -> None:
        self._comm = comm
        self.estimate = estimate
        self._clock = clock_of(module)
        self._steps: list[Sums] = []
        self._recent: list[_Step] = []
        self._now: Sums = dict.fromkeys(FIELDS, 0)
        self._inner = 0.0
        self.tracing = False
        self.events: list[Event] = []
        self.ranks: dict[str, Any] | None = None
        #: steps after which what they cost repeats
        self.period = 1

    def adopt(self, other: Meter, steps: int) -> None:
        """Continue another meter, of a strategy that ended, after its first `steps` steps."""
        self._steps = other.steps[:steps]
        self.tracing = other.tracing
        self.events = other.events

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around one step: sums of its phases are appended to `steps`, unless it raises."""
        outside = self._now
        self._now = dict.fromkeys(FIELDS, 0)
        current = _Step(self._now, perf_counter())
        self._recent = [*self._brought_up_to_date()[1 - _LATE :], current]
        try:
            yield
            self._settle()
            current.end = perf_counter()
            self._close(current)
        finally:
            self._now = outside

    def _close(self, step: _Step) -> None:
        step.sums["step_s"] = step.end - step.begin
        if self.estimate is not None:
            step.sums["bytes"] = self.estimate
        if self.tracing:
            self.events.append(Event("step", f"step {len(self._steps)}", step.begin, step.end))
        self._steps.append(step.sums)

    def _settle(self) -> None:
        """The step ends when the device has done it: the only time that the meter waits for it."""
        begin = perf_counter()
        if self._clock.settle():
            self._computed("device", begin, perf_counter())

    def _computed(self, name: str, begin: float, end: float) -> None:
        """A device computed, while the main thread had nothing to do."""
        self._now["compute_s"] += end - begin
        if self.tracing and end > begin:
            self.events.append(Event("compute", name, begin, end))

    def mark(self) -> Mark:
        """The arithmetic asked for until now, the input of the next collective: for `in_flight`."""
        return self._clock.mark()

    def computing(self, name: str = "compute") -> _Computing:
        """Around arithmetic."""
        return _Computing(self, name)

    def waiting(self, name: str = "wait") -> _Waiting:
        """Around waiting for a non-blocking collective: exposed communication."""
        return _Waiting(self, name)

    def communicating(self, name: str = "communicate") -> _Blocking:
        """Around blocking collectives of gradients or parameters: exposed communication.

        No other one is in flight.
        """
        return _Blocking(self, name, "bytes")

    def loading(self, name: str = "samples") -> _Blocking:
        """Around sending samples to the ranks by blocking collectives: exposed communication."""
        return _Blocking(self, name, "data_bytes")

    def in_flight(self, name: str, begin: float, end: float, after: Mark = None) -> None:
        """A non-blocking collective was in flight from `begin` to `end`, seconds of perf_counter.

        after: a `mark` of arithmetic that it first waited for, if there is one. Each step gets the
        part inside it. Call it at the latest in the step after the one in which it ended; what lies
        four steps back is no longer counted. Any thread may call it.
        """
        if after is not None:
            begin = min(max(begin, self._clock.done(after)), end)
        for step in self._recent[::-1]:
            step.transfers.append((begin, end))
            if begin >= step.begin:
                break
        if self.tracing:
            self.events.append(Event("communication", name, begin, end))

    def count(self, nbytes: int) -> None:
        """Add bytes of gradients or parameters that non-blocking collectives of this step send."""
        self._now["bytes"] += nbytes

    def _brought_up_to_date(self) -> list[_Step]:
        """The recent steps, their `communication_s` with the transfers known by now."""
        for step in self._recent:
            step.sums["communication_s"] = _covered(step.transfers, step.begin, step.end)
        return self._recent

    @property
    def steps(self) -> list[Sums]:
        """A dict of FIELDS per finished step, in order."""
        self._brought_up_to_date()
        return self._steps

    def total(self, field: str, start: int = 0) -> float:
        """Sum of a field over the steps from number `start` on."""
        return sum(step[field] for step in self.steps[start:])

    def typical(self, field: str, start: int = 0, stop: int | None = None) -> float:
        """Median of a field over the steps start to stop; of bytes, one that occurred."""
        values = self._values(field, start, stop)
        return median_low(values) if field.endswith("bytes") else median(values)

    def _values(self, field: str, start: int = 0, stop: int | None = None) -> Sequence[float]:
        """A field of each step; where steps differ by turns, means over whole turns of them."""
        values = [step[field] for step in self.steps[start:stop]]
        if self.period == 1:
            return values
        begins = range(0, max(1, len(values) - self.period + 1), self.period)
        turns = [values[begin : begin + self.period] for begin in begins]
        means = [sum(turn) / len(turn) for turn in turns]
        return list(map(round, means)) if field.endswith("bytes") else means

    def hidden(self, start: int = 0, stop: int | None = None) -> float | None:
        """Which part of the communication that computation could hide was hidden.

        In the steps start to stop.

        Medians over the steps: (communication - exposed) / min(compute, communication), from 0 to
        1; None where nothing was computed or communicated, there are no such steps, or MPI's own
        calls moved the data: they do not say when they were done, only that they were when they
        were awaited. `start` may be negative: the last steps.
        """
        steps = self.steps[start:stop]
        if not steps or self.estimate is not None:
            return None
        communication, exposed = (
            self._values(field, start, stop) for field in ("communication_s", "exposed_s")
        )
        hideable = min(self.typical("compute_s", start, stop), median(communication))
        hidden = median(max(0.0, whole - part) for whole, part in zip(communication, exposed))
        return min(1.0, hidden / hideable) if hideable else None

    def summary_of_ranks(self) -> dict[str, Any]:
        """Compare the ranks' last 1,000 steps; the result is kept in `ranks`.

        Collective: an allgather of their seconds.

        `compute_min_s`, `compute_median_s`, `compute_max_s`: of the ranks' median seconds of
        computing per step; `slowest_rank` has the last of them. `waiting_s`: median over the steps
        of how much longer the rank that computed longest did so than this rank: exposed time that
        is waiting for that rank, not for the network. All ranks have made the same number of steps,
        at least one.
        """
        everyone = self._comm.allgather([step["compute_s"] for step in self._steps[-_COMPARED:]])
        mine = everyone[self._comm.Get_rank()]
        medians = [median(seconds) for seconds in everyone]
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

    __slots__ = ("sums", "begin", "end", "transfers")

    def __init__(self, sums: Sums, begin: float) -> None:
        self.sums = sums
        self.begin = begin
        self.end = float("inf")
        self.transfers: list[tuple[float, float]] = []


class _Phase:
    """Base of the `with` blocks: a class, because a generator costs twice as much."""

    __slots__ = ("meter", "name", "begin", "end", "outer")

    def __init__(self, meter: Meter, name: str) -> None:
        self.meter = meter
        self.name = name

    def __enter__(self) -> None:
        self.outer = self.meter._inner
        self.meter._inner = 0.0
        self.begin = perf_counter()

    def stop(self) -> float:
        """Read the clock; return the seconds that were not spent in phases inside this one."""
        meter = self.meter
        self.end = perf_counter()
        spent = self.end - self.begin
        own = spent - meter._inner
        meter._inner = self.outer + spent
        return own

    def trace(self, kind: str) -> None:
        if self.meter.tracing:
            self.meter.events.append(Event(kind, self.name, self.begin, self.end))


class _Computing(_Phase):
    __slots__ = ()

    def __exit__(self, *error: object) -> None:
        self.meter._now["compute_s"] += self.stop()
        self.trace("compute")


class _Waiting(_Phase):
    """Waiting is exposed only after the device has computed all that was asked for."""

    __slots__ = ("asked",)

    def __enter__(self) -> None:
        super().__enter__()
        self.asked = self.meter._clock.mark()

    def __exit__(self, *error: object) -> None:
        meter = self.meter
        own = self.stop()
        busy = min(max(0.0, meter._clock.done(self.asked) - self.begin), own)
        if busy:
            meter._computed("device", self.begin, self.begin + busy)
            self.begin += busy
        meter._now["exposed_s"] += own - busy
        self.trace("wait")


class _Blocking(_Waiting):
    __slots__ = ("counter", "before")

    def __init__(self, meter: Meter, name: str, counter: str) -> None:
        super().__init__(meter, name)
        self.counter = counter

    def __enter__(self) -> None:
        self.before = self.meter._comm.sent[1]
        super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        meter = self.meter
        meter._now[self.counter] += meter._comm.sent[1] - self.before
        meter.in_flight(self.name, self.begin, self.end)


def _covered(intervals: Iterable[tuple[float, float]], begin: float, end: float) -> float:
    """Seconds between `begin` and `end` that lie in at least one of the intervals (pairs)."""
    covered = 0.0
    reached = begin
    for start, stop in sorted(intervals):
        start = max(start, reached)
        stop = min(stop, end)
        if stop > start:
            covered = covered + (stop - start)
            reached = stop
    return covered
