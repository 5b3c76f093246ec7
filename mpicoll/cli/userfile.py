"""`--file mine.py`: a user's own algorithms for the commands that take them."""

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from traceback import extract_tb

from .. import algorithms, collectives
from ..errors import ArgumentError, ScheduleError
from ..support.files import named

#: what the file is imported as, wherever it lies and whatever it is called
MODULE = "mpicoll_user_file"


def load(path: str) -> list[algorithms.Algorithm]:
    """Import the file and return the algorithms it registers.

    Raises ScheduleError for an algorithm found wrong, ArgumentError where the file cannot be read
    or registers nothing.
    """
    if not os.path.isfile(path):
        raise ArgumentError(f"--file: there is no file {named(path)}")
    spec = spec_from_file_location(MODULE, path)
    if spec is None or spec.loader is None:
        raise ArgumentError(f"--file: expected a Python file (*.py), got {named(path)}")
    before = _registered()
    module = sys.modules[MODULE] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ScheduleError as error:
        raise ScheduleError(f"{path}: {error}") from None
    except (Exception, SystemExit) as error:  # whatever the user's lines raise
        # the launcher's SystemExit has a class of its own
        kind = SystemExit if isinstance(error, SystemExit) else type(error)
        reason = f"{kind.__name__}: {error}".removesuffix(": ").removesuffix(": None")
        what = f"{named(path)}{_line_of(error, path)} ends with {reason}"
        raise ArgumentError(f"--file: {what}") from error
    new = [algorithm for algorithm in _registered() if algorithm not in before]
    if not new:
        advice = "call mpicoll.register(collective, name, generator)"
        raise ArgumentError(f"--file: {named(path)} registers no algorithm; {advice}")
    return new


def _line_of(error: BaseException, path: str) -> str:
    """The last line of the file that took part in an error, as text."""
    lines = [
        frame.lineno
        for frame in extract_tb(error.__traceback__)
        if frame.filename == os.path.abspath(path)
    ]
    number = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    return f", line {number}," if number else ""


def _registered() -> list[algorithms.Algorithm]:
    return [
        algorithm for name in collectives.COLLECTIVES for algorithm in algorithms.registered(name)
    ]
