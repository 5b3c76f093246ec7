"""Calls that a library serves, MPI itself or NCCL: made at once, begun, or kept as a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from mpi4py import MPI

from ..failure import Record
from ..support.callsite import call_site
from .plan import LowerCase
from .staging import Staging

if TYPE_CHECKING:
    from typing_extensions import Self

    from .context import Context


class Reissued:
    """A persistent request of a call that has none: each Start begins the call."""

    def __init__(self, begin: Callable[[], Any]) -> None:
        self._begin: Callable[[], Any] | None = begin
        self._request: Any = MPI.REQUEST_NULL

    def Start(self) -> None:
        """Begin the call."""
        if self._begin is None:
            raise RuntimeError("Start on a plan that was freed")
        self._request = self._begin()

    def Wait(self, status: MPI.Status | None = None) -> bool:
        """Wait for the last call."""
        return bool(self._request.Wait(status))

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Whether the last call is done."""
        return bool(self._request.Test(status))

    def Free(self) -> None:
        """Forget the buffers."""
        self._begin = None


class LibraryCall(Staging, LowerCase):
    """A collective that a library serves: packs before it if need be, unpacks when it is done.

    Blocking: `run`. Nonblocking: `begin`, then `run_as_task`. Persistent: what `persistent` returns
    is started with Start and awaited with Wait or Test, any number of times.
    """

    runs_ahead = False
    step = None
    #: whose call it is, for a person
    owner: ClassVar[str]

    def __init__(self, call: Any) -> None:
        """call: a `calls.Call`."""
        super().__init__()
        self.context: Context = call.context
        #: the call in words
        self.text: str = call.text
        #: operands that are packed must live as long as the call
        self.owned = call.operands
        #: what a plan starts
        self._request: Any = None
        #: of a plan that was started, or a blocking call, that this rank has to wait for
        self._record: Record | None = None

    def run(self) -> None:
        """The blocking call."""
        raise NotImplementedError

    def _issue(self) -> Any:
        """Begin the call on memory that is packed; returns the request."""
        raise NotImplementedError

    @property
    def staged(self) -> bool:
        """Whether something has to happen before or after it."""
        return bool(self.packing or self.unpacking)

    def is_given(self, arguments: Sequence[object]) -> bool:
        """Whether the library gets just these arguments, and nothing has to be copied."""
        return False

    def begin(self) -> Any:
        """The nonblocking call; `run_as_task` does what is left to do."""
        self.pack()
        return self._issue()

    def run_as_task(self, request: Any) -> Iterator[Any]:
        """What is left to do of a call that has begun, for a `Task`."""
        while not request.Test():
            yield request
        self.unpack()

    # As a plan.

    def persistent(self, info: MPI.Info) -> Self | MPI.Prequest:
        """A plan of the call: itself, or MPI's own where nothing is to be added to that."""
        self._request = Reissued(self._issue)
        return self

    def Start(self) -> None:
        """Pack and start."""
        self._require_idle("Start")
        self.context.require_working()
        self.pack()
        with self.context.explaining():
            self._request.Start()
        text = f"{self.text}, a plan that was started"
        self._record = self.context.recorder.begin(text, call_site(), ordered=False)

    def Wait(self, status: MPI.Status | None = None) -> bool:
        """Wait and unpack."""
        with self.context.explaining():
            if self._record is not None:
                self.context.wait_for([self._request], self)
            self._request.Wait(status)
        return self._finish()

    def Test(self, status: MPI.Status | None = None) -> bool:
        """True when done and unpacked."""
        with self.context.explaining():
            done = bool(self._request.Test(status))
        return done and self._finish()

    def Free(self) -> None:
        """Free the library's request."""
        self._require_idle("Free")
        self._request.Free()

    def _require_idle(self, action: str) -> None:
        if self.unfinished:  # packing would overwrite what arrives
            raise RuntimeError(f"{action} on a plan in flight, call Wait first: {self.where()}")

    def _finish(self) -> bool:
        if self._record is not None:
            self.unpack()
            self._record.end()
        self._record = None
        return True

    # In reports.

    @property
    def unfinished(self) -> bool:
        """Whether it was started and has not ended."""
        return self._record is not None

    def where(self) -> str:
        """What it is: the library alone knows more."""
        return f"{self.owner} {self.text}"

    def peer(self) -> int | None:
        """The library alone knows."""
        return None
