"""What each training step costs on this rank: seconds and bytes."""

from contextlib import contextmanager
from statistics import median, median_low
from time import perf_counter

from .arrays import synchronize

#: what is kept of each step
FIELDS = ("step_s", "compute_s", "communication_s", "exposed_s", "bytes", "data_bytes")


class Meter:
    """Clocks and byte counters around the phases of a step.

    Communication includes waiting for ranks that compute longer. Bytes are those this rank hands to MPI in schedules
    (`comm.sent`); `estimate` replaces them where MPI's own calls move the data and cannot be counted.
    """

    def __init__(self, comm, module, estimate=None):
        self._comm, self._module, self._estimate = comm, module, estimate
        self.steps = []

    @contextmanager
    def step(self):
        """Around one step: its phases are added up, and the sums appended to `steps`."""
        self._now = dict.fromkeys(FIELDS, 0)
        begin = perf_counter()
        yield
        self._now["step_s"] = perf_counter() - begin
        if self._estimate is not None:
            self._now["bytes"] = self._estimate
        self.steps.append(self._now)

    @contextmanager
    def _phase(self, seconds, sent=None):
        before, begin = self._comm.sent[1], perf_counter()
        yield
        synchronize(self._module)
        spent = perf_counter() - begin
        for name in seconds:
            self._now[name] += spent
        if sent:
            self._now[sent] += self._comm.sent[1] - before

    def computing(self):
        """Around arithmetic."""
        return self._phase(["compute_s"])

    def communicating(self):
        """Around the exchange of gradients or parameters while nothing is computed."""
        return self._phase(["communication_s", "exposed_s"], "bytes")

    def feeding(self):
        """Around sending samples to the ranks while nothing is computed."""
        return self._phase(["communication_s", "exposed_s"], "data_bytes")

    def total(self, field, start=0):
        """Sum of a field over the steps from number `start` on."""
        return sum(step[field] for step in self.steps[start:])

    def typical(self, field):
        """Median of a field over the steps; of bytes, one that occurred."""
        values = [step[field] for step in self.steps]
        return (median_low if field.endswith("bytes") else median)(values)
