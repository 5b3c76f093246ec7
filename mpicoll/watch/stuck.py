"""Calls of MPI's own that do not return: the thread's current instruction does not change."""

from __future__ import annotations

from types import FrameType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ..execute import Context
from ..progress import Stall
from ..support.callsite import site_of, site_text
from ..support.garbage import frames_of_threads
from ..support.turn import Turn

#: the most seconds that count between two looks: this process may have been stopped
_BETWEEN = 0.2
#: modules in which calls begin, also those that are not recorded
_CALLERS = "mpicoll.communicator."
#: calls that end, also on an invalid communicator, when the other ranks make them too
_FREEING = ("Free", "Disconnect")


class BlockedCall(NamedTuple):
    """A call of MPI's own."""

    #: its name and source line
    text: str
    #: it changes as soon as the call makes progress
    position: object


class StuckCalls:
    """For how long each communicator's call of MPI's own makes no progress.

    A thread that still computes is not stuck: to bind a schedule takes time, too.
    """

    def __init__(self) -> None:
        #: the call at the last look, whether the communicator was invalid, and the clock
        self._last: WeakKeyDictionary[Context, tuple[BlockedCall, bool, Stall]] = (
            WeakKeyDictionary()
        )

    def look(self, context: Context) -> tuple[str, float]:
        """A communicator's call, "" without one, and the seconds since its last progress.

        The clock restarts when the communicator becomes invalid.
        """
        call = _call_of(context)
        is_broken = bool(context.broken)
        if call is None:
            self._last.pop(context, None)
            return "", 0.0
        last = self._last.get(context)
        if last is None or last[:2] != (call, is_broken):
            last = (call, is_broken, Stall())
            self._last[context] = last
        return call.text, last[2].look(_BETWEEN)


def _call_of(context: Context) -> BlockedCall | None:
    """The call of MPI's own that a communicator is in, where it may be stuck."""
    record = context.recorder.blocking
    frames = frames_of_threads()
    number = record.number
    text = record.text
    if number:
        frame = frames.get(record.thread)
        if frame is None or record.plan is not None or context.broken and text in _FREEING:
            return None
        if frame.f_code is Turn.take.__code__:  # it waits for another thread of this process
            return None
        # not `site_of` the frame: the thread may go on meanwhile, and what the frame of a generator
        # then says of its caller need not be there any more
        site = site_text(record.site)
        where = f"{text} at {site}" if site else text
        return BlockedCall(where, (number, *_instruction(frame)))
    # a call through a door has no record; on an invalid communicator it cannot end
    for frame in frames.values() if context.broken else ():
        name = _method_in(frame, context)
        if name and name not in _FREEING:
            place = context.recorder.places
            return BlockedCall(f"{name} at {site_of(frame)}", (place, *_instruction(frame)))
    return None


def _instruction(frame: FrameType) -> tuple[int, int]:
    return id(frame), frame.f_lasti


def _method_in(frame: FrameType, context: Context) -> str:
    """The communicator's method that a thread executes; "" without one."""
    if not frame.f_globals.get("__name__", "").startswith(_CALLERS):
        return ""
    variables: dict[str, Any] = dict(frame.f_locals)
    if getattr(variables.get("self"), "__dict__", {}).get("_context") is not context:
        return ""
    return str(variables.get("name", frame.f_code.co_name))
