"""Repeated calls: what a communicator keeps to serve a call that was made before."""

from collections.abc import Iterable
from typing import Any, Protocol

from mpi4py import MPI

from ..binding import Places
from ..failure import Located, Record
from ..progress import WINDOW

#: calls that are recognised, per communicator
KNOWN_CALLS = 128
#: scratch and requests that their plans may hold
KEPT_BYTES = 512 << 20
KEPT_REQUESTS = 1 << 16


class Kept(Located, Protocol):
    """A plan that is kept for later calls."""

    #: bytes that it holds
    scratch: int
    #: the buffers that it works on
    memory: Places

    @property
    def requests(self) -> int:
        """Messages that it is bound for."""
        ...

    @property
    def movable(self) -> bool:
        """Whether it may work on other memory of the same shape."""
        ...

    def move(self, memory: Places) -> None:
        """Work on this memory from now on."""

    def run(self) -> None:
        """Start and wait."""

    def Free(self) -> None:
        """Return the scratch."""


class Known:
    """How calls of one kind are served: by plans, or by MPI's own method."""

    def __init__(
        self,
        text: str,
        native: Any = None,
        is_small: bool = False,
        choice: tuple[Any, ...] = (),
    ) -> None:
        #: the call in words
        self.text = text
        #: MPI's own method, or None
        self.native = native
        #: see `SmallCalls`
        self.is_small = is_small
        #: the plans' algorithm and pieces
        self.choice = choice
        #: plans that no call is using; a blocking call leaves its plan there, a nonblocking call
        #: takes it away, maybe in another thread
        self.idle: list[Any] = []

    def run(self, record: Record, comm: MPI.Comm, arguments: Iterable[object], key: Any) -> None:
        """Serve a blocking call. record: of the call. key: see `KnownCalls`."""
        if self.native is not None:
            self.native(comm, *arguments)
            return
        record.plan = plan = self.idle[0]
        if plan.memory != key[1]:
            plan.move(key[1])
        plan.run()

    def take(self, key: Any) -> Any:
        """An idle plan, moved to the memory of a call; None where there is none."""
        try:
            plan = self.idle.pop()
        except IndexError:
            return None
        if plan.memory != key[1]:
            plan.move(key[1])
        return plan

    def give_back(self, plan: Any, key: Any) -> None:
        """A call has ended. key: see `KnownCalls`; None: no call will ask for its plan again."""
        if key is None or not plan.movable or len(self.idle) >= WINDOW:
            plan.Free()
        else:
            self.idle.append(plan if plan.memory else plan.lies_in(key[1]))

    def free(self) -> None:
        """Free the plans that lie idle."""
        while self.idle:
            self.idle.pop().Free()


class KnownCalls(dict[Any, Known]):
    """Repeated calls by key: (shape, memory), or shape alone where memory does not matter."""

    def find(self, key: Any) -> Known | None:
        """The entry of a call, if it is known."""
        return None if key is None else self.get(key[0]) or self.get(key)

    def keep(self, key: Any, known: Known, plan: Kept | None = None) -> None:
        """Serve later calls with this key so. plan: an idle plan for them.

        The oldest entries make room, and their plans are freed.
        """
        if plan is not None:
            known.idle.append(plan)
        self[key[0] if plan is None or plan.movable else key] = known
        while len(self) > 1 and self._too_much():
            self.pop(next(iter(self))).free()

    def free(self) -> None:
        """Forget them all; their plans are freed."""
        for known in self.values():
            known.free()
        self.clear()

    def _too_much(self) -> bool:
        scratch = requests = 0
        for known in self.values():
            for plan in known.idle[:]:  # which calls in other threads change
                scratch += plan.scratch
                requests += plan.requests
        return len(self) > KNOWN_CALLS or scratch > KEPT_BYTES or requests > KEPT_REQUESTS
