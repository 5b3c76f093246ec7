"""Where the extension may be loaded."""

import sysconfig
from importlib import import_module
from typing import Any


def load() -> Any:
    """The extension. Raises ImportError where there is none, or it may not be loaded."""
    require_lock()
    return import_module("mpicoll._engine")


def require_lock() -> None:
    """Raise ImportError in a free-threaded Python: the extension relies on the interpreter's lock.

    None is built there, but one of another Python may lie beside the sources, and would crash.
    """
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise ImportError("it relies on the interpreter's lock, which this Python does not have")
