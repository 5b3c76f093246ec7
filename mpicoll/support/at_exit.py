"""What runs after all functions of `atexit`, while the threads of Python still run.

Functions of `atexit` run in reverse order, so that one that was registered before ours runs after
it; and daemon threads can no longer be stopped once Python has begun to end. Between the two there
is no hook. CPython (3.10 to 3.14) forgets the arguments of all functions when the last one has
returned: the finalizer of an object that is only such an argument runs then. A hook of Python's own
would end the need for this.
"""

import atexit
from collections.abc import Callable


class _Last:
    """Calls a function when it is forgotten."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call

    def __del__(self) -> None:
        self._call()


def after_exit_functions(call: Callable[[], object]) -> None:
    """Call it when the functions of `atexit` have run, whenever they were registered."""
    atexit.register(_hold, _Last(call))


def _hold(last: _Last) -> None:
    """Nothing: `atexit` holds its argument until all functions have run."""
