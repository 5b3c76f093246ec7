"""Collectives with a callback, and messages with a lower priority than collectives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from mpi4py import MPI

from ..buffers import Operand, device_of
from ..calls import arguments, begin, key_of, run_begun
from ..codes import CompressionName
from ..execute import Context
from ..failure import Record
from ..progress import PROGRESS, Task, until_done
from ..support.arrays import Array
from ..support.callsite import call_site
from ..support.settings import ALWAYS
from .base import Base

#: bytes of a piece of a `BackgroundExchange`
_PIECE = 128 << 10
#: pieces in flight: with a single one the link would be idle at the end of each
_IN_FLIGHT = 2


def begin_task(
    comm: Base, method: str, args: Sequence[object], then: Callable[[], object],
    finish: Callable[[], object] | None = None, algorithm: str | None = None,
    compression: CompressionName | None = None,
) -> Task:  # fmt: skip
    """Begin a collective without waiting; returns its `Task`.

    Parameters
    ----------
    comm : Communicator
        The communicator of the collective.
    method : str
        The blocking method: ``"Allreduce"``. MPI serves it where mpicoll has no such collective.
    args : sequence
        All arguments of the method. Buffers must live until the task has ended.
    then : callable
        Called once the task has ended, in any thread; it may wait for other tasks.
    finish : callable, optional
        The last step of the task: no thread sees the end of the task before.
    algorithm, compression : str, optional
        As in the method.

    Raises
    ------
    ArgumentError, BufferError
        As the method, before anything is sent; a wait for the task raises later errors.
    """

    def submit(
        context: Context, steps: Iterator[object], record: Record, operands: Sequence[Operand],
        track: int | None,
    ) -> Task:  # fmt: skip
        steps = _followed_by(steps, finish)
        return context.submit(steps, record, device=device_of(operands), then=then, track=track)

    return _begin(comm, method, args, algorithm, submit, compression)


def run_task(
    comm: Base, method: str, args: Sequence[object], finish: Callable[[], object] | None = None,
    algorithm: str | None = None,
) -> None:  # fmt: skip
    """Begin a collective and wait for its end; other ranks may begin the call by `begin_task`.

    MPI's blocking methods do not match non-blocking calls, and cannot be abandoned.

    Parameters
    ----------
    comm, method, args, finish, algorithm
        As in `begin_task`.

    Raises
    ------
    ArgumentError, BufferError, CollectiveMismatch, CollectiveTimeout, RankFailure
        As the method.
    """
    context = comm._context
    parse = getattr(arguments, method.lower(), None)
    is_compared = context.check == ALWAYS or context.digest_every
    if algorithm is None and parse is not None and not is_compared:
        entry = context.cache.find(key_of((begin, parse), args, None, None))
        if entry is not None and entry.method is not None:
            run_begun(entry, comm, context, args)
            if finish is not None:
                finish()
            return

    def submit(
        context: Context, steps: Iterator[object], record: Record, operands: Sequence[Operand],
        track: int | None,
    ) -> Task:  # fmt: skip
        steps = _followed_by(steps, finish)
        device = device_of(operands)
        return PROGRESS.run(Task(steps, context.queue, record, device=device, track=track))

    _begin(comm, method, args, algorithm, submit)


def _begin(
    comm: Base, method: str, args: Sequence[object], algorithm: str | None,
    submit: Callable[..., Task], compression: CompressionName | None = None,
) -> Task:  # fmt: skip
    parse = getattr(arguments, method.lower(), None)
    if parse is not None:
        parse = arguments.allowing(parse, compression)
        begun = comm._begin_with(parse, tuple(args), algorithm, None, submit)
    else:
        begun = getattr(MPI.Intracomm, f"I{method.lower()}")(comm, *args)
    if isinstance(begun, MPI.Request):  # MPI serves the call, and runs no callback
        context = comm._context
        is_new = parse is None  # else the recorder has counted the call
        record = context.recorder.begin(method, call_site(), ordered=is_new)
        begun = submit(context, until_done([begun]), record, (), None)
    task: Task = begun
    return task


def _followed_by(
    steps: Iterator[object], finish: Callable[[], object] | None
) -> Iterator[object]:
    yield from steps
    if finish is not None:
        finish()


class BackgroundExchange:
    """Messages that progress in the background, with lower priority than collectives. Local.

    Parameters
    ----------
    comm : Communicator
        Used for these messages alone; the receiving ranks create their `BackgroundExchange` with
        it, too.
    sent, to : array and int
        The data that this rank sends, and the receiver. A piece begins when no call of `behind` is
        in flight on this rank. A long message would take its share of the link, and collectives
        cannot overtake data in the network.
    received : dict of int to array
        Receive buffers, by rank. All arrays are contiguous.
    behind : Communicator
        Its calls have priority.
    """

    def __init__(
        self, comm: Base, sent: Array, to: int, received: Mapping[int, Array], behind: Base
    ) -> None:
        self.nbytes: int = sent.nbytes
        #: whether the messages have no lower priority any more
        self._urgent = False
        #: the tasks that have priority
        self._first = behind._context.queue
        self._stall = comm._context.queue.stall
        receives = [
            MPI.Intracomm.Irecv(comm, piece, rank)
            for rank, array in received.items()
            for piece in _pieces(array)
        ]
        # synchronous: a piece is done when it is received, not when a socket has buffered it
        sends = [partial(MPI.Intracomm.Issend, comm, piece, to) for piece in _pieces(sent)]
        self._task = comm._context.submit(self._steps(sends, receives))

    def _steps(
        self, sends: Iterable[Callable[[], MPI.Request]], receives: Iterable[MPI.Request]
    ) -> Iterator[object]:
        in_flight: list[MPI.Request] = []
        for send in sends:
            while self._first.running and not self._urgent:
                self._stall.restart()  # no timeout: it waits for no other rank
                yield None
            if len(in_flight) == _IN_FLIGHT:
                yield from until_done([in_flight.pop(0)])
            in_flight.append(send())
        yield from until_done([*in_flight, *receives])

    @property
    def is_done(self) -> bool:
        """Whether all messages have come and been sent."""
        return self._task.ended > 0 and self._task.error is None

    def wait(self) -> float:
        """Wait for all messages, now without lower priority; returns the seconds that they took.

        Raises the error that ended them.
        """
        self._urgent = True
        PROGRESS.wait(self._task)
        return self._task.ended - self._task.begun


def _pieces(array: Array) -> list[Array]:
    flat = array.reshape(-1).view("u1")
    return [flat[start : start + _PIECE] for start in range(0, len(flat), _PIECE)]
