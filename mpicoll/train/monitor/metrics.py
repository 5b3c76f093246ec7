"""Metrics as JSON lines: one for each step and each epoch, on rank 0, as they come."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from ...errors import ArgumentError
from ...support.checks import raise_everywhere

if TYPE_CHECKING:
    from mpi4py import MPI

#: log(name=value, …)
Log: TypeAlias = Callable[..., None]


@contextmanager
def metrics_file(path: str | os.PathLike[str] | None, comm: MPI.Intracomm) -> Iterator[Log]:
    """Yield `log(**fields)`, which on rank 0 adds a line to the file, after what is there; without a path it does nothing.

    Collective. Raises ArgumentError on all ranks where rank 0 cannot write.
    """
    file, error = None, None
    if path is not None and comm.Get_rank() == 0:
        try:
            file = open(path, "a", buffering=1, encoding="utf-8")
        except OSError as reason:
            error = ArgumentError(f"metrics: cannot write {path} ({reason.strerror})")
    if path is not None:
        raise_everywhere(comm, error)
    if file is None:
        yield lambda **fields: None
        return
    with file:
        yield lambda **fields: print(json.dumps(fields), file=file)
