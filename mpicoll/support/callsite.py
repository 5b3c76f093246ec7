"""Where in the user's program a call is made."""

import sys
import sysconfig
from pathlib import Path
from types import FrameType

_PACKAGE = str(Path(__file__).resolve().parent.parent)
#: where Python and what is installed lie
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def call_site() -> str:
    """ "file:line" of the innermost frame that is not mpicoll's."""
    return site_of(sys._getframe(1))


def site_of(frame: FrameType) -> str:
    """The same for any thread's frame."""
    while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def users_code(frame: FrameType) -> str:
    """The same where a thread runs the user's own code right now, called by mpicoll; else ""."""
    if frame.f_code.co_filename.startswith((_PACKAGE, *_LIBRARIES)):
        return ""
    caller = frame.f_back
    while caller is not None and not caller.f_code.co_filename.startswith(_PACKAGE):
        caller = caller.f_back
    return "" if caller is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
