"""Non-blocking collectives: a task that MPI sees as a generalized request."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from mpi4py import MPI

from ..buffers import Operand, device_of
from ..execute import LEFT_OVER, Context, LowerCase, clear_status
from ..failure import Record
from ..progress import PROGRESS, Task

#: begins a task with a call's context, steps, record, operands and track; returns what the caller
#: waits for
Submit = Callable[[Context, Iterator[object], Record, Sequence[Operand], int | None], object]


class Request(LowerCase, MPI.Grequest):
    """A collective in flight: Wait, Test, wait, test; also MPI.Request.Waitall, Waitany, Testall.

    The receive buffer is written before the request is complete. Wait and Test raise errors of
    the call, timeouts too; MPI's own Waitall raises MPI.Exception, which says that a request
    failed, and prints the reason.
    """

    task: Task
    #: whether MPI still has the request
    _is_active: bool

    def __new__(
        cls, context: Context, steps: Iterator[object], record: Record,
        operands: Sequence[Operand], track: int | None = None,
    ) -> "Request":  # fmt: skip
        """A `Submit`. The device of the operands is current in any thread that runs the steps."""

        def query(status: MPI.Status) -> None:
            status.Set_elements(MPI.BYTE, 0)
            status.Set_cancelled(False)
            LEFT_OVER.pop(new.task, None)
            new.task.raise_error()

        handle = MPI.Grequest.Start(query)  # quirk: waitall-beside-null
        new = super().__new__(cls, handle)
        new._is_active = True
        device = device_of(operands)
        new.task = context.submit(steps, record, handle.Complete, device, track=track)
        return new

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Wait for the end; raises an error of the call."""
        try:
            PROGRESS.wait(self.task)
        finally:
            self._retire(status)
        self._check_buffers()
        return True

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Make progress without blocking; True when done. Raises an error of the call."""
        try:
            done = PROGRESS.test(self.task)
        finally:
            self._retire(status)
        if done:
            self._check_buffers()
        return done

    def _check_buffers(self) -> None:
        """Raise BufferError where the user wrote to them before this wait."""
        guard = self.task.guard
        self.task.guard = None
        if guard is not None:
            guard.check()

    def _retire(self, status: MPI.Status | None) -> None:
        """Free MPI's request if the call has ended: a signal handler may have ended just the wait.

        MPI's Wait would call `query`, where an error of a signal handler is lost.
        """
        if not self.task.ended:
            return
        # one statement: a signal handler may wait for the request, too
        is_active, self._is_active = self._is_active, False
        if is_active and self != MPI.REQUEST_NULL:
            LEFT_OVER.pop(self.task, None)
            self.Free()
        clear_status(status)
