"""Non-blocking collectives: a task that MPI sees as a generalized request."""

from collections.abc import Iterator, Sequence
from typing import Literal

from mpi4py import MPI

from ..buffers import Operand, device_of
from ..execute import LEFT_OVER, PROGRESS, Context, LowerCase, Record, Task


class Request(LowerCase, MPI.Grequest):
    """A collective in flight: Wait, Test, wait, test, and MPI.Request.Waitall, Waitany, Testall with MPI's own requests.

    The receive buffer is written before the request is complete. An error on the way, a timeout
    too, is raised by Wait and Test; MPI's own Waitall raises MPI.Exception, which says that a
    request failed, and prints the reason.
    """

    task: Task
    _is_known: bool

    def __new__(
        cls, context: Context, steps: Iterator[object], record: Record, operands: Sequence[Operand], track: int | None = None
    ) -> "Request":
        """operands: what the steps work on; their device is made current wherever these run. record: of the call."""

        def query(status: MPI.Status) -> None:
            status.Set_elements(MPI.BYTE, 0)
            status.Set_cancelled(False)
            LEFT_OVER.pop(new.task, None)
            new.task.raise_error()

        handle = MPI.Grequest.Start(query)
        new = super().__new__(cls, handle)
        new._is_known = True
        new.task = context.submit(steps, record, handle.Complete, device_of(operands), track=track)
        return new

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Run to the end; raises what went wrong on the way."""
        try:
            PROGRESS.wait(self.task)
        finally:
            self._retire(status)
        self._look_at_buffers()
        return True

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Make progress without blocking; True when done. Raises what went wrong on the way."""
        try:
            done = PROGRESS.test(self.task)
        finally:
            self._retire(status)
        if done:
            self._look_at_buffers()
        return done

    def _look_at_buffers(self) -> None:
        """Raise BufferError where they were written to while the call was under way."""
        guard, self.task.guard = self.task.guard, None
        if guard is not None:
            guard.check()

    def _retire(self, status: MPI.Status | None) -> None:
        """Have MPI forget the request where the call has ended; a signal handler may only have ended the wait for it.

        Not by MPI's Wait: it would call `query`, and what a signal handler raises there is lost.
        """
        if not self.task.ended:
            return
        is_known, self._is_known = self._is_known, False  # a signal handler may wait for it, too, just here
        if is_known and self != MPI.REQUEST_NULL:
            LEFT_OVER.pop(self.task, None)
            self.Free()
        if status is not None:
            status.Set_elements(MPI.BYTE, 0)
            status.Set_cancelled(False)
