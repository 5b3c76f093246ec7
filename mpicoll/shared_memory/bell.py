"""A pipe by which signals, and other processes of the node, wake a thread of this one."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

from ..support.files import identity, is_still

#: words that are written to it: a rank has given a communicator up
GIVEN_UP = b"!"
#: a person asks by a signal what this process is doing
ASKED = b"?"


class Bell:
    """The pipe of this process, created at its first use."""

    def __init__(self) -> None:
        self._reading = -1
        self._writing = -1
        #: what both descriptors are of, until the program closes them
        self._identity = (-1, -1)
        self._lock = threading.RLock()

    def place(self) -> tuple[int, int]:
        """Its descriptor and inode, by which other processes find it.

        Raises OSError where the process has no descriptor left.
        """
        with self._lock:
            if self._writing < 0:
                self._reading, self._writing = os.pipe()
                os.set_blocking(self._reading, False)
                os.set_blocking(self._writing, False)
                self._identity = identity(self._writing)
        return self._writing, os.fstat(self._writing).st_ino

    def descriptor(self) -> int:
        """The end to poll until it is readable. Raises as `place`."""
        self.place()
        return self._reading

    def wake(self) -> None:
        """Wake the thread of this process, for other work."""
        self._write(b".")

    def ring(self) -> None:
        """Wake the thread of this process: a rank has given a communicator up."""
        self._write(GIVEN_UP)

    def ask(self) -> None:
        """Wake the thread of this process: a person asks what it is doing."""
        self._write(ASKED)

    def _write(self, word: bytes) -> None:
        with suppress(OSError):  # no pipe yet, or a full pipe
            if is_still(self._writing, self._identity):
                os.write(self._writing, word)

    def words(self) -> bytes:
        """Empty the pipe; what was written to it since the last call.

        Nothing where the program has closed it, and the descriptor is perhaps of another file.
        """
        with suppress(OSError):
            if is_still(self._reading, self._identity):
                return os.read(self._reading, 1 << 16)
        return b""


def ring(pid: int, descriptor: int, inode: int) -> None:
    """Tell another process of the node, if it lives, that a communicator was given up.

    descriptor, inode: see `Bell.place`.
    """
    with suppress(OSError):
        pipe = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if os.fstat(pipe).st_ino == inode:  # the pid may belong to a new process
                os.write(pipe, GIVEN_UP)
        finally:
            os.close(pipe)


#: the bell of this process
BELL = Bell()
