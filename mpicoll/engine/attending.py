"""Programs that move beside Python, in the background thread: see `progress`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .library import status

#: programs of the extension, and the number of the call that each executes
Calls = tuple[Any, ...]


class Attendance:
    """What the background thread advances in C, without the interpreter's lock.

    least, spin, patience: seconds of its rhythm, see `progress.rhythm`.
    """

    def __init__(self, least: float, spin: float, patience: float) -> None:
        self._constants = least, spin, patience
        self._extension: Any = None

    @staticmethod
    def calls(awaited: Sequence[object]) -> Calls:
        """The calls of programs that tasks wait for; () where they wait for something else, too."""
        found = tuple([getattr(awaits, "attended", None) for awaits in awaited])
        return () if None in found else found

    @staticmethod
    def needs_turn(awaited: Sequence[Any]) -> bool:
        """Whether Python reads what they read, where it advances tasks."""
        return any([awaits.reads_pipes for awaits in awaited])

    def attend(self, calls: Calls, parts: int, most: float, seconds: float) -> bool:
        """Advance these for so long, or until Python has to see to one of them.

        parts, most: of a pace. False: Python has to see to one now.
        """
        if self._extension is None:
            extension = status().extension
            extension.setup_rhythm(*self._constants)
            self._extension = extension
        has_waited: bool = self._extension.attend(calls, parts, most, seconds)
        return has_waited

    def interrupt(self) -> None:
        """Let `attend` return soon in the other thread."""
        if self._extension is not None:
            self._extension.interrupt()
