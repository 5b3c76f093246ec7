"""An allreduce in two halves: a rank sees the sums of its shard before they are sent to all."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from ...communicator import Plan
from ...support.arrays import Array


class Duration(NamedTuple):
    """When a collective was in flight."""

    begun: float
    ended: float


class AllreduceInHalves:
    """A persistent collective: a reduce-scatter, and after it an allgather of what it has summed.

    Parameters
    ----------
    scatter, gather : Plan
        The halves. That of the allgather is made on a communicator of its own.
    sums : array
        Where the first half leaves what the second one sends.
    between : callable
        Brings the sums to where they are gathered from.
    waiting : deque
        The collectives that are in their first half: their second halves are started in this order,
        which is the same on all ranks.
    """

    def __init__(
        self,
        scatter: Plan,
        gather: Plan,
        sums: Array,
        between: Callable[[], object],
        waiting: deque[AllreduceInHalves],
    ) -> None:
        self._scatter = scatter
        self._gather = gather
        self._sums = sums
        self._between = between
        self._waiting = waiting

    def Start(self) -> None:
        """Begin the first half."""
        self._scatter.Start()
        self._waiting.append(self)

    def Wait(self) -> None:
        """Wait for both halves, and for the first halves of the others."""
        while self._waiting:
            self._waiting[0]._scatter.Wait()
            self._waiting.popleft()._proceed()
        self._gather.Wait()

    def Free(self) -> None:
        """Free both."""
        self._scatter.Free()
        self._gather.Free()

    def _proceed(self) -> None:
        self._between()
        self._gather.Start()

    @property
    def in_flight(self) -> bool:
        """Whether it was started and not awaited."""
        halves = (self._scatter, self._gather)
        return any(getattr(half, "in_flight", False) for half in halves)

    @property
    def nbytes(self) -> int:
        """Bytes that this rank sends."""
        return sum(getattr(half, "nbytes", 0) for half in (self._scatter, self._gather))

    @property
    def scratch(self) -> int:
        """Bytes that it holds beside its buffers."""
        halves = (self._scatter, self._gather)
        return self._sums.nbytes + sum(getattr(half, "scratch", 0) for half in halves)

    @property
    def task(self) -> Duration | None:
        """From the start of the first half to the end of the second, where that is known."""
        first = getattr(self._scatter, "task", None)
        second = getattr(self._gather, "task", None)
        return Duration(first.begun, second.ended) if first and second else None


def proceed(waiting: deque[AllreduceInHalves]) -> None:
    """Start the second halves of those whose first has ended. Local."""
    while waiting and waiting[0]._scatter.Test():
        waiting.popleft()._proceed()
