"""Doors: repeated calls of arrays go from the method straight into the extension.

A door knows calls by what their arguments are, and of arrays by where they lie; a list of an array,
perhaps a count, and a type stands for its array. A door gives a call its number, its place and its
tag as the long way does (`failure.Recorder`, `transport.Channel`). All else goes the long way,
which teaches the door: other arrays, other kinds of arguments, calls that somebody listens to, and
calls while a program is under way. A call that does not block waits there for a moment, too: to
make a task of it takes as long. What MPI's own function serves goes to that. Each plan has a door
of its own, which starts it again, on its arrays and with its tag.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from .. import engine
from ..buffers import OWN_TYPES
from ..failure import ENDED, KEPT, Mark, mark_of
from ..progress import PROGRESS
from ..shared_memory import TASKS
from .operation import Operation

if TYPE_CHECKING:
    from .context import Context
    from .scheduled_call import ScheduledCall

#: classes of arguments that cannot change, and arrays
_PLAIN = {np.ndarray, MPI.Op, int, str, type(None), type(MPI.IN_PLACE)}

IsServed = Callable[..., bool]
#: goes on with a call that a door has begun: of the operation, the tag, the call, its
#: arguments, and what a signal handler has raised, or None
Finish = Callable[
    ["ScheduledCall", int, Mark, "tuple[object, ...]", "BaseException | None"], object
]
#: told of an exception that one of these has raised for an operation; whether it is called again
Interrupted = Callable[["ScheduledCall", BaseException], bool]


def _is_comparable(argument: Any) -> bool:
    """Whether a door can tell an argument from others: also a list of an array, a count and a type.

    Types of users are not comparable: once they are freed, others have their handles.
    """
    if argument.__class__ not in (list, tuple):
        return argument.__class__ in _PLAIN
    array, *beside = argument or [None]
    return array.__class__ is np.ndarray and len(beside) in (1, 2) and all(
        item.__class__ is int or item.__class__ is MPI.Datatype and item.handle in OWN_TYPES
        for item in beside
    )


def _closed(*arguments: object) -> bool:
    return False


class Doors:
    """The doors of one communicator, by method."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._doors: dict[str, Any] = {}
        #: the methods of blocking calls
        self._blocking: set[str] = set()

    def of(self, method: str) -> IsServed:
        """A function of a blocking call's arguments: serves the call, or returns False."""
        door = self._door(method, self._finish, self._goes_on)
        if door is None:
            return _closed
        self._blocking.add(method)
        served: IsServed = door.call
        return served

    def begin(self, method: str, go_on: Finish, arguments: Sequence[object]) -> Any:
        """Begin a call that does not block.

        None: it has not begun, as it is not known here, or other calls are under way. True: it has
        ended. Else what `go_on` returns.
        """
        door = self._door(method, go_on, self._abandon, gives_way=True)
        return None if door is None else door.call(*arguments) or None

    def of_plan(self) -> Any:
        """A door for the starts of one plan, or None."""
        return self._made(_closed, _closed, gives_way=True)

    def _door(
        self, method: str, finish: Finish, interrupted: Interrupted, gives_way: bool = False
    ) -> Any:
        """The door of a method; None without the extension."""
        if method not in self._doors:
            self._doors[method] = self._made(finish, interrupted, gives_way)
        return self._doors[method]

    def _made(self, finish: Finish, interrupted: Interrupted, gives_way: bool = False) -> Any:
        """A door. gives_way: to tasks that are under way, and to messages that Python has."""
        extension = engine.status().extension
        if extension is None or not engine.has_doors():
            return None
        context = self._context
        recorder = context.recorder
        begun = context.channel.begun
        queue, links = context.queue, context.links
        return extension.Door(
            recorder,
            context.calls,
            recorder.passed,
            ENDED,
            recorder.remember_passed,
            finish,
            interrupted,
            self._fail,
            (queue.running, queue.waiting) if gives_way else (),
            links.backoff(TASKS) if gives_way and links is not None else None,
            *PROGRESS.rooms,
            begun.address,
            begun.last,
            context.channel.number_bit,
            KEPT,
        )

    def learn(
        self, method: str, arguments: Sequence[object], operation: Operation, text: str
    ) -> None:
        """Let calls like this one through, which `operation` served. text: the call in words."""
        context = self._context
        door = self._doors.get(method)
        if door is None or context.sees_all:
            return
        if all(map(_is_comparable, arguments)):
            patience = context.patience if method in self._blocking else None
            operation.open_door(door, tuple(arguments), mark_of(text), patience)

    def _finish(
        self, operation: ScheduledCall, tag: int, mark: Mark,
        arguments: tuple[object, ...], raised: BaseException | None,
    ) -> bool:  # fmt: skip
        """Wait for a call that a door has begun; True."""
        context = self._context
        context.held.hold(raised)
        record = context.recorder.blocking.resume(mark.text)
        finish = partial(operation.finish, record, tag, arguments)
        # what else an error asks for is seen to when the extension tells of it
        context.serve(finish, record, arguments, is_scheduled=False)
        return True

    def _goes_on(self, operation: ScheduledCall, error: BaseException) -> bool:
        """An exception has ended the wait for a call that a door has begun: whether it goes on.

        Then it is held, and `_finish` is called again. Else the call is given up.
        """
        is_stuck = operation.compiled is not None and operation.compiled.is_stuck
        if not operation.unfinished or is_stuck or not self._context.outlives(error):
            return self._abandon(operation, error)
        return True

    def _abandon(self, operation: ScheduledCall, error: BaseException) -> bool:
        """A call that a door has begun has ended with an error; False: it does not go on."""
        if operation.unfinished and not self._context.broken:
            self._context.give_up(operation, error)
        return False

    def _fail(self, code: int, arguments: Sequence[object]) -> None:
        """Raise the error with which MPI's own function returned."""

        def fail() -> None:
            raise MPI.Exception(code)

        context = self._context
        context.serve(fail, context.recorder.blocking, arguments, is_scheduled=False)

    def clear(self) -> None:
        """Know no call any more. The limit of waiting may be another one by now."""
        for door in self._doors.values():
            if door is not None:
                door.clear()
