"""A child process that writes the time of this rank's death into the folder of reports.

After the death of a rank, killed for its memory, for example, the launcher kills all others within
milliseconds, and often names the wrong rank. Only the times tell which rank died first.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

#: its standard input ends without a line when the rank, which holds the other end, has died
_PROGRAM = "import sys, time; sys.stdin.read(1) or open(sys.argv[1], 'w').write(str(time.time()))"


class Witness:
    """path: of the file that it writes."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM, str(path.absolute())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """End the child without a file: this process is about to exit."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"\n")
            self._process.stdin.close()
            self._process.wait()
        except OSError:  # it was killed before
            pass
