"""A collective that is begun with a callback for its end; messages that give way to others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from mpi4py import MPI

from ..calls import Hold, arguments, as_task, at_once, begin, repeated
from ..execute import PROGRESS, Task, until_done
from ..support.arrays import Array
from ..support.callsite import call_site
from ..support.settings import ALWAYS
from .base import Base

#: bytes of a piece of an `Exchange`
_PIECE = 128 << 10
#: pieces under way at a time: one alone would leave the link idle at its end
_AT_ONCE = 2


def begin_task(
    comm: Base, method: str, given: Sequence[Any], then: Callable[[], object],
    finish: Callable[[], object] | None = None, algorithm: str | None = None,
) -> Task:  # fmt: skip
    """Begin a collective without waiting; returns its `Task`.

    Parameters
    ----------
    comm : Communicator
        Whose collective it is.
    method : str
        The blocking method: ``"Allreduce"``. MPI serves it where mpicoll has no such collective.
    given : sequence
        Its arguments, all of them. Buffers must live until the task has ended.
    then : callable
        Called once the task has ended, in any thread; it may wait for other tasks.
    finish : callable, optional
        The task's last step, before anybody learns that it has ended.
    algorithm : str, optional
        As of the method.

    Raises
    ------
    ArgumentError, BufferError
        As the method, before anything is sent; later errors are raised by a wait for the task.
    """
    return _begun(comm, method, given, algorithm, as_task(then, finish))


def run_task(
    comm: Base, method: str, given: Sequence[Any], finish: Callable[[], object] | None = None,
    algorithm: str | None = None,
) -> None:  # fmt: skip
    """The same, and wait for its end; other ranks may begin the call by `begin_task`.

    The blocking methods of MPI match no non-blocking call. Nor can they be given up.

    Parameters
    ----------
    comm, method, given, finish, algorithm
        As of `begin_task`.

    Raises
    ------
    ArgumentError, BufferError, CollectiveMismatch, CollectiveTimeout, RankFailure
        As the method.
    """
    context = comm._context
    understand = getattr(arguments, method.lower(), None)
    is_compared = context.check == ALWAYS or context.digest_every
    if algorithm is None and understand is not None and not is_compared:
        known = context.known.find(repeated((begin, understand), given, None, None))
        if known is not None and known.native is not None:
            context.run_native(known, comm, given)
            if finish is not None:
                finish()
            return
    _begun(comm, method, given, algorithm, at_once(finish))


def _begun(
    comm: Base, method: str, given: Sequence[Any], algorithm: str | None, hold: Hold
) -> Task:
    understand = getattr(arguments, method.lower(), None)
    if understand is not None:
        begun = comm._begin_held(understand, tuple(given), algorithm, None, hold)
    else:
        begun = getattr(MPI.Intracomm, f"I{method.lower()}")(comm, *given)
    if isinstance(begun, MPI.Request):  # MPI serves it, and tells nobody
        context = comm._context
        is_new = understand is None  # else it was entered when it began
        record = context.recorder.begin(method, call_site(), ordered=is_new)
        begun = hold(context, until_done([begun]), record, (), None)
    task: Task = begun
    return task


class Exchange:
    """Messages that move while this process computes, with lower priority than collectives. Local.

    Parameters
    ----------
    comm : Communicator
        Which they travel on, and nothing else; the ranks that receive make theirs with it, too.
    sent, to : array and int
        What this rank sends, and to which rank: in pieces, each begun when no call of `behind` is
        under way here. A long message would take its share of the link, and what waits in the
        network cannot be overtaken.
    received : dict of int to array
        What it receives, by rank. All arrays are contiguous.
    behind : Communicator
        Whose calls go first.
    """

    def __init__(
        self, comm: Base, sent: Array, to: int, received: Mapping[int, Array], behind: Base
    ) -> None:
        self.nbytes: int = sent.nbytes
        self._urgent = False  # whether it no longer gives way
        self._first = behind._context.queue
        self._stall = comm._context.queue.stall
        awaited = [
            MPI.Intracomm.Irecv(comm, piece, rank)
            for rank, array in received.items()
            for piece in _pieces(array)
        ]
        # synchronous: a piece is done when it is received, not when a socket has buffered it
        begin = [partial(MPI.Intracomm.Issend, comm, piece, to) for piece in _pieces(sent)]
        self._task = comm._context.submit(self._steps(begin, awaited))

    def _steps(
        self, begin: Iterable[Callable[[], MPI.Request]], awaited: Iterable[MPI.Request]
    ) -> Iterator[object]:
        under_way: list[MPI.Request] = []
        for send in begin:
            while self._first.running and not self._urgent:
                self._stall.restart()  # it gives way, and waits for nobody
                yield None
            if len(under_way) == _AT_ONCE:
                yield from until_done([under_way.pop(0)])
            under_way.append(send())
        yield from until_done([*under_way, *awaited])

    def wait(self) -> float:
        """Wait for all messages, which no longer give way; returns the seconds that they took.

        Raises the error that ended them.
        """
        self._urgent = True
        PROGRESS.wait(self._task)
        return self._task.ended - self._task.begun


def _pieces(array: Array) -> list[Array]:
    flat = array.reshape(-1).view("u1")
    return [flat[start : start + _PIECE] for start in range(0, len(flat), _PIECE)]
