"""How the calls of one communicator wait, and what ends them early: a limit, a dead rank, an error in the middle."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from mpi4py import MPI

from ..errors import CollectiveMismatch, CollectiveTimeout, MpicollError, RankFailure
from ..shared_memory import BELL, Links, Polled
from ..support import settings
from ..support.checks import ranks_text
from . import survival
from .accounts import Accounts
from .channel import Channel
from .known import KnownCalls
from .recorder import Located, Recorder
from .rhythm import NAP, Rhythm
from .small import SmallCalls
from .tasks import Queue
from .withdrawal import ABANDONED, Withdrawable

if TYPE_CHECKING:
    from typing_extensions import Self

Error = TypeVar("Error", bound=MpicollError)

#: seconds between two looks that count as no progress, at most; and as a part of the limit
_BETWEEN, _PART = 0.1, 0.1
#: seconds for which a rank that knows of another which gave up waits to hear why
_HEARING = 1.0
#: how often an exception of a signal handler may interrupt what is done to give up
_INTERRUPTIONS = 100


class Waits:
    """What a communicator's context does while a call waits, and when it cannot come to its end.

    timeout: seconds that a call may wait without progress, or None. broken: why no further call can be served; empty while all
    is well. is_used_by_mpi: whether MPI may still use memory of calls that were given up.
    closed: the communicator was freed. comm: its handle; without: ranks in the world that were dead before it was
    made.
    """

    #: explain_wait(context, seconds): who waits for whom; given by `watch`, which lies above
    explain_wait: ClassVar[Callable[[Any, float], str]]
    timeout: float | None
    closed: bool
    links: Links | None
    channel: Channel
    known: KnownCalls
    nccl: dict[int, Any]
    _alive: ClassVar[weakref.WeakSet[Any]] = weakref.WeakSet()

    def __init__(self, comm: MPI.Comm, channel: Channel) -> None:
        self.channel = channel
        self.recorder = Recorder(channel.own_name, len(channel.ranks))
        self.small = SmallCalls(self.recorder)
        self.accounts = Accounts(channel, self.recorder)
        self.queue = Queue(self.check_wait, self.explained)
        self.comm, self.without = MPI.Intracomm(comm), frozenset(survival.DEAD)
        self.broken = ""
        self.is_used_by_mpi = False
        self._reported = 0.0
        self._is_told = False

    @classmethod
    def living(cls) -> list[Self]:
        """Those of all communicators that were not freed."""
        while True:
            try:
                return list(cls._alive)
            except RuntimeError:  # another thread has made one meanwhile
                continue

    def wait_for(self, requests: Iterable[MPI.Request], whose: Located) -> None:
        """Await requests one by one, as they come.

        Raises CollectiveTimeout where one takes longer than it may, and MpicollError where another rank gives up.
        """
        polled = Polled if self.timeout is None and not survival.survivable() else ()
        rhythm = None
        try:
            for request in requests:
                if isinstance(request, polled):
                    request.Wait()  # it looks around by itself
                elif not request.Test():
                    rhythm = rhythm or Rhythm(NAP)  # most calls have nothing to wait for, when they are compared
                    rhythm.restart()
                    self._watch(request, rhythm, whose)
        except BaseException as error:  # Ctrl-C and signal handlers that raise among them
            if whose.unfinished:
                self.give_up(whose, error, requests)
            raise

    def _watch(self, request: MPI.Request, rhythm: Rhythm, whose: Located) -> None:
        self.queue.stall.restart()
        while not request.Test():
            if self.queue.stall.is_due:
                self.check_wait()
            if self.queue.error is not None:
                raise self.queue.error
            rhythm.leave_core(0, lambda: whose.runs_ahead)
        self.queue.stall.restart()
        rhythm.still(1)

    def check_wait(self) -> None:
        """Nothing has moved: give up the calls under way, or report, where that lasts too long.

        The limit is one of the communicator: of calls that take turns, those that move let the
        others wait. And give them up where a rank has died or given up.
        """
        between = _BETWEEN if self.timeout is None else min(_BETWEEN, self.timeout * _PART)
        seconds = self.queue.stall.look(between)
        self.look_around()
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

    # Ranks that died, or gave up.

    def look_around(self) -> None:
        """`look`, unless all is over; whoever waits finds the error in the queue."""
        if self.broken or self.closed:
            return
        try:
            with suppress(MpicollError):
                self.look()
        except MPI.Exception as error:
            self.explained(error)

    def look(self, surely: bool = False) -> None:
        """Let MPI move, and raise where another rank has given this communicator up. surely: it has, and says why."""
        until = perf_counter() + _HEARING
        while self.queue.error is None:
            notice = self.channel.notice()
            if notice is not None:
                self.in_disorder(_told_by(*notice), tell=False)
            elif not surely:
                if not (difference := self.accounts.look(self.links)):
                    return
                self.in_disorder(CollectiveMismatch(difference))
            elif perf_counter() > until:
                self.in_disorder(MpicollError("another rank gave this communicator up"), tell=False)
        raise self.queue.error

    def raise_explained(self, error: Exception) -> NoReturn:
        """Raise a RankFailure where a death is behind an error, else the error itself."""
        told = self.explained(error)
        if told is error:
            raise error
        raise told from error

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """The same for what MPI raises within."""
        try:
            yield
        except MPI.Exception as error:
            self.raise_explained(error)

    def explained(self, error: Exception) -> Exception:
        """The RankFailure of this communicator where a death is behind an error; then all that it may touch is revoked."""
        if self.closed or not survival.suspected(error):
            return error
        if not isinstance(self.queue.error, RankFailure):
            if not survival.behind(error, self.channel.wire.comm):
                return error
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
        with self.channel.lock:  # another thread may be about to free it
            for comm in (self.channel.wire.comm, self.comm) if self.channel.open else ():
                if not comm.Is_revoked():
                    comm.Revoke()

    # Calls that cannot come to their end.

    def give_up(self, whose: Located, error: BaseException, requests: object = None) -> None:
        """A call was ended in the middle of its rounds: messages of it are still on their way, and others wait for more.

        No further call is served, and the other ranks are told. Afterwards no rank writes to the caller's arrays, and none
        reads there without an error: what was posted is cancelled, and arrays of which others know the pages get new ones.
        What MPI may still use, as it was no longer to be cancelled, is never given back.
        """
        ABANDONED.append((whose, requests))
        told = self.reason(whose.where(), error)
        for _ in range(_INTERRUPTIONS):
            with suppress(BaseException):  # of a signal handler, as that which brought us here
                self.in_disorder(told)
                left = whose.withdraw() if isinstance(whose, Withdrawable) else []
                left += self.channel.withdraw()
                self.is_used_by_mpi = self.is_used_by_mpi or bool(left)
                break

    def reason(self, where: str, error: BaseException) -> MpicollError:
        """Why no further call is served after an error there."""
        told = self.explained(error) if isinstance(error, Exception) else error
        return told if isinstance(told, RankFailure) else MpicollError(f"{where}, ended by {error!r}")

    def in_disorder(self, error: Error, tell: bool = True) -> Error:
        """Serve no further call, and have those under way end with an error: messages no longer fit together.

        tell: the other ranks, which do not find out by themselves. Returns the error that says why.
        """
        self.broken = self.broken or str(error)
        self.queue.error = self.queue.error or error
        if self.links is not None:
            self.links.give_up()
        if not self._is_told:
            if tell and not isinstance(error, RankFailure):  # which MPI tells
                self.channel.give_notice(f"{type(error).__name__}\n{error}")
                if self.links is not None:
                    self.links.ring()
            BELL.ring()  # another thread may be in a call that cannot come to its end
            # not earlier: a signal handler may raise in the middle, and this is called again
            self._is_told = True
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


def _told_by(rank: int, text: str) -> MpicollError:
    """What a rank says that gave the communicator up."""
    kind, _, reason = text.partition("\n")
    if kind == CollectiveMismatch.__name__:  # which is the same on all ranks
        return CollectiveMismatch(reason)
    made = CollectiveTimeout if kind == CollectiveTimeout.__name__ else MpicollError
    return made(f"rank {rank} gave this communicator up: {reason}")
