"""What schedules need of one communicator, shared by all wrappers of its handle and freed with it."""

import atexit
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from mpi4py import MPI

from ..errors import CollectiveTimeout, MpicollError, RankFailure
from ..shared_memory import PLANS, RING_BYTES, TASKS, Links, meet, track
from ..support import settings
from ..support.arrays import Device
from ..support.checks import agree, ranks_text
from ..support.settings import ALWAYS
from . import survival
from .arithmetic import calls_as_mpi_computes
from .channel import CALL, WATCH, Channel, Share
from .known import KnownCalls
from .rhythm import SPIN
from .pool import ScratchPool
from .progress import ABANDONED, PROGRESS, Queue, Task
from .recorder import Located, Recorder
from .small import SmallCalls
from .topology import Topology, discover, inherited

if TYPE_CHECKING:
    from .nccl_comm import NcclComm

Comm = TypeVar("Comm", bound=MPI.Comm)
Error = TypeVar("Error", bound=MpicollError)

#: calls that are remembered as compared; then all are compared again
_COMPARED = 4096
#: seconds between two looks for dead ranks, while a call waits
_LOOK = 5e-3


class Context:
    """One communicator's nodes, channel, numbers of calls, scratch, cached plans, and counters.

    measured: what the probe found. check: when ranks compare their calls. timeout: seconds that a call may wait without
    progress, or None. deterministic, reproducible: whether floats are added in the canonical order, in fixed point.
    sees_all: whether no call may pass unseen. closed: its communicator was freed.
    broken: why no further call can be served; empty while all is well. given_up: the calls that took too long, for reports.
    nccl: NCCL's communicators, by device, or why there are none. links: to other ranks of the node whose memory is shared.
    sent_blocking, sent_by_tasks: [messages, bytes]; two, because tasks are counted by another thread.
    comm: the communicator; without: ranks in the world that were dead before it was made.
    """

    #: explain_wait(context, seconds): who waits for whom; given by `watch`, which lies above
    explain_wait: "ClassVar[Callable[[Context, float], str]]"
    _keyval: ClassVar[int | None] = None
    _alive: ClassVar["weakref.WeakSet[Context]"] = weakref.WeakSet()

    def __init__(
        self, comm: MPI.Comm, topology: Topology, channel: Channel, measured: dict[object, Any] | None = None
    ) -> None:
        found = meet(comm, topology.nodes, RING_BYTES)
        self.topology, self.channel = topology._replace(refusal=found.refusal), channel
        rank, bit = comm.Get_rank(), channel.number_bit
        self.links = found.block and Links(channel.wire.comm, rank, found.cards, found.block, bit)
        self.measured: dict[object, Any] = {} if measured is None else measured
        self.sent_blocking, self.sent_by_tasks = [0, 0], [0, 0]
        self.pool, self.known, self.small = ScratchPool(), KnownCalls(), SmallCalls()
        self.check, self.timeout = settings.check_mode(), settings.timeout()
        self.deterministic, self.reproducible = settings.deterministic(), settings.reproducible()
        self.sees_all = self._must_see_all()
        self._compared: set[str] = set()
        self._reported = 0.0
        self.queue, self.recorder = Queue(self.check_wait, self.explained), Recorder(len(topology.nodes))
        self.comm, self.without, self._looked = MPI.Intracomm(comm), frozenset(survival.DEAD), 0.0
        self.broken, self.closed = "", False
        self.given_up: list[dict[str, Any]] = []
        self.nccl: dict[int, NcclComm] = {}
        self.calls, self._plans = count(1), count(1)
        self._alive.add(self)

    # One per communicator.

    @classmethod
    def of(cls, comm: MPI.Comm) -> "Context":
        """The context of this communicator handle; all wrappers of a handle share it. Collective the first time."""
        return cls.found(comm) or cls._set(comm, cls(comm, discover(comm), Channel.of_its_own(comm)))

    @classmethod
    def part(cls, comm: Comm, parent: MPI.Comm, share: Share | None) -> Comm:
        """Give a communicator of some ranks of `parent` its context. share: what `Channel.share` said."""
        if comm != MPI.COMM_NULL:
            whole = cls.of(parent)
            topology = inherited(comm, parent, whole.topology)
            cls._set(comm, cls(comm, topology, Channel.of_part(share, comm, parent)))._like(whole)
        return comm

    @classmethod
    def duplicate(cls, comm: Comm, parent: MPI.Comm, share: Share | None) -> Comm:
        """Give a duplicate of `parent` its context, with all that was measured so far; share: likewise."""
        whole = cls.of(parent)
        # a copy: what one of them measures later, another may be asked for earlier, in different order on the ranks
        channel = Channel.of_part(share, comm, parent)
        cls._set(comm, cls(comm, whole.topology, channel, dict(whole.measured)))._like(whole)
        return comm

    def _like(self, parent: "Context") -> None:
        self.check, self.timeout, self.sees_all = parent.check, parent.timeout, parent.sees_all
        self.deterministic, self.reproducible = parent.deterministic, parent.reproducible

    @classmethod
    def living(cls) -> "list[Context]":
        """Those of all communicators that were not freed."""
        return list(cls._alive)

    @classmethod
    def found(cls, comm: MPI.Comm) -> "Context | None":
        """That of this handle, if it was made."""
        if cls._keyval is None:
            # not copied by MPI: Open MPI 5.0's Comm_create_group copies attributes too, to a group of other ranks
            cls._keyval = MPI.Comm.Create_keyval(delete_fn=lambda comm, key, context: context.close())
            cls._stop_before_finalize()
        found: Any = comm.Get_attr(cls._keyval)
        return found if found else None

    @classmethod
    def _set(cls, comm: MPI.Comm, context: "Context") -> "Context":
        assert cls._keyval is not None
        comm.Set_attr(cls._keyval, context)
        return context

    @classmethod
    def _stop_before_finalize(cls) -> None:
        """Have no thread of ours use MPI when it is finalized.

        MPI_Finalize first deletes the attributes of COMM_SELF; when mpi4py calls it at exit, Python is gone already.
        """

        def deleted(comm: MPI.Comm, key: int, handle: int) -> None:
            if comm.handle == handle:  # not a group made of it, to which Open MPI copied the attribute
                cls._stop()

        MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=deleted), MPI.COMM_SELF.handle)
        atexit.register(cls._stop)

    @classmethod
    def _stop(cls) -> None:
        PROGRESS.stop()
        for context in cls.living():
            context.channel.shut()

    def configure(self, comm: MPI.Intracomm, check: str | None, timeout: float | None,
                  deterministic: bool | None, reproducible: bool | None) -> None:  # fmt: skip
        """Take what the user asks for instead of the environment's settings. Collective where anything is given."""
        given = {"check": check, "timeout": timeout, "deterministic": deterministic, "reproducible": reproducible}
        if all(value is None for value in given.values()):
            return
        agree(comm, given)
        if deterministic is not None:
            self.deterministic = settings.deterministic(deterministic)
        if reproducible is not None:
            self.reproducible = settings.reproducible(reproducible)
        if check is not None:
            self.check = settings.check_mode(check)
        if timeout is not None:
            self.timeout = settings.timeout(timeout)
        self.sees_all = self._must_see_all()
        self.small.clear()
        self.known.free()

    def _must_see_all(self) -> bool:
        """Whether no call may pass unseen."""
        watched = self.timeout is not None or settings.report_folder() is not None or settings.profile()
        return self.check == ALWAYS or watched or survival.survivable()

    # The numbers of calls and plans, reserved in program order, so the same on all ranks.

    def next_call(self) -> int:
        """The number of one call that a schedule serves."""
        return next(self.calls)

    def call_tag(self, number: int, fingerprint: int) -> int:
        """The tag of its messages."""
        return self.channel.tag(CALL, number, fingerprint)

    def next_plan_tag(self) -> int:
        """The tag of one persistent plan; none of a single call's."""
        return self.channel.plan_tag(next(self._plans))

    @staticmethod
    def call_track(number: int) -> int:
        """The track of the task that serves one call by a schedule."""
        return track(TASKS, number)

    @staticmethod
    def plan_track(tag: int) -> int:
        """That of a plan that is started."""
        return track(PLANS, tag)

    # Whether ranks make the same calls.

    def must_compare(self, what: str) -> bool:
        """Whether a call is to be compared with those of the other ranks; remembers that it was.

        The answer is the same on all ranks as long as they make the same calls.
        """
        if self.check != ALWAYS and what in self._compared:
            return False
        if len(self._compared) >= _COMPARED:
            self._compared.clear()  # and all that spares a call the comparison: other ranks may not be spared
            self.small.clear()
            self.known.free()
        self._compared.add(what)
        return True

    # What is under way.

    @contextmanager
    def watched(self, text: str) -> Iterator[None]:
        """A blocking call that MPI serves by itself. text: what it is."""
        record = self.recorder.blocking.begin(text)
        try:
            yield
        except Exception as error:
            self.raise_explained(error)
        finally:
            record.end()

    def submit(
        self,
        steps: Iterator[object],
        on_done: Callable[[], object] | None = None, device: Device | None = None,
        computes: Callable[..., object] = calls_as_mpi_computes(own_code=False),
        then: Callable[[], object] | None = None,
        track: int | None = None,
    ) -> Task:
        """Begin a `Task` on this communicator."""
        return PROGRESS.submit(Task(steps, self.queue, on_done, device, computes, then, track))

    def wait_for(self, requests: Iterable[MPI.Request], whose: Located) -> None:
        """Await requests one by one, as they come; raises CollectiveTimeout where one takes longer than it may."""
        try:
            if self.timeout is None and not survival.survivable():
                for request in requests:
                    request.Wait()
            else:
                for request in requests:
                    self._watch(request)
        except BaseException as error:  # Ctrl-C and signal handlers that raise among them
            if whose.unfinished:
                self.give_up((requests, whose), whose.where(), error)
            raise

    def _watch(self, request: MPI.Request) -> None:
        began = perf_counter()
        while not request.Test():
            waited = perf_counter() - began
            self.check_wait(waited)
            if self.queue.error is not None:
                raise self.queue.error
            if waited > SPIN:  # ranks that wait must not keep those that compute from a core
                os.sched_yield()

    def check_wait(self, seconds: float) -> None:
        """Give the calls under way up, or only report, where one has waited without progress for longer than it may.

        And give them up where a rank has died: one that waits on shared memory hears of it from nobody else.
        """
        if not self.broken and survival.survivable():
            self._look_for_the_dead()
        if self.timeout is None or seconds < self.timeout or self.broken:
            return
        if settings.only_report():
            self.report_wait(seconds)
        else:
            self.in_disorder(CollectiveTimeout(type(self).explain_wait(self, seconds)))

    def report_wait(self, seconds: float) -> None:
        """Say who waits for whom, once in as many seconds as a call may wait."""
        assert self.timeout is not None
        if perf_counter() - self._reported > self.timeout:
            self._reported = perf_counter()
            print(f"mpicoll: {type(self).explain_wait(self, seconds)}", file=sys.stderr, flush=True)

    # Ranks that died.

    def _look_for_the_dead(self) -> None:
        if perf_counter() - self._looked < _LOOK:
            return
        self._looked = perf_counter()
        try:
            self.channel.wire.comm.Iprobe(MPI.ANY_SOURCE, self.channel.tag(WATCH, 0))
        except MPI.Exception as error:
            self.explained(error)

    def raise_explained(self, error: Exception) -> NoReturn:
        """Raise a RankFailure where a death is behind an error, else the error itself."""
        told = self.explained(error)
        if told is error:
            raise error
        raise told from error

    def explained(self, error: Exception) -> Exception:
        """The RankFailure of this communicator where a death is behind an error; then all that it may touch is revoked."""
        if not survival.survivable() or not survival.may_tell_of_death(error) or self.closed:
            return error
        if not isinstance(self.queue.error, RankFailure):
            certain = survival.tells_of_death(error)
            find = survival.failed_ranks_soon if certain else survival.failed_ranks
            dead = find(self.channel.wire.comm)
            if not dead and not certain:
                return error
            survival.DEAD.update(self.channel.wire.world_ranks[rank] for rank in dead)
            for context in {self, *self.living()}:
                context.bereave(force=context is self)
        return RankFailure(*self.queue.error.args) if isinstance(self.queue.error, RankFailure) else error

    def bereave(self, force: bool) -> None:
        """Ranks have died: wake whoever waits here, and serve no further call, unless it was made after that.

        Others may wait in any communicator for ranks that now stop waiting, whether the dead are in it or not.
        """
        if isinstance(self.queue.error, RankFailure) or self.closed or (survival.DEAD <= self.without and not force):
            return
        world = self.channel.world_ranks
        ranks = tuple(rank for rank, number in enumerate(world) if number in survival.DEAD)
        doing = "; ".join(one.text for one in self.recorder.under_way)
        elsewhere = f"{ranks_text(sorted(survival.DEAD))} of COMM_WORLD" if survival.DEAD else "a rank not known here yet"
        who = f"{ranks_text(ranks)} died" if ranks else f"{elsewhere} died, and this communicator was revoked"
        self.in_disorder(RankFailure(
            f"rank {self.channel.rank}: {who}{doing and f', seen in {doing}'}. The other ranks can go on with what "
            "comm.shrink() returns, called by all that live", ranks))  # fmt: skip
        for comm in (self.channel.wire.comm, self.comm):
            if not comm.Is_revoked():
                comm.Revoke()

    # Calls that cannot come to their end.

    def give_up(self, memory: object, where: str, error: BaseException) -> None:
        """A call was ended in the middle of its rounds: messages of it are still on their way, and others wait for more.

        Its memory is never given back, as MPI may still write there, and no further call is served.
        """
        ABANDONED.append(memory)
        told = self.explained(error) if isinstance(error, Exception) else error
        self.in_disorder(told if isinstance(told, RankFailure) else MpicollError(f"{where}, ended by {error!r}"))

    def in_disorder(self, error: Error) -> Error:
        """Serve no further call, and have those under way end with an error: messages no longer fit together.

        Returns the error that says why.
        """
        self.broken = self.broken or str(error)
        self.queue.error = self.queue.error or error
        self.small.clear()
        self.known.clear()
        for made in self.nccl.values():
            made.abort()
        return error

    def require_working(self) -> None:
        """Raise MpicollError where a call has left the communicator in disorder, RankFailure where ranks died."""
        if isinstance(self.queue.error, RankFailure):
            raise RankFailure(*self.queue.error.args)
        if self.broken:
            raise MpicollError(
                f"this communicator cannot be used any more: {self.broken}\nIts messages and those of other ranks no "
                "longer fit together: free it and make a new one on all ranks, or end the job"
            )

    def drain(self) -> None:
        """Bring what is under way to its end; not from within MPI's Comm_free, where MPICH lets no other thread in."""
        for task in () if self.broken else self.queue.tasks:
            PROGRESS.wait(task)
        for made in self.nccl.values():  # it waits for other ranks, which may need this one's thread
            made.close()
        self._be_read()
        self.channel.shut()

    def _be_read(self) -> None:
        """Wait until the other ranks of the node have read what was sent to them."""
        began = perf_counter()
        while self.links is not None and not self.broken and not self.links.all_read():
            self.check_wait(perf_counter() - began)
            os.sched_yield()

    @property
    def sent(self) -> tuple[int, int]:
        """(messages, bytes) sent in schedules so far."""
        messages, nbytes = (one + other for one, other in zip(self.sent_blocking, self.sent_by_tasks))
        return messages, nbytes

    def close(self) -> None:
        """The communicator is being freed; `drain` came before."""
        self._alive.discard(self)
        if self.broken:
            ABANDONED.append(self)
        else:
            self.known.free()
            self.pool.clear()
            for made in self.nccl.values():
                made.close()
            if self.links is not None and self.links.all_read():
                self.links.close()
            self.channel.close()
        self.closed = True  # from here on plans refuse whatever is asked of them
