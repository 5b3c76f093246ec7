"""Metrics as JSON lines: one for each step and each epoch, on rank 0, as they come."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from typing import TYPE_CHECKING, TypeAlias

from ...errors import ArgumentError
from ...support.checks import check, raise_everywhere, ranks_text

if TYPE_CHECKING:
    from mpi4py import MPI

#: log(name=value, …)
Log: TypeAlias = Callable[..., None]


@contextmanager
def metrics_file(path: str | os.PathLike[str] | None, comm: MPI.Intracomm) -> Iterator[Log]:
    """Yield `log(**fields)`, which on rank 0 appends a line to the file, if there is a path.

    Collective; the paths of other ranks do not count. Raises ArgumentError on all ranks where rank
    0 cannot write, or has no path and others have. Where it no longer can, `log` says so once, and
    adds no more lines: the training is worth more than its metrics.
    """
    file = None
    error = None
    if path is not None and comm.Get_rank() == 0:
        try:
            file = open(path, "ab", buffering=0)  # nothing is left to be written when it is closed
        except OSError as reason:
            error = ArgumentError(f"metrics: cannot write {path} ({reason.strerror})")
    raise_everywhere(comm, error)
    having = [rank for rank, has in enumerate(comm.allgather(path is not None)) if has]
    check(
        "metrics",
        None,
        not having or having[0] == 0,
        f"a file on rank 0, which writes it, as on {ranks_text(having)}",
    )
    if file is None:
        yield lambda **fields: None
        return
    with file:
        yield _writer(file)


def _writer(file: FileIO) -> Log:
    problem: OSError | None = None

    def log(**fields: object) -> None:
        nonlocal problem
        if problem:
            return
        try:
            file.write(json.dumps(fields).encode() + b"\n")
        except OSError as error:
            problem = error
            reason = f"cannot write {os.fspath(file.name)} any more ({error.strerror})"
            print(f"mpicoll: metrics: {reason}; the training goes on", file=sys.stderr, flush=True)

    return log
