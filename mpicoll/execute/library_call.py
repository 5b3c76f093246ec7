"""Calls that a library serves, MPI itself or NCCL: made at once, begun, or kept as a plan."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from mpi4py import MPI

from ..failure import ABANDONED, Record
from ..support.callsite import call_site
from .operation import Operation
from .staging import Staging


class LibraryCall(Staging, Operation):
    """A collective that a library serves: packs before it if need be, unpacks when it is done."""

    #: whose call it is, for a person
    owner: ClassVar[str]
    algorithm: ClassVar[str]

    def __init__(self, call: Any) -> None:
        """call: a `calls.Call`."""
        super().__init__()
        self.context = call.context
        self.name = f"{call.method} ({self.algorithm})"
        self.text = call.text
        #: operands that are packed must live as long as the call
        self.owned = call.operands
        #: of a plan: MPI's own, or the request of its last call
        self._request: Any = MPI.REQUEST_NULL
        #: of a plan that was started, or a blocking call, that this rank has to wait for
        self._record: Record | None = None
        self._freed = False

    def _issue(self) -> Any:
        """Begin the call on memory that is packed; returns the request."""
        raise NotImplementedError

    @property
    def staged(self) -> bool:
        """Whether something has to happen before or after it."""
        return bool(self.packing or self.unpacking)

    def begin(self) -> Any:
        """Begin the call, in program order; `run_as_task` does what is left to do."""
        self.pack()
        return self._issue()

    def run_as_task(self, request: Any) -> Iterator[Any]:
        """What is left to do of a call that has begun, for a `Task`."""
        while not request.Test():
            yield request
        self.unpack()

    # As a plan.

    def Start(self) -> None:
        """Pack and start."""
        self._require_startable()  # packing would overwrite what arrives
        record = self._recorded(Record(self.context.recorder), call_site())
        try:
            self.pack()
            with self.context.explaining():
                self._start()
        except BaseException:
            record.end()
            raise
        self._record = record
        self.context.queue.stall.restart()

    def _start(self) -> None:
        self._request = self._issue()

    def Wait(self, status: MPI.Status | None = None) -> bool:
        """Wait and unpack."""
        with self._given_up_if_it_cannot_end(), self.context.explaining():
            if self._record is not None:
                self.context.wait_for([self._request], self)
            self._request.Wait(status)
        return self._finish()

    def Test(self, status: MPI.Status | None = None) -> bool:
        """True when done and unpacked."""
        with self._given_up_if_it_cannot_end(), self.context.explaining():
            if self._request.Test(status):
                return self._finish()
            if self._record is not None:
                self.context.keep_watch()
        return False

    @contextmanager
    def _given_up_if_it_cannot_end(self) -> Iterator[None]:
        """An error within that ends all calls of the communicator ends this plan, too."""
        try:
            yield
        except BaseException:
            if self._record is not None and self.context.broken:
                self._give_up()
                self._record.end()
                self._record = None
            raise

    def _give_up(self) -> None:
        """MPI may use the request, and its buffers, for ever."""
        ABANDONED.append((self._request, self.owned))
        self._request = MPI.REQUEST_NULL

    def Free(self) -> None:
        """Forget the library's request."""
        self._require_idle("Free")
        self._freed = True
        self._request = MPI.REQUEST_NULL

    @property
    def is_freed(self) -> bool:  # noqa: D102
        return self._freed or self.context.closed

    @property
    def in_flight(self) -> bool:  # noqa: D102
        return self._record is not None

    def _finish(self) -> bool:
        if self._record is not None:
            self.context.queue.stall.restart()
            self.unpack()
            self._record.end()
        self._record = None
        return True

    # In reports.

    @property
    def unfinished(self) -> bool:
        """See `Located`."""
        return self.in_flight

    def where(self) -> str:
        """What it is: the library alone knows more."""
        return f"{self.owner} {self.text}"
