"""show what the ranks of a running job do, and who waits for whom (MPICOLL_REPORT)."""

import shutil
import sys
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from ..errors import ArgumentError
from ..reports import State, live_table, read_reports
from ..support import settings
from .screen import LINES, width

#: seconds between two looks, as ranks leave a report once a second
_PAUSE = 1.0
#: where the screen begins, and what clears the rest of it
_TOP = "\x1b[H"
_CLEAR = "\x1b[J"


def add_arguments(parser: ArgumentParser) -> None:
    """Which job, and how often to look."""
    parser.add_argument(
        "job",
        metavar="DIR|PID",
        help="the job's MPICOLL_REPORT, or the number of a process of it on this machine",
    )
    parser.add_argument("--once", action="store_true", help="print it once, as into a pipe")


def run(arguments: Namespace) -> None:
    """Print the table again and again."""
    folder = _folder(arguments.job)
    once = arguments.once or not sys.stdout.isatty()
    if once:
        print(_table(read_reports(folder), 1 << 20))
        return
    try:
        while True:
            states = read_reports(folder)
            shown = _table(states, shutil.get_terminal_size((80, LINES)).lines)
            print(f"{_TOP}{_CLEAR}{shown}", end="", flush=True)
            if all(state["ended"] for state in states) and len(states) == max(
                state["size"] for state in states
            ):
                break
            time.sleep(_PAUSE)
    except KeyboardInterrupt:
        pass
    print()


def _table(states: list[State], lines: int) -> str:
    return live_table(states, time.time(), width() if lines < 1 << 20 else 1 << 20, lines)


def _folder(job: str) -> Path:
    """Where a job leaves its reports."""
    path = Path(job)
    try:
        if path.is_dir() or not job.isdecimal():
            return path
        entries = Path("/proc", job, "environ").read_bytes().split(b"\0")
        folder = Path("/proc", job, "cwd").resolve()
    except OSError as error:
        raise ArgumentError(
            f"{job} is no directory, and process {job} cannot be looked at: {error.strerror}"
        ) from None
    name = f"{settings.REPORT}=".encode()
    values = [
        entry[len(name) :].decode(errors="surrogateescape")
        for entry in entries
        if entry.startswith(name)
    ]
    if not values or not values[0]:
        raise ArgumentError(
            f"process {job} was started without {settings.REPORT}=DIR, where its ranks would say"
            f" what they are doing; kill -USR2 {job} has a rank print it"
        )
    return folder / values[0]
