"""A process beside this one that outlives it, and leaves the time of its death in the folder of reports.

Where a rank is killed, by the system for its memory, say, the launcher kills all others milliseconds later, and often names
the wrong one. Nobody else can tell then who was the first.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

#: its standard input ends without a line when whoever holds the other end has died
_PROGRAM = "import sys, time; sys.stdin.read(1) or open(sys.argv[1], 'w').write(str(time.time()))"


class Witness:
    """path: of the file that it leaves."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM, str(path.absolute())], stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def dismiss(self) -> None:
        """This process is about to end as it should."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"\n")
            self._process.stdin.close()
            self._process.wait()
        except OSError:  # it was killed before
            pass
