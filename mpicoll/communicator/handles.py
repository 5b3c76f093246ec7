"""What non-blocking and persistent calls return, for annotations: `Request` and `Plan`."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, runtime_checkable

from mpi4py import MPI

#: the result of a non-blocking call, which MPI's Waitall, Waitany and Testall accept
Request: TypeAlias = MPI.Request


@runtime_checkable
class Plan(Protocol):
    """A persistent collective, bound to its buffers: Start(), Wait() or Test(); at last Free().

    It may be started any number of times. As with MPI's persistent collectives, ranks make the
    plans of a communicator in the same order, and may start them and wait for them in different
    orders. Where ranks are found to do that, the first waits take 50 ms longer.
    """

    def Start(self) -> None:
        """Take the input and begin; RuntimeError where it is in flight, or was freed."""

    def Wait(self, status: MPI.Status | None = None) -> bool:
        """Run to the end: the result is in the caller's buffer. True; at once without Start."""
        ...

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Make progress without blocking; True when done."""
        ...

    def Free(self) -> None:
        """Free what the plan holds of MPI's; RuntimeError where it is in flight."""

    def wait(self, status: MPI.Status | None = None) -> Any:
        """`Wait`; None, because a collective has no object to return."""

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any]:
        """`Test`; (done, None)."""
        ...
