"""Collectives: what MPI's own call and mpicoll's choice take, beside what the links allow."""

from __future__ import annotations

import numpy as np

from ..communicator import Communicator
from ..measure import alternate, how_often
from ..simulate import lower_bound
from .records import CollectiveResult

#: bytes of the vector
SIZE = 1 << 20
#: and where the links need longer than this for it, in seconds
_SMALL = 64 << 10
_LONG = 1.0
#: seconds for all repetitions
_SECONDS = 4.0


def measure_allreduce(comm: Communicator, nodes: int, bandwidth: float) -> CollectiveResult:
    """Time Allreduce. Collective. bandwidth: bytes per second of the slowest node; 0: unknown."""
    sent = lower_bound("allreduce", nodes).sent if nodes > 1 and bandwidth else 0.0
    nbytes = SIZE
    if sent and sent * nbytes / bandwidth > _LONG:
        nbytes = _SMALL
    vector = np.ones(nbytes // 4, np.float32)
    result = np.empty_like(vector)
    calls = {
        "native": lambda: comm.Allreduce(vector, result, algorithm="native"),
        "auto": lambda: comm.Allreduce(vector, result),
    }
    alternate(comm, calls, 1)  # binds, and may measure an unknown network
    once = alternate(comm, calls, 1)
    repeats = how_often({name: times[0] for name, times in once.items()}, _SECONDS, 2, 30)
    times = alternate(comm, calls, repeats)
    least = {name: float(min(every.min(), once[name][0])) for name, every in times.items()}
    algorithm = comm.explain("allreduce", vector).algorithm
    bound = sent * nbytes / bandwidth if sent else 0.0
    return CollectiveResult(
        "allreduce", nbytes, least["native"], least["auto"], algorithm, bound
    )
