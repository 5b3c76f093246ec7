"""NumPy's errors and warnings of arithmetic, which MPI's reductions do not have."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import copy_context

import numpy as np


def as_mpi_computes() -> AbstractContextManager[object]:
    """Sums that overflow are no NumPy errors or warnings, whatever the user has told NumPy: they are none for MPI."""
    context: AbstractContextManager[object] = np.errstate(all="ignore")
    return context


def calls_as_mpi_computes(own_code: bool) -> Callable[..., object]:
    """A function (function, *arguments) that calls it where `as_mpi_computes`, one call at a time.

    own_code: nobody else's runs there, so that it may have a copy of the context variables, which takes a twentieth of the
    time: NumPy keeps its settings in one since version 2.
    """
    if own_code and int(np.__version__.partition(".")[0]) >= 2:
        context = copy_context()
        context.run(np.seterr, all="ignore")
        return context.run

    def run(function: Callable[..., object], *arguments: object) -> None:
        with as_mpi_computes():
            function(*arguments)

    return run
