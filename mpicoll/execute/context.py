"""What schedules need of one communicator, shared by all wrappers of its handle and freed with it."""

import atexit
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, ClassVar, TypeVar

from mpi4py import MPI

from ..errors import MpicollError
from .pool import Kept, KnownCalls, ScratchPool
from .progress import PROGRESS, Queue, Task
from .topology import Topology, discover, inherited

Comm = TypeVar("Comm", bound=MPI.Comm)


def _in_turn(first: int, last: int) -> Iterator[int]:
    """The tags from `first` to `last`, and again from the first.

    MPI grants at least 32,767. The libraries that we know grant millions, so that no call in flight lives to see its tag
    come round again.
    """
    while True:
        yield from range(first, last + 1)


#: plans of communicators in disorder: MPI may still write into their memory
_ABANDONED: list[Kept] = []


class Context:
    """One communicator's nodes, private duplicate, tags, scratch, cached plans, and counters.

    measured: what the probe found. unattended: tasks that no thread advances.
    broken: why no further call can be served; empty while all is well.
    sent_blocking, sent_by_tasks: [messages, bytes]; two, because tasks are counted by another thread.
    """

    _keyval: ClassVar[int | None] = None
    _alive: ClassVar["weakref.WeakSet[Context]"] = weakref.WeakSet()

    def __init__(self, topology: Topology, measured: dict[str, Any] | None = None) -> None:
        self.comm: MPI.Intracomm | None = None
        self.topology = topology
        self.measured = {} if measured is None else measured
        self.sent_blocking, self.sent_by_tasks = [0, 0], [0, 0]
        self.pool, self.known = ScratchPool(), KnownCalls()
        self.plans: weakref.WeakSet[Kept] = weakref.WeakSet()
        self.queue = Queue()
        self.unattended: list[Task] = []
        self.broken = ""
        self._connecting: tuple[MPI.Comm, MPI.Request] | None = None
        limit = int(MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 32767)
        # plans may live for long: the tags of single calls, which come round again, are not theirs
        self._plan_tags, self._call_tags = _in_turn(1, limit // 2), _in_turn(limit // 2 + 1, limit)
        self._alive.add(self)

    # One per communicator.

    @classmethod
    def of(cls, comm: MPI.Comm) -> "Context":
        """The context of this communicator handle; all wrappers of a handle share it. Collective the first time.

        Communicators made from one that has a context (`derive`, `duplicate`) know their nodes without asking.
        """
        return cls._get(comm) or cls._set(comm, discover(comm))

    @classmethod
    def derive(cls, comm: Comm, parent: MPI.Comm) -> Comm:
        """Give a communicator of some ranks of `parent` its context. Local."""
        if comm != MPI.COMM_NULL and cls._get(comm) is None:
            cls._set(comm, inherited(comm, parent, cls.of(parent).topology))
        return comm

    @classmethod
    def duplicate(cls, comm: Comm, parent: MPI.Comm) -> Comm:
        """Give a duplicate of `parent` its context, with all that was measured so far. Local."""
        context = cls.of(parent)
        # a copy: what one of them measures later, another may be asked for earlier, in different order on the ranks
        cls._set(comm, context.topology, dict(context.measured))
        return comm

    @classmethod
    def _get(cls, comm: MPI.Comm) -> "Context | None":
        if cls._keyval is None:
            # not copied by MPI: Open MPI 5.0's Comm_create_group copies attributes too, to a group of other ranks
            cls._keyval = MPI.Comm.Create_keyval(delete_fn=lambda comm, key, context: context.close())
            cls._release_before_finalize()
        found: Any = comm.Get_attr(cls._keyval)
        return found if found else None

    @classmethod
    def _set(cls, comm: MPI.Comm, topology: Topology, measured: dict[str, Any] | None = None) -> "Context":
        context = cls(topology, measured)
        assert cls._keyval is not None
        comm.Set_attr(cls._keyval, context)
        return context

    @classmethod
    def _release_before_finalize(cls) -> None:
        """Have the thread ended and the requests freed in time: MPICH reports each request that was not freed.

        MPI_Finalize first deletes the attributes of COMM_SELF; when mpi4py calls it at exit, Python is gone already.
        """

        def deleted(comm: MPI.Comm, key: int, handle: int) -> None:
            if comm.handle == handle:  # not a group made of it, to which Open MPI copied the attribute
                cls._release()

        MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=deleted), MPI.COMM_SELF.handle)
        atexit.register(cls._release)

    @classmethod
    def _release(cls) -> None:
        PROGRESS.stop()
        for context in list(cls._alive):
            context.free_plans()

    # The private duplicate, and tags on it.

    def connect(self, comm: MPI.Comm) -> None:
        """Make the private duplicate at the first scheduled collective; that call is collective."""
        if self._connecting is not None:
            PROGRESS.wait(PROGRESS.submit(self.connected(), Queue()))
        elif self.comm is None:
            self.comm = MPI.Intracomm(MPI.Comm.Dup(comm))  # plain: `Dup` gives the class of `comm`

    def begin_connecting(self, comm: MPI.Comm) -> None:
        """The same without waiting; `connected` then waits."""
        if self.comm is None and self._connecting is None:
            self._connecting = MPI.Comm.Idup(comm)

    def connected(self) -> Iterator[MPI.Request]:
        """A generator that ends when there is a private duplicate."""
        while self._connecting is not None:
            comm, request = self._connecting
            if request.Test():
                self.comm, self._connecting = MPI.Intracomm(comm), None
            else:
                yield request

    def next_plan_tag(self) -> int:
        """A tag for one persistent plan, reserved in program order, so the same on all ranks; 0 is for blocking calls."""
        return next(self._plan_tags)

    def next_call_tag(self) -> int:
        """A tag for one non-blocking call, likewise; its range is not that of plans, which may live for long."""
        return next(self._call_tags)

    # What is under way.

    def submit(
        self,
        steps: Iterator[object],
        on_done: Callable[[], object] | None = None,
        device: AbstractContextManager[object] | None = None,
    ) -> Task:
        """Begin a `Task` on this communicator; `finish` sees to those that no thread advances."""
        task = PROGRESS.submit(steps, self.queue, on_done, device)
        if not PROGRESS.threaded:
            self.unattended.append(task)
        return task

    def finish(self) -> None:
        """Bring what no thread advances to its end before a call that blocks: others may wait for what it has yet to send.

        It is under way on all ranks then, as collectives begin in the same order everywhere.
        """
        self.require_working()
        while self.unattended:
            task = self.unattended.pop()
            if not task.ended:
                PROGRESS.wait(task)

    def give_up(self, plan: Kept, reason: str) -> None:
        """A plan was ended in the middle of its rounds: messages of it are still on their way, and others wait for more.

        Its memory is never given back, as MPI may still write there, and no further call is served.
        """
        self.broken = reason
        _ABANDONED.append(plan)
        self.unattended.append(Task(iter(()), self.queue))  # so that no call passes by `finish`

    def require_working(self) -> None:
        """Raise MpicollError where a call has left the communicator in disorder."""
        if self.broken:
            raise MpicollError(
                f"this communicator cannot be used any more: {self.broken}. Its messages and those of other ranks no "
                "longer fit together: free it and make a new one on all ranks, or end the job"
            )

    def drain(self) -> None:
        """Bring what is under way to its end; not from within MPI's Comm_free, where MPICH lets no other thread in."""
        for task in () if self.broken else self.queue.tasks:
            PROGRESS.wait(task)

    @property
    def sent(self) -> tuple[int, int]:
        """(messages, bytes) sent in schedules so far."""
        messages, nbytes = (one + other for one, other in zip(self.sent_blocking, self.sent_by_tasks))
        return messages, nbytes

    # The end.

    def free_plans(self) -> None:
        """Free the requests of all plans, cached or not; not where one was ended in the middle: others may be active too."""
        if self.broken:
            _ABANDONED.extend(self.plans)
            return
        for plan in list(self.plans):
            if not plan.in_flight:
                plan.Free()
        self.known.clear()

    def close(self) -> None:
        """The communicator is being freed; `drain` came before."""
        self.free_plans()
        self.pool.clear()
        self._alive.discard(self)
        if self.comm is not None and not self.broken:
            self.comm.Free()
