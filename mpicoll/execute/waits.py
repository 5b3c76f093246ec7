"""How calls of one communicator wait, and what ends them early: a limit, a dead rank, an error."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from mpi4py import MPI

from ..engine import Compiled, Held
from ..errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    MpicollError,
    RankFailure,
    SharedMemoryError,
)
from ..failure import ABANDONED, Located, Recorder, Resumable, Withdrawable, survival
from ..progress import NAP, PROGRESS, Queue, Rhythm
from ..shared_memory import BELL, Links, Polled
from ..support import settings
from ..support.checks import ranks_text
from ..support.stderr import print_now
from ..transport import Channel
from .accounts import Accounts
from .cache import CallCache

if TYPE_CHECKING:
    from typing_extensions import Self

Error = TypeVar("Error", bound=MpicollError)

#: seconds between two looks that count as no progress, at most
_BETWEEN = 0.1
#: seconds for which a blocking call waits in the extension before Python looks around
_IN_C = 0.05
#: the same as a part of the limit
_PART = 0.1
#: seconds for which a rank that knows of another which gave up waits to hear why
_HEARING = 1.0
#: seconds to wait for a thread that looks around on a communicator that is to be revoked
_REVOKING = 1.0
#: why a child process serves no call
_FORKED = (
    "expected a call in a process that MPI has started, got one in a child that was forked from it:"
    " other ranks would take its messages for the parent's. Make the call in the parent, or start "
    'the child by "spawn"'
)
#: how often an exception of a signal handler may interrupt what is done to give up
_INTERRUPTIONS = 100


class Waits:
    """What a communicator's context does while a call waits, and when it cannot come to its end."""

    #: explain_wait(context, seconds): which rank waits for which; set by `watch`, which lies above
    explain_wait: ClassVar[Callable[[Any, float], str]]
    #: seconds that a call may wait without progress, or None
    timeout: float | None
    #: the communicator was freed
    closed: bool
    links: Links | None
    channel: Channel
    nccl: dict[int, Any]
    #: those that were not freed, by `id`
    _alive: ClassVar[weakref.WeakValueDictionary[int, Any]] = weakref.WeakValueDictionary()

    def __init__(self, comm: MPI.Comm, channel: Channel) -> None:
        self.channel = channel
        self.recorder = Recorder(channel.own_name, len(channel.ranks))
        self.cache = CallCache()
        self.accounts = Accounts(channel, self.recorder)
        self.queue = Queue(self.check_wait, self.explained, self.lose_step)
        self.held = Held()
        #: a call that counts and has ended with an error, in words, and the error: until that is
        #: seen to, which a signal handler that raises once more may prevent
        self.lost: tuple[str, BaseException] | None = None
        #: the communicator's handle
        self.comm = MPI.Intracomm(comm)
        #: ranks in COMM_WORLD that were dead before the communicator was made
        self.without = frozenset(survival.DEAD)
        #: why no further call can be served; empty while all is well
        self.broken = ""
        #: the rank of the world that said so first; None: this rank found out by itself
        self.given_up_by: int | None = None
        #: whether MPI may still use memory of calls that were given up
        self.is_used_by_mpi = False
        self._reported = 0.0
        #: whether the other ranks know that this communicator is given up
        self._is_told = False

    @classmethod
    def living(cls) -> list[Self]:
        """Those of all communicators that were not freed."""
        # its references are read in one step: other threads make and forget communicators
        found = (reference() for reference in cls._alive.valuerefs())
        return [context for context in found if context is not None]

    @classmethod
    def leave_to_parent(cls) -> None:
        """In a child process: serve no call, and tell no other rank."""
        for context in cls.living():
            context.recorder.is_closed = True
            context.broken = _FORKED
            context.cache.clear()
            context._is_told = True

    @property
    def patience(self) -> float:
        """Seconds for which a blocking call waits in the extension before Python looks around."""
        return _IN_C if self.timeout is None else min(_IN_C, self.timeout * _PART)

    def wait_for(self, requests: Iterable[MPI.Request], call: Located) -> None:
        """Await requests one by one, as they come.

        Raises CollectiveTimeout where a request takes longer than it may, and MpicollError where
        another rank gives up.
        """
        watched = self.timeout is not None or survival.survivable()
        polled = Compiled if watched else (Polled, Compiled)
        rhythm = None
        while True:
            try:
                for request in requests:
                    if isinstance(request, polled):  # it looks around by itself
                        self.queue.stall.restart()
                        request.Wait()
                    else:
                        rhythm = self._watch(request, rhythm, call)
                return
            except BaseException as error:  # Ctrl-C and signal handlers that raise among them
                rest = None
                if isinstance(call, Resumable) and self.outlives(error):
                    rest = call.rest()
                if rest is None:
                    if call.unfinished:
                        self.give_up(call, error, requests)
                    PROGRESS.end_failed(self.queue)
                    raise
                self.held.hold(error)
                requests = rest

    def _watch(
        self, request: MPI.Request, rhythm: Rhythm | None, call: Located
    ) -> Rhythm | None:
        """Await a request. What a signal handler raises meanwhile is held: see `Held`.

        rhythm: of the call so far; created late, as most calls have nothing to wait for, when they
        are compared. Returns it.
        """
        stall = self.queue.stall
        begun = False
        while True:
            try:
                while not request.Test():
                    rhythm = rhythm or Rhythm(NAP)
                    if not begun:
                        rhythm.restart()
                        stall.restart()
                        begun = True
                    self.keep_watch()
                    if self.held.is_due(perf_counter() - rhythm.moved):
                        break
                    rhythm.leave_core(0, lambda: call.runs_ahead)
                else:
                    if rhythm is not None and begun:
                        stall.restart()
                        rhythm.still(1)
                    return rhythm
            except BaseException as error:
                if isinstance(request, Polled) or not self.outlives(error):
                    raise
                self.held.hold(error)
                continue
            self.held.release()

    def outlives(self, error: BaseException) -> bool:
        """Whether a call that waits goes on after an exception: one that a signal handler raised.

        Not in the middle of what ranks tell each other, nor where this rank gives its calls up.
        """
        is_of_the_call = isinstance(error, (MPI.Exception, MpicollError))
        is_over = self.queue.error is not None or bool(self.broken)
        return not (is_of_the_call or is_over or self.channel.is_talking)

    def keep_watch(self) -> None:
        """Look around while a call waits; raises what ends it."""
        if self.queue.stall.is_due:
            self.check_wait()
        if self.queue.error is not None:
            raise self.queue.error

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
        """Say which rank waits for which, once in as many seconds as a call may wait."""
        assert self.timeout is not None
        if perf_counter() - self._reported > self.timeout:
            self._reported = perf_counter()
            print_now(f"mpicoll: {type(self).explain_wait(self, seconds)}")

    # Ranks that died, or gave up.

    def look_around(self) -> None:
        """`look`, unless all is over; the waiting thread finds the error in the queue."""
        if self.broken or self.closed:
            return
        try:
            with suppress(MpicollError):
                self.look()
        except MPI.Exception as error:
            self.explained(error)

    def look(self, surely: bool = False) -> None:
        """Let MPI make progress, and raise where another rank has given this communicator up.

        surely: another rank has given it up, and says why.
        """
        until = perf_counter() + _HEARING
        while self.queue.error is None:
            notice = self.channel.notice()
            if notice is not None:
                self.given_up_by = self.channel.world_ranks[notice[0]]
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
        PROGRESS.end_failed(self.queue)
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
        """The RankFailure of this communicator where a death is behind an error.

        Then everything that the death may affect is revoked.
        """
        if self.closed or not survival.suspected(error):
            return error
        if not isinstance(self.queue.error, RankFailure):
            if not survival.behind(error, self.channel.wire.comm):
                return error
            for context in {self, *self.living()}:
                context.bereave(force=context is self)
        failure = self.queue.error
        return RankFailure(*failure.args) if isinstance(failure, RankFailure) else error

    def bereave(self, force: bool) -> None:
        """Ranks have died: wake the threads that wait here, and serve no further call.

        Unless the communicator was made after that. Other ranks may wait in any communicator for
        ranks that now stop waiting, whether the dead are in it or not.
        """
        if isinstance(self.queue.error, RankFailure) or self.closed:
            return
        if survival.DEAD <= self.without and not force:
            return
        world = self.channel.world_ranks
        ranks = tuple(rank for rank, number in enumerate(world) if number in survival.DEAD)
        if ranks:
            who = f"{ranks_text(ranks)} died"
        else:
            elsewhere = "a rank not known here yet"
            if survival.DEAD:
                elsewhere = f"{ranks_text(sorted(survival.DEAD))} of COMM_WORLD"
            who = f"{elsewhere} died, and this communicator was revoked"
        doing = "; ".join(record.text for record in self.recorder.under_way)
        text = (
            f"rank {self.channel.rank}: {who}{doing and f', seen in {doing}'}. The other ranks can "
            "go on with what comm.shrink() returns, called by all that live"
        )
        self.in_disorder(RankFailure(text, ranks))
        self.channel.looking.take(self._revoke, patience=_REVOKING)

    def _revoke(self) -> None:
        """Needs the turn `looking`: another thread may be about to free it."""
        for comm in (self.channel.wire.comm, self.comm) if self.channel.open else ():
            if not comm.Is_revoked():
                comm.Revoke()

    # Calls that cannot come to their end.

    def give_up(self, call: Located, error: BaseException, requests: object = None) -> None:
        """A call has ended in the middle of its rounds: messages of it are still on their way.

        Other ranks wait for more of them. No further call is served, and the other ranks are told.
        Afterwards no rank writes to the caller's arrays, and no rank reads there without an error:
        posted messages are cancelled, and arrays with pages that other ranks know get new pages.
        Memory that MPI may still use, as a message could not be cancelled, is never given back.
        """
        ABANDONED.append((call, requests))
        told = self.reason(call.where(), error)
        for _ in range(_INTERRUPTIONS):
            with suppress(BaseException):  # of a signal handler, as that which brought us here
                self.in_disorder(told)
                left = call.withdraw() if isinstance(call, Withdrawable) else []
                left += self.channel.withdraw()
                self.is_used_by_mpi = self.is_used_by_mpi or bool(left)
                break

    def reason(self, where: str, error: BaseException) -> MpicollError:
        """Why no further call is served after an error there."""
        told = self.explained(error) if isinstance(error, Exception) else error
        if isinstance(told, RankFailure):
            return told
        return MpicollError(f"{where}, ended by {error!r}")

    def lose_step(self, text: str, error: BaseException) -> None:
        """A call that counts has ended with this error, before it was served; text: the call.

        Where it is the program's own, as a signal handler's, the other ranks find no such call
        here: no further call is served. All ranks know of errors of MPI and ours, but for memory.
        """
        is_known = isinstance(error, (MpicollError, MPI.Exception))
        if not is_known or isinstance(error, SharedMemoryError):
            self.in_disorder(self.reason(text, error))
        self.lost = None

    def see_to_what_was_lost(self) -> None:
        """See to a call whose end a signal handler has cut short, see `lost`."""
        if self.lost is not None:
            self.lose_step(*self.lost)

    def in_disorder(self, error: Error, tell: bool = True) -> Error:
        """Serve no further call, and end those under way with an error: messages no longer match.

        tell: inform the other ranks, which do not find out by themselves. Returns the error that
        tells the reason.
        """
        # not what another thread has made of it, whose call it has ended
        first = self.queue.error or error
        self.broken = self.broken or str(first)
        self.recorder.is_closed = True
        self.queue.error = first
        if self.links is not None:
            self.links.give_up()
        if not self._is_told:
            if tell and not isinstance(error, RankFailure):  # which MPI tells
                self.channel.give_notice(f"{type(first).__name__}\n{first}")
                if self.links is not None:
                    self.links.ring()
            BELL.ring()  # another thread may be in a call that cannot come to its end
            # not earlier: a signal handler may raise in the middle, and this is called again
            self._is_told = True
        self.cache.clear()
        for made in self.nccl.values():
            made.abort()
        return error

    def require_working(self) -> None:
        """Raise where no call can be served: RankFailure if ranks died, else MpicollError."""
        if self.broken is _FORKED:
            raise MpicollError(f"rank {self.channel.rank}: {_FORKED}")
        self.see_to_what_was_lost()
        PROGRESS.end_failed(self.queue)
        if isinstance(self.queue.error, RankFailure):
            raise RankFailure(*self.queue.error.args)
        if self.broken:
            raise MpicollError(
                f"this communicator cannot be used any more: {self.broken}\n"
                "Its messages and those of other ranks no longer fit together: free it and make a "
                "new one on all ranks, or end the job"
            )


os.register_at_fork(after_in_child=Waits.leave_to_parent)


def _told_by(rank: int, text: str) -> MpicollError:
    """The error for what a rank said that gave the communicator up."""
    kind, _, reason = text.partition("\n")
    if kind == CollectiveMismatch.__name__:  # which is the same on all ranks
        return CollectiveMismatch(reason)
    made = CollectiveTimeout if kind == CollectiveTimeout.__name__ else MpicollError
    return made(f"rank {rank} gave this communicator up: {reason}")
