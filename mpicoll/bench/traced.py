"""A call of each candidate, with the events of this rank in it."""

from collections.abc import Iterable
from time import perf_counter
from typing import Any

import numpy as np

from ..execute import Context, Tracer
from ..support.events import Event
from ..support.units import format_bytes
from .compare import Candidate
from .workload import Workload


def traced(
    comm: Any,
    collective: str,
    candidates: Iterable[Candidate],
    nbytes: int,
    dtype: "np.dtype[Any]",
    **options: Any,
) -> list[Event]:
    """This rank's events of kinds `measure.OF_CALLS`. Collective over a `Communicator`.

    options: of `Workload`. Calls of MPI's own have no events within.
    """
    private = comm.Dup()  # all its plans are bound with a tracer
    case = Workload(private, collective, nbytes // dtype.itemsize, dtype, **options)
    tracer = Tracer()
    Context.of(private).tracer = tracer
    events: list[Event] = []
    for candidate in candidates:
        call = case.call(*candidate.asked)
        if call is None:
            continue
        for tracer.events in ([], []):  # the first call binds plans and touches memory
            case.prepare(poison=False)
            private.Barrier()
            begin = perf_counter()
            call()
            end = perf_counter()
        word, pieces = case.served_by(*candidate.asked)[:2]
        codes = f" {candidate.compression}" if candidate.compression else ""
        name = f"{collective} {word}{codes} {format_bytes(case.nbytes)}"
        facts = {"bytes": case.nbytes, "asked for": candidate.algorithm, "pieces of": pieces}
        events += [Event("call", name, begin, end, facts), *tracer.events]
    private.Free()
    return events
