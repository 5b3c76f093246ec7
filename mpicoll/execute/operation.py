"""An operation: a collective call that is ready to be made, by whatever serves it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from ..failure import Record
from ..support.callsite import Site

if TYPE_CHECKING:
    from ..binding import Places
    from .context import Context


def array_of(argument: Any) -> np.ndarray[Any, Any] | None:
    """The array of an argument that a door knows: itself, or the first item of a list."""
    array = argument[0] if isinstance(argument, (list, tuple)) else argument
    return array if isinstance(array, np.ndarray) else None


def clear_status(status: MPI.Status | None) -> None:
    """Make it that of a collective, which received no message."""
    if status is not None:
        status.Set_source(MPI.ANY_SOURCE)
        status.Set_tag(MPI.ANY_TAG)
        status.Set_elements(MPI.BYTE, 0)
        status.Set_cancelled(False)


class LowerCase:
    """mpi4py's `wait` and `test`: they return a message's object too, a collective has none."""

    def Wait(self, status: MPI.Status | None = None) -> bool:
        """Wait for the end; True."""
        raise NotImplementedError

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Make progress without blocking; True when done."""
        raise NotImplementedError

    def wait(self, status: MPI.Status | None = None) -> None:
        """`Wait`; None."""
        self.Wait(status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, None]:
        """`Test`; (done, None)."""
        return self.Test(status), None


class Operation(LowerCase):
    """A collective bound to its buffers, and to what serves it: a schedule, MPI's own call, NCCL.

    A blocking call: `run`. A non-blocking call: `run_as_task` makes the steps of a `Task`. A
    persistent call: `persistent`, then Start, and Wait or Test, repeatedly; at last Free. As with
    MPI's, ranks make the plans of a communicator in the same order, and may start them and wait for
    them in different orders.
    """

    context: Context
    #: what it serves by what, and the call in words: for a person
    name: str
    text: str
    #: see `Located`
    runs_ahead: bool = False
    step: int | None = None
    #: whether it may serve later calls; then the buffers that it works on, and bytes of scratch
    is_kept: bool = False
    memory: Places = ()
    scratch: int = 0

    def run(self, record: Record | None = None) -> None:
        """Start and wait: the blocking call. record: of the call, which shows its progress."""
        raise NotImplementedError

    def persistent(self, info: MPI.Info) -> Operation | MPI.Prequest:
        """What a persistent call returns. info: hints for MPI."""
        return self

    def is_given(self, arguments: Sequence[object]) -> bool:
        """Whether MPI gets just these arguments, and nothing has to be copied."""
        return False

    @property
    def requests(self) -> int:
        """Messages that it is ready for."""
        return 0

    @property
    def movable(self) -> bool:
        """Whether it may work on other memory of the same shape."""
        return False

    @property
    def is_busy(self) -> bool:
        """Whether a call through a door is using it."""
        return False

    def open_door(
        self, door: Any, arguments: tuple[object, ...], mark: bytes, patience: float | None
    ) -> None:
        """Let calls like the last one through a door, where that can serve them: see `doors`.

        mark: of the call. patience: seconds for which they wait there; None: for a moment.
        """

    def lies_in(self, memory: Places) -> None:
        """Say which buffers it was bound for."""
        self.memory = memory

    def move(self, memory: Places) -> None:
        """Work on these buffers from now on.

        They have the sizes of the buffers that it was bound to, and are the same memory or apart
        as those are.
        """
        raise NotImplementedError

    # As a persistent request.

    def Start(self) -> None:
        """Take the input and begin."""
        raise NotImplementedError

    def Free(self) -> None:
        """Return what it holds."""
        raise NotImplementedError

    @property
    def is_freed(self) -> bool:
        """Whether nothing can be done with it any more."""
        return self.context.closed

    @property
    def in_flight(self) -> bool:
        """Whether it was started and not waited for since."""
        raise NotImplementedError

    def _require_startable(self) -> None:
        """RuntimeError where it cannot be started; MpicollError where no call is served."""
        if self.is_freed:
            raise RuntimeError(f"Start on a plan that was freed: {self.name}")
        self._require_idle("Start")
        self.context.require_working()

    def _recorded(self, record: Record, site: Site) -> Record:
        text = f"{self.text}, a plan that was started"
        return self.context.recorder.begin(text, site, ordered=False, record=record)

    def _require_idle(self, action: str) -> None:
        if self.in_flight:
            raise RuntimeError(f"{action} on a plan in flight, call Wait first: {self.where()}")

    # In reports.

    def where(self) -> str:
        """What it is doing."""
        raise NotImplementedError

    def peer(self) -> int | None:
        """The rank at the other end of the awaited message, or None."""
        return None
