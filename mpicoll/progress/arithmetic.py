"""NumPy's errors and warnings of arithmetic, which MPI's reductions do not have."""

from collections.abc import Callable
from contextvars import copy_context
from typing import TypeVar

import numpy as np

Result = TypeVar("Result")

#: NumPy keeps its settings in a context variable
_IN_CONTEXT = int(np.__version__.partition(".")[0]) >= 2


def as_mpi_computes(function: Callable[..., Result], *arguments: object) -> Result:
    """Call it without NumPy's errors and warnings of arithmetic, for any settings of the user.

    In a new context, so that the caller's is not written to: CPython crashes if garbage is
    collected during that and a finalizer writes to the same context, as one that waits for a call.
    """
    if not _IN_CONTEXT:
        with np.errstate(all="ignore"):
            return function(*arguments)
    context = copy_context()
    context.run(np.seterr, all="ignore")
    return context.run(function, *arguments)


def calls_as_mpi_computes(own_code: bool) -> Callable[..., object]:
    """A function (function, *arguments) that calls it as `as_mpi_computes`, one call at a time.

    own_code: no code of the user runs there, so one context serves all calls, in a twentieth of the
    time.
    """
    if own_code and _IN_CONTEXT:
        context = copy_context()
        context.run(np.seterr, all="ignore")
        return context.run
    return as_mpi_computes
