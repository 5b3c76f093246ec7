"""The collectives of a training that are in flight, with their times for the meter."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter
from typing import NamedTuple, Protocol, TypeAlias

from mpi4py import MPI

from ...errors import MpicollError
from ..monitor import Mark, Meter


class PersistentCollective(Protocol):
    """What `Allreduce_init` and its like return."""

    def Start(self) -> object: ...

    def Wait(self) -> object: ...

    def Free(self) -> object: ...


#: one that is started and awaited; or a blocking call, where nothing is done meanwhile
Collective: TypeAlias = PersistentCollective | Callable[[], object]


class _Started(NamedTuple):
    plan: PersistentCollective
    time: float
    needed: Mark


class InFlight:
    """Collectives by name: `start` one, and later `wait` for it."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._started: dict[str, _Started] = {}

    def __len__(self) -> int:
        return len(self._started)

    def __contains__(self, name: str) -> bool:
        return name in self._started

    def start(self, name: str, collective: Collective) -> bool:
        """Whether it is in flight now; a blocking one is done."""
        if callable(collective):
            with self._meter.communicating(name):
                collective()
            return False
        self._started[name] = _Started(collective, perf_counter(), self._meter.mark())
        self._meter.count(getattr(collective, "nbytes", 0))
        collective.Start()
        return True

    def wait(self, name: str) -> bool:
        """Whether there was something to wait for."""
        started = self._started.get(name)
        if started is None:
            return False
        try:
            with self._meter.waiting(name):
                started.plan.Wait()
        except (MpicollError, MPI.Exception):  # else it is in flight as before
            del self._started[name]
            raise
        del self._started[name]
        # MPI's own request has no task: it is known when it was started and awaited
        task = getattr(started.plan, "task", None)
        begun, ended = (task.begun, task.ended) if task else (started.time, perf_counter())
        self._meter.in_flight(name, begun, ended, after=started.needed)
        return True


def free(collectives: Iterable[Collective | None]) -> None:
    """Free the plans of an owner that is gone, or at exit, when those in flight cannot be."""
    for collective in collectives:
        if collective is None or callable(collective):
            continue
        if not getattr(collective, "in_flight", False):
            collective.Free()
