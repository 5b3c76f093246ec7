"""How repeated calls are served: what a communicator keeps of those that were looked at."""

from collections.abc import Iterable
from typing import Any, Protocol

from mpi4py import MPI

from .program import Places
from .recorder import Located, Record
from .tasks import WINDOW

#: calls that are recognised, per communicator, and the scratch and requests that their plans may hold
KNOWN_CALLS, KEPT_BYTES, KEPT_REQUESTS = 128, 512 << 20, 1 << 16


class Kept(Located, Protocol):
    """A plan, as far as keeping it goes.

    scratch: bytes that it holds; requests: messages that it is bound for; memory: the buffers that it works on.
    """

    scratch: int
    memory: Places

    @property
    def requests(self) -> int: ...

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
    """How calls of one kind are served: by plans, or by MPI's own method. text: what they are. is_small: see `SmallCalls`.

    choice: the plans' algorithm and pieces. idle: plans that no call is using. A blocking call leaves its plan there; one
    that does not block takes it away, maybe in another thread.
    """

    def __init__(self, text: str, native: Any = None, is_small: bool = False, choice: tuple[Any, ...] = ()) -> None:
        self.text, self.native, self.is_small, self.choice = text, native, is_small, choice
        self.idle: list[Any] = []

    def run(self, record: Record, comm: MPI.Comm, arguments: Iterable[object], key: Any) -> None:
        """Serve a blocking call. record: of it; key: what it was found by."""
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
        """A call has ended. key: what it was known by; None: nobody will ask for its plan again."""
        if key is None or not plan.movable or len(self.idle) >= WINDOW:
            plan.Free()
        else:
            self.idle.append(plan if plan.memory else plan.lies_in(key[1]))

    def free(self) -> None:
        """Free the plans that lie idle."""
        while self.idle:
            self.idle.pop().Free()


class KnownCalls(dict[Any, Known]):
    """Repeated calls, by what they are recognised by: (shape, memory), or by shape alone where memory does not matter."""

    def find(self, key: Any) -> Known | None:
        """How a call is served, if it is known."""
        return None if key is None else self.get(key[0]) or self.get(key)

    def keep(self, key: Any, known: Known, plan: Kept | None = None) -> None:
        """Let later calls with this key be served so; the oldest make room, their plans are freed. plan: an idle one."""
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
