"""Programs that move beside Python, in the background thread: see `progress`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .library import status


class Attendance:
    """What the background thread advances in C, without the interpreter's lock.

    least, spin, patience: seconds of its rhythm, see `progress.rhythm`.
    """

    def __init__(self, least: float, spin: float, patience: float) -> None:
        self._constants = least, spin, patience
        self._extension: Any = None

    def attend(self, awaited: Sequence[object], parts: int, most: float, seconds: float) -> bool:
        """Advance programs for so long, or until Python has to see to one of them.

        awaited: what tasks wait for. parts, most: of a pace. False: Python has to see to one now,
        or something else is awaited.
        """
        calls = tuple([getattr(one, "attended", None) for one in awaited])
        if not calls or None in calls:
            return False
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
