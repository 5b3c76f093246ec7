"""Pages that show a failure from symptom to cause: their programs, their commands, and what these print.

A block that begins with ```py title="NAME" or ```sh title="NAME" is a file. A block of `console` is a session of a shell: lines
that begin with "$ " are its commands, the others are what they print. A title names the MPI library that it needs.
A page may leave out anything of it, by "…", and may break lines elsewhere.
"""

import os
import platform
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.support.launching import PATIENCE, ROOT, environment

NAMES = ("hangs", "slow-node", "results-differ", "rank-died")
PAGES = [ROOT / "docs" / f"{name}.md" for name in NAMES]
#: what a page calls the folder of its files, and the machine
HOME = "/home/me"
NODE = "node1"
#: what is another each time
VARYING = re.compile(
    r"\d+\.\d+"
    r"|\d+(?=%| % | Mb/s)"
    r"|(?<=communicator )[0-9a-f]+"
    r"|(?<=process )\d+|(?<=PID )\d+"
    r"|(?<=: )[0-9a-f]{16}"
    r"|(?<=Thread )0x[0-9a-f]+|(?<=thread )0x[0-9a-f]+"
    r"|(?<=\(circulant\): )round .*? rank \d|(?<=\(ring\): )round .*? rank \d"
    r"|\S+ \S+(?= \d+%)"
)


class Session(NamedTuple):
    """Commands, and what they print."""

    library: str
    commands: list[str]
    shown: str


def files(page):
    """The files that a page shows, by their names."""
    return dict(re.findall(r'```(?:py|sh) title="(.+?)"\n(.*?)```', page.read_text(), re.DOTALL))


def sessions(page):
    """The sessions of a page, in their order."""
    found = []
    for library, block in re.findall(r'```console(?: title="(.+?)")?\n(.*?)```', page.read_text(), re.DOTALL):
        lines = block.splitlines()
        commands = [line[2:] for line in lines if line.startswith("$ ")]
        shown = " ".join(line for line in lines if not line.startswith("$ "))
        found.append(Session(library, commands, " ".join(shown.split())))
    return found


def pattern(shown):
    """A regular expression of what a page shows."""
    return r".*?".join(_varying(part.strip()) for part in shown.split("…"))


def _varying(text):
    kept = [re.escape(part) for part in re.split(VARYING, text)]
    return r"\S.*?".join(kept)


def run(session, installation, folder, patience):
    """What the commands of a session print in a folder, on one line; `patience` multiplies each `sleep`."""
    script = re.sub(r"\bsleep (\d+)", lambda found: f"sleep {int(found[1]) * patience}", "\n".join(session.commands))
    path = f"{Path(installation.python).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["bash", "-c", script], cwd=folder, env=environment(PATH=path), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE)  # fmt: skip
    said = done.stdout.replace(str(folder), HOME)
    return " ".join(re.sub(rf"\b{platform.node()}\b", NODE, said).split())
