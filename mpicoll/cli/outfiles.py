"""Output files of commands, and `--done FILE`, which tells a job script of success."""

import json
import os
from argparse import Namespace
from datetime import datetime
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, MpicollError, did_you_mean
from ..support.checks import raise_everywhere
from ..support.files import named, write_whole
from ..support.optional import require

#: options that name a file which rank 0 writes after the work
OPTIONS = ("plot", "json", "trace", "done", "output")


def check(arguments: Namespace, comm: Any = None) -> None:
    """Check before the work that its results can be written. Raises MpicollError, on all ranks of
    comm.

    Rank 0 alone looks: it writes, and the others may not see that disk.
    """
    problem = _problem(arguments) if comm is None or comm.Get_rank() == 0 else None
    if comm:
        raise_everywhere(comm, problem)
    elif problem:
        raise problem


def _problem(arguments: Namespace) -> MpicollError | None:
    """The error that says what cannot be written, or None."""
    try:
        for option in OPTIONS:
            if (path := getattr(arguments, option, None)) is not None:
                _check_one(option, path)
    except MpicollError as error:
        return error
    return None


def _check_one(option: str, path: str) -> None:
    if option == "plot":
        formats = require("matplotlib.figure", "--plot").Figure().canvas.get_supported_filetypes()
        if (suffix := Path(path).suffix[1:]) and suffix not in formats:
            ends = f"one of {', '.join(formats)}, got {path!r}{did_you_mean(suffix, formats)}"
            raise ArgumentError(f"--plot: expected a file name that ends with {ends}")
    existed = os.path.lexists(path)
    try:
        open(path, "a", encoding="utf-8").close()
        if not existed:
            os.remove(path)  # a file that is there has a result in it
    except OSError as error:
        raise ArgumentError(f"--{option}: cannot write {named(path)} ({error.strerror})") from error


def write_json(path: str, document: dict[str, Any]) -> None:
    """Write what `--json` asks for."""
    write_whole(path, json.dumps(document, indent=1))


def write_done(arguments: Namespace) -> None:
    """Write the file of `--done`, if it was given, on the lowest rank that is alive."""
    if getattr(arguments, "done", None) is not None:
        from mpi4py import MPI

        from ..failure import lowest_alive
        from ..measure import command

        if MPI.COMM_WORLD.Get_rank() == lowest_alive():
            write_whole(
                arguments.done,
                f"{datetime.now().astimezone().isoformat(timespec='seconds')} {command()}\n",
            )
