"""`--file mine.py`: a user's own algorithms for the commands that take them."""

import sys
from argparse import ArgumentParser
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from .. import algorithms, collectives
from ..errors import ArgumentError, ScheduleError

#: what the file is imported as, wherever it lies and whatever it is called
MODULE = "mpicoll_user_file"


def add_argument(parser: ArgumentParser) -> None:
    """The option itself."""
    parser.add_argument("--file", metavar="MINE.py", help="a file that calls mpicoll.register(collective, name, generator)")


def load(path: str) -> list[algorithms.Algorithm]:
    """Import the file and return the algorithms it registers; an algorithm found wrong ends the program, status 1.

    Raises ArgumentError where the file cannot be read or registers nothing.
    """
    if not Path(path).is_file():
        raise ArgumentError(f"--file: there is no file {path}")
    spec = spec_from_file_location(MODULE, path)
    if spec is None or spec.loader is None:
        raise ArgumentError(f"--file: expected a Python file (*.py), got {path}")
    before = _registered()
    module = sys.modules[MODULE] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ScheduleError as error:
        sys.exit(f"{path}: {error}")
    new = [algorithm for algorithm in _registered() if algorithm not in before]
    if not new:
        raise ArgumentError(f"--file: {path} registers no algorithm; call mpicoll.register(collective, name, generator)")
    return new


def _registered() -> list[algorithms.Algorithm]:
    return [algorithm for name in collectives.COLLECTIVES for algorithm in algorithms.registered(name)]
