"""Calls of MPI's own that do not come back: found by the instruction where their thread stands."""

from __future__ import annotations

from types import FrameType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ..execute import Context, Stall
from ..support.callsite import site_of, site_text
from ..support.garbage import frames_of_threads

#: seconds between two looks that count, at most: this process may have been stopped
_BETWEEN = 0.2
#: where small calls begin that are not recorded
_CALLERS = "mpicoll.communicator."
#: calls of a communicator that was given up which come to their end when the others make them, too
_FREEING = ("Free", "Disconnect")


class Call(NamedTuple):
    """A call of MPI's own. text: what and where it is; at: what changes as soon as it moves."""

    text: str
    at: object


class StuckCalls:
    """Since when each communicator's call of MPI's own has not moved.

    A thread that still computes is not stuck: to bind a schedule takes time, too.
    """

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Context, tuple[Call, bool, Stall]] = WeakKeyDictionary()

    def look(self, context: Context) -> tuple[str, float]:
        """A communicator's call, "" for none, and seconds for which it has not moved.

        They are counted anew when the communicator is given up.
        """
        call, is_broken = _call_of(context), bool(context.broken)
        if call is None:
            self._known.pop(context, None)
            return "", 0.0
        known = self._known.get(context)
        if known is None or known[:2] != (call, is_broken):
            known = self._known[context] = call, is_broken, Stall()
        return call.text, known[2].look(_BETWEEN)


def _call_of(context: Context) -> Call | None:
    """The call of MPI's own that a communicator is in, where it may be stuck."""
    record, frames = context.recorder.blocking, frames_of_threads()
    number, text = record.number, record.text
    if number:
        frame = frames.get(record.thread)
        if frame is None or record.plan is not None or context.broken and text in _FREEING:
            return None
        site = site_text(record.site) or site_of(frame)
        return Call(f"{text} at {site}", (number, *_instruction(frame)))
    # a small call has no record; it is looked for only where it cannot come to its end
    for frame in frames.values() if context.broken else ():
        name = _small_call(frame, context)
        if name and name not in _FREEING:
            made = context.recorder.places + len(context.recorder.unseen)
            return Call(f"{name} at {site_of(frame)}", (made, *_instruction(frame)))
    return None


def _instruction(frame: FrameType) -> tuple[int, int]:
    return id(frame), frame.f_lasti


def _small_call(frame: FrameType, context: Context) -> str:
    """The method of a communicator whose own code a thread is in; "" where it is in none."""
    if not frame.f_globals.get("__name__", "").startswith(_CALLERS):
        return ""
    here: dict[str, Any] = dict(frame.f_locals)
    if getattr(here.get("self"), "__dict__", {}).get("_context") is not context:
        return ""
    return str(here.get("name", frame.f_code.co_name))
