"""What schedules need of one communicator: shared by all wrappers of its handle, freed with it."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from threading import get_ident
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
from mpi4py import MPI

from ..buffers import frozen
from ..errors import MpicollError, RankFailure
from ..failure import ABANDONED, Record, survival
from ..progress import PROGRESS, Task, calls_as_mpi_computes
from ..shared_memory import PLANS, TASKS, Links, track
from ..support import settings
from ..support.arrays import Device
from ..support.at_exit import after_exit_functions
from ..support.callsite import call_site
from ..support.checks import agree
from ..support.settings import ALWAYS, OFF
from ..transport import (
    CALL,
    Channel,
    Share,
    Topology,
    Wire,
    discover,
    inherited,
    node_of,
    places_in,
)
from .cache import CachedCall
from .doors import Doors
from .pool import ScratchPool
from .tracing import Tracer
from .waits import Waits

Comm = TypeVar("Comm", bound=MPI.Comm)
Result = TypeVar("Result")

#: with check="always", one of so many small calls of MPI's own is compared
_SAMPLED = 512
#: seconds that freeing a communicator waits for another thread that looks at its messages: during
#: MPI's Comm_free that thread may never come back. quirk: free-holds-the-lock
_PATIENCE = 0.1
#: what a user may ask for, and how it is understood
_SETTINGS: dict[str, Callable[..., Any]] = {
    "deterministic": settings.deterministic,
    "reproducible": settings.reproducible,
    "check": settings.check_mode,
    "timeout": settings.timeout,
    "digest_every": settings.digest_every,
}


class _Promise:
    """The context of a duplicate that has begun, made at its first use. An attribute.

    MPI copies it from the parent as the duplicate begins, and deletes it with the duplicate,
    however that is freed: another communicator may then have the same handle.
    """

    def __init__(self, make: Callable[[MPI.Comm], "Context"], drop: Callable[[], object]) -> None:
        self._make: Callable[[MPI.Comm], Context] | None = make
        self._drop = drop
        #: the thread that begins the duplicate, meanwhile
        self.thread: int | None = get_ident()
        #: communicators that have it
        self._owners = 0

    def keep(self, comm: MPI.Comm) -> "Context | None":
        """Make the context, unless it was made."""
        make, self._make = self._make, None
        return make and make(comm)

    @staticmethod
    def copied(comm: MPI.Comm, key: int, promise: "_Promise") -> Any:
        """`comm` is duplicated."""
        # quirk: attributes-copied-to-groups
        return promise.owned() if promise.thread == get_ident() else NotImplemented

    def owned(self) -> "_Promise":
        """One more communicator has it. Returns itself."""
        self._owners += 1
        return self

    @staticmethod
    def deleted(comm: MPI.Comm, key: int, promise: "_Promise") -> None:
        """`comm` is freed, or has begun its duplicate."""
        promise._owners -= 1
        if promise._owners == 0 and promise._make is not None:
            promise._make = None
            promise._drop()


class Context(Waits):
    """One communicator's nodes, channel, numbers of calls, scratch, and counters."""

    _keyval: ClassVar[int | None] = None
    #: of `_Promise`
    _promise_keyval: ClassVar[int | None] = None
    tracer: Tracer | None
    #: whether floats are added in the canonical order; in fixed point
    deterministic: bool
    reproducible: bool
    #: when ranks compare their calls
    check: str
    #: ranks compare one of so many results
    digest_every: int
    #: whether every call is recorded with its line and its times
    sees_all: bool

    def __init__(
        self,
        comm: MPI.Comm,
        topology: Topology,
        channel: Channel,
        measured: dict[object, Any],
        inherited_settings: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(comm, channel)
        near = channel.neighbours(topology.nodes)
        self.topology = topology._replace(refusal=near.refusal(topology.nodes))
        #: to other ranks of the node, by shared memory
        self.links = near.block and Links(
            self.look, channel.rank, near.cards, near.block, channel.number, channel.number_bit)
        #: the neighbours of this rank, of a communicator with a topology, see `surroundings`
        self.surroundings: Any = None
        #: what the probe measured
        self.measured = measured
        #: [messages, bytes]; two counters, because another thread counts those of tasks
        self.sent_blocking = [0, 0]
        self.sent_by_tasks = [0, 0]
        self.pool = ScratchPool()
        #: of calls whose sizes are learnt, by name: how many there were, the bytes of this rank in
        #: the last one, and what ranks have agreed on
        self.calls_of: dict[str, int] = {}
        self.own_bytes: dict[str, int] = {}
        self.typical_bytes: dict[str, int] = {}
        #: results that ranks might have compared
        self.results = 0
        #: where the user made the communicator
        self.made_at = call_site()
        #: no rank makes a call any more, and it is freed soon
        self.released = False
        if inherited_settings is None:
            for name, understood in _SETTINGS.items():
                setattr(self, name, understood())
            self.sees_all = self._must_see_all()
        else:
            vars(self).update(inherited_settings)
        self._take_settings()
        self.comparisons = 0
        self.closed = False
        #: records what plans do that are bound from now on
        self.tracer = None
        #: calls that took too long, for reports
        self.given_up: list[dict[str, Any]] = []
        #: what a barrier moves: a byte of this rank, and of each
        self.tokens = np.zeros(1, np.uint8), np.zeros(comm.Get_size(), np.uint8)
        #: by device: NCCL's communicator, or why there is none, see `nccl`
        self.nccl: dict[int, Any] = {}
        self.calls = count(1)
        self.doors = Doors(self)
        self._plans = count(1)
        self._alive[id(self)] = self

    # One per communicator.

    @classmethod
    def of(cls, comm: MPI.Comm) -> "Context":
        """The context of this handle, which all its wrappers share. Collective the first time."""
        return cls.found(comm) or cls._kept_promise(comm) or cls._made(comm)

    @classmethod
    def configured(
        cls,
        comm: MPI.Intracomm,
        given: dict[str, Any],
        prepare: Callable[[], object] = lambda: None,
    ) -> "Context":
        """The same, with settings by name that the user asks for; None: not asked for.

        Collective where a setting is asked for; the first time a single rank may ask, and all are
        told. prepare: called the first time; an OSError or ImportError that it raises on one rank
        is an error on all of them.
        """
        context = cls.found(comm) or cls._kept_promise(comm)
        if context is None:
            context = cls._made(comm, given, prepare)
        elif any(value is not None for value in given.values()):
            agree(comm, given)
        context._configure(given)
        return context

    @classmethod
    def _made(
        cls,
        comm: MPI.Comm,
        given: dict[str, Any] | None = None,
        prepare: Callable[[], object] = lambda: None,
    ) -> "Context":
        with survival.making(comm), node_of(comm) as node:
            topology, neighbours, name = discover(comm, node, given, prepare)
            # quirk: dup-beside-calls
            channel = Channel.first(Wire.between(comm, name, neighbours))
            return cls._set(comm, cls(comm, topology, channel, {}))

    @classmethod
    def part(cls, comm: Comm, parent: MPI.Comm, share: Share | None) -> Comm:
        """Give a communicator of some ranks of `parent` its context.

        share: the result of `Channel.share`.
        """
        if comm != MPI.COMM_NULL:
            whole = cls.of(parent)
            places = places_in(comm, parent)
            topology = inherited(whole.topology, places)
            channel = Channel.of_part(share, comm, places)
            cls._set(comm, cls(comm, topology, channel, {}, whole._inherited()))
        return comm

    @classmethod
    def duplicate(cls, comm: Comm, parent: MPI.Comm, share: Share | None) -> Comm:
        """Give a duplicate of `parent` its context, with all measurements so far.

        share: the result of `Channel.share`.
        """
        whole = cls.of(parent)
        # a copy: a later measurement of one of them may come in different order on the ranks
        channel = Channel.of_part(share, comm, range(comm.Get_size()))
        measured = dict(whole.measured)
        made = cls(comm, whole.topology, channel, measured, whole._inherited())
        made.surroundings = whole.surroundings
        cls._set(comm, made)
        return comm

    @classmethod
    @contextmanager
    def promising(cls, parent: MPI.Comm) -> Iterator[None]:
        """A duplicate of `parent` is begun within: its context is made at its first use. Local.

        What the context needs of other ranks is begun before the duplicate, as a rank may use it
        before another rank has waited for it.
        """
        whole = cls.of(parent)
        make_channel, drop = whole.channel.duplicate_soon(parent)
        topology = whole.topology
        measured = dict(whole.measured)
        inherited_settings = whole._inherited()

        def make(comm: MPI.Comm) -> "Context":
            made = cls(comm, topology, make_channel(comm), measured, inherited_settings)
            made.surroundings = whole.surroundings
            return cls._set(comm, made)

        if cls._promise_keyval is None:
            cls._promise_keyval = MPI.Comm.Create_keyval(_Promise.copied, _Promise.deleted)
        promise = _Promise(make, drop).owned()
        parent.Set_attr(cls._promise_keyval, promise)
        try:
            yield
        finally:
            promise.thread = None
            parent.Delete_attr(cls._promise_keyval)

    @classmethod
    def _kept_promise(cls, comm: MPI.Comm) -> "Context | None":
        if cls._promise_keyval is None:
            return None
        promise: Any = comm.Get_attr(cls._promise_keyval)
        return cast("Context | None", promise and promise.keep(comm))

    def _inherited(self) -> dict[str, Any]:
        """The settings of communicators that are made from this one."""
        return {name: getattr(self, name) for name in (*_SETTINGS, "sees_all")}

    def _take_settings(self) -> None:
        """What follows from them for the record of calls."""
        samples = self.check == ALWAYS and not self.digest_every
        self.recorder.compare_every(_SAMPLED if samples else 0)
        self.recorder.is_hashed = self.check != OFF
        self.recorder.lists_all = self.lists_all

    @property
    def lists_all(self) -> bool:
        """Whether calls are recorded that mpi4py serves by itself, and those that MPI begins."""
        return self.sees_all or self.check == ALWAYS or self.timeout is not None

    @classmethod
    def found(cls, comm: MPI.Comm) -> "Context | None":
        """The context of this handle, if it was made."""
        if cls._keyval is None:

            def deleted(comm: MPI.Comm, key: int, context: "Context") -> None:
                context.close()

            # no copy_fn. quirk: attributes-copied-to-groups
            cls._keyval = MPI.Comm.Create_keyval(delete_fn=deleted)
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

        MPI_Finalize first deletes the attributes of COMM_SELF; when mpi4py calls it at exit, Python
        is gone already. Until then requests may be waited for, in the program's own functions of
        `atexit`, too.
        """

        def deleted(comm: MPI.Comm, key: int, handle: int) -> None:
            if comm.handle == handle:  # not a group made of it. quirk: attributes-copied-to-groups
                cls._stop()

        MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=deleted), MPI.COMM_SELF.handle)
        after_exit_functions(cls._stop)

    @classmethod
    def _stop(cls) -> None:
        PROGRESS.stop()
        for context in cls.living():
            context.recorder.is_closed = True
            context.channel.shut()

    def _configure(self, given: dict[str, Any]) -> None:
        """Take what the user asks for instead of the environment's settings."""
        if all(value is None for value in given.values()):
            return
        listed = self.lists_all
        asked = {**given, "digest_every": given["check"]}  # in the same words
        for name, understood in _SETTINGS.items():
            if asked[name] is not None:
                setattr(self, name, understood(asked[name]))
        self.sees_all = self._must_see_all()
        if self.lists_all and not listed:
            self.recorder.restart()
        self._take_settings()
        self.forget_calls()

    def forget_calls(self) -> None:
        """Look at all calls again: those that were remembered may be served differently by now."""
        self.doors.clear()
        self.cache.free()

    def _must_see_all(self) -> bool:
        """Whether every call is recorded with its line and its times."""
        reports = settings.report_folder() is not None or settings.profile()
        return self.digest_every > 0 or reports or survival.survivable()

    # The numbers of calls and plans, reserved in program order, so the same on all ranks.

    def next_call(self) -> int:
        """The number of one call that a schedule serves."""
        return next(self.calls)

    def call_tag(self, number: int, fingerprint: int) -> int:
        """The tag of the messages of a call."""
        return self.channel.tag(CALL, number, fingerprint)

    def next_plan_tag(self) -> int:
        """The tag of one persistent plan, which no single call has."""
        return self.channel.plan_tag(next(self._plans))

    @staticmethod
    def call_track(number: int) -> int:
        """The track of the task that serves one call by a schedule."""
        return track(TASKS, number)

    @staticmethod
    def plan_track(tag: int) -> int:
        """The track of a plan that is started."""
        return track(PLANS, tag)

    # Whether ranks make the same calls.

    def must_compare(self, what: str, place: int, is_sampled: bool) -> bool:
        """Whether a call is to be compared with those of the other ranks; remembers that it was.

        The answer is the same on all ranks as long as they make the same calls. place: see
        `Record`; is_sampled: one of so many calls like it is compared.
        """
        is_due = self.check == ALWAYS and (not is_sampled or self.recorder.is_due(place))
        if not self.cache.must_compare(what, is_due):
            return False
        self.recorder.compared(place)
        self.comparisons += 1
        return True

    def is_compared(self, entry: CachedCall) -> bool:
        """Whether the next call is one to be compared, if `entry` knows calls like it."""
        if self.check != ALWAYS or entry.is_named:
            return False
        return not entry.is_sampled or self.recorder.is_due(self.recorder.places + 1)

    # What is under way.

    @contextmanager
    def watched(self, text: str, site: str = "", ordered: bool = True) -> Iterator[None]:
        """A blocking call that MPI serves by itself. site, ordered: see `Record.begin`."""
        record = self.recorder.blocking
        try:
            record.begin(text, site, ordered)
            yield
        except Exception as error:
            self.raise_explained(error)
        finally:
            record.end()

    def serve(
        self,
        function: Callable[[], Result],
        record: Record,
        args: Sequence[object],
        is_scheduled: bool,
    ) -> Result:
        """Serve a blocking call; its record begins within `function`, and ends here.

        args: kept alive while MPI uses them. is_scheduled: a schedule serves it, or may.
        """
        try:
            result = function()
        except BaseException as error:
            if record.place and is_scheduled:
                self.lost = record.text, error  # stored before any handler can raise again
            explained = self.explained(error) if isinstance(error, Exception) else error
            if record.place and is_scheduled:
                self.lose_step(record.text, explained)
            PROGRESS.end_failed(self.queue)
            if self.is_used_by_mpi:
                ABANDONED.append(frozen(args))
            self.held.release()
            if explained is not error:
                raise explained from error
            raise
        finally:
            record.end()
        self.held.release()
        return result

    @contextmanager
    def making(self, comm: MPI.Comm) -> Iterator[None]:
        """`comm` is made from this communicator, step by step.

        Where a rank dies meanwhile, the other ranks leave it too.
        """
        try:
            yield
        except Exception as error:
            told = self.explained(survival.cause_of(error))
            if not isinstance(told, RankFailure):
                raise
            if comm != MPI.COMM_NULL:
                comm.Revoke()
            raise told from error

    def submit(
        self,
        steps: Iterator[object],
        record: Record | None = None,
        on_done: Callable[[], object] | None = None,
        device: Device | None = None,
        computes: Callable[..., object] = calls_as_mpi_computes(own_code=False),
        then: Callable[[], object] | None = None,
        track: int | None = None,
    ) -> Task:
        """Begin a `Task` on this communicator."""
        task = Task(steps, self.queue, record, on_done, device, computes, then, track)
        return PROGRESS.submit(task)

    def drain(self) -> None:
        """Bring what is under way to its end.

        Not from within MPI's Comm_free (quirk: free-holds-the-lock).
        """
        self.see_to_what_was_lost()
        PROGRESS.attend_all()
        with suppress(MpicollError):  # a rank gave up: the threads that wait for these calls raise
            for task in () if self.broken else self.queue.tasks:
                PROGRESS.wait(task)
        for made in self.nccl.values():  # waits for other ranks, which may need this rank's thread
            made.close()
        self._be_read()
        self.channel.shut()

    def _be_read(self) -> None:
        """Wait until the other ranks of the node have read what was sent to them."""
        stall = self.queue.stall
        stall.restart()
        while self.links is not None and not self.broken and not self.links.all_read():
            if stall.is_due:
                self.check_wait()
            os.sched_yield()

    @property
    def sent(self) -> tuple[int, int]:
        """(messages, bytes) sent in schedules so far."""
        blocking, tasks, doors = self.sent_blocking, self.sent_by_tasks, self.recorder
        messages = blocking[0] + tasks[0] + doors.messages
        return messages, blocking[1] + tasks[1] + doors.nbytes

    def close(self) -> None:
        """MPI is freeing the communicator. What is under way goes on, as MPI's own operations do.

        `drain` came before, unless the user freed a plain handle of it.
        """
        self._alive.pop(id(self), None)
        PROGRESS.attend_all()
        self.recorder.is_closed = True
        self.doors.clear()
        is_unused = self.channel.shut(_PATIENCE)
        if self.broken or self.queue.tasks or not is_unused:
            ABANDONED.append(self)
        else:
            self.cache.free()
            self.pool.clear()
            for made in self.nccl.values():
                made.close()
            if self.links is not None and self.links.all_read():
                self.links.close()
            self.channel.close()
        self.closed = True  # from here on plans refuse whatever is asked of them
