"""A pipe by which other processes of the node wake a thread of this one."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

_GIVEN_UP = b"!"


class Bell:
    """That of this process, made when it is first asked for."""

    def __init__(self) -> None:
        self._reading = -1
        self._writing = -1
        self._lock = threading.Lock()

    def place(self) -> tuple[int, int]:
        """By which others find it: the descriptor, and what tells this pipe from any other file.

        Raises OSError where there is no descriptor left.
        """
        with self._lock:
            if self._writing < 0:
                self._reading, self._writing = os.pipe()
                os.set_blocking(self._reading, False)
                os.set_blocking(self._writing, False)
        return self._writing, os.fstat(self._writing).st_ino

    def descriptor(self) -> int:
        """To wait for until it is readable. Raises as `place`."""
        self.place()
        return self._reading

    def wake(self) -> None:
        """Wake the thread of this process, which may have something else to do by now."""
        self._write(b".")

    def ring(self) -> None:
        """Wake it, as a rank has given a communicator up."""
        self._write(_GIVEN_UP)

    def _write(self, word: bytes) -> None:
        with suppress(OSError):  # there is no pipe, or nobody has read for long
            os.write(self._writing, word)

    def was_rung(self) -> bool:
        """Empty the pipe; whether a rank has given a communicator up since the last time."""
        try:
            return _GIVEN_UP in os.read(self._reading, 1 << 16)
        except OSError:
            return False


def ring(pid: int, descriptor: int, inode: int) -> None:
    """Tell another process of the node, if it is there, that a communicator was given up. descriptor, inode: see `place`."""
    with suppress(OSError):
        pipe = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if os.fstat(pipe).st_ino == inode:  # another process may have its number by now
                os.write(pipe, _GIVEN_UP)
        finally:
            os.close(pipe)


#: one per process
BELL = Bell()
