"""Calls that the probe makes in order to time them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
from mpi4py import MPI

from ..algorithms import NATIVE
from ..execute import native_method
from . import arguments
from .call import Call
from .operations import plan_of

Candidate = tuple[str, int | None]  # algorithm, segment_bytes


@contextmanager
def trial(
    comm: MPI.Intracomm, collective: str, nbytes: int, candidates: Sequence[Candidate]
) -> Iterator[dict[Candidate, Callable[[], object]]]:
    """{candidate: a function that makes such a call}, on arrays of zeros. Collective."""
    call = _sample(comm, collective, nbytes)
    plans = {
        candidate: plan_of(call, *candidate)
        for candidate in candidates
        if candidate[0] != NATIVE
    }
    native = partial(native_method(comm, call.method), *call.arguments)
    try:
        yield {
            candidate: plans[candidate].run if candidate in plans else native
            for candidate in candidates
        }
    finally:
        for plan in plans.values():
            plan.Free()


def _sample(comm: MPI.Intracomm, collective: str, nbytes: int) -> Call:
    """A `Call` on a float32 vector of about `nbytes`."""
    share = np.zeros(max(1, nbytes // 4 // comm.Get_size()), np.float32)
    whole = np.zeros(share.size * comm.Get_size(), np.float32)
    if collective == "allgather":
        return arguments.allgather(comm, share, whole)
    if collective == "alltoall":
        return arguments.alltoall(comm, whole, np.zeros_like(whole))
    if collective == "reduce_scatter":
        return arguments.reduce_scatter_block(comm, whole, share, MPI.SUM)
    if collective == "bcast":
        return arguments.bcast(comm, whole, 0)
    if collective == "reduce":
        result = np.zeros_like(whole) if comm.Get_rank() == 0 else None
        return arguments.reduce(comm, whole, result, MPI.SUM, 0)
    if collective in ("scan", "exscan"):
        parse = getattr(arguments, collective)
        scanned: Call = parse(comm, whole, np.zeros_like(whole), MPI.SUM)
        return scanned
    return arguments.allreduce(comm, whole, np.zeros_like(whole), MPI.SUM)
