"""Metrics as JSON lines: one for each step and each epoch, on rank 0, as they come."""

import json
from contextlib import contextmanager

from ...errors import ArgumentError


@contextmanager
def metrics_file(path, comm):
    """Yield `log(**fields)`, which on rank 0 adds a line to the file, after what is there; without a path it does nothing.

    Collective. Raises ArgumentError on all ranks where rank 0 cannot write.
    """
    file, problem = None, None
    if path is not None and comm.Get_rank() == 0:
        try:
            file = open(path, "a", buffering=1, encoding="utf-8")
        except OSError as error:
            problem = f"metrics: cannot write {path} ({error.strerror})"
    if problem := path is not None and comm.bcast(problem):
        raise ArgumentError(problem)
    if file is None:
        yield lambda **fields: None
        return
    with file:
        yield lambda **fields: print(json.dumps(fields), file=file)
