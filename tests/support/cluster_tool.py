"""The command line of the virtual cluster."""

import subprocess
import sys

from tests.support.launching import environment


def tool(*options, command=(), **more):
    """Start it; its processes have `more` in their environment."""
    words = [sys.executable, "-m", "mpicoll", "cluster", *map(str, options), "--", *map(str, command)]
    return subprocess.Popen(words, env=environment(**more), text=True, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)  # fmt: skip
