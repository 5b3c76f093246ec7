"""Every algorithm, one file per collective, and the registry that knows them by their names.

Generators live at ``mpicoll.algorithms.<collective>.<algorithm>``. No MPI, no NumPy.
"""

from . import allgather, allreduce, alltoall, bcast, gather, reduce, reduce_scatter, scatter
from .names import (
    AlgorithmName,
    AllgatherName,
    AllreduceName,
    AlltoallName,
    AnyName,
    BcastName,
    GatherName,
    ReduceName,
    ReduceScatterName,
    ScatterName,
)
from .registry import (
    LIBRARIES,
    MOST_QUANTISATIONS,
    NATIVE,
    NCCL,
    Algorithm,
    add,
    declared,
    find,
    in_codes,
    library_names,
    list_algorithms,
    proposed,
    registered,
    require,
)

__all__ = [
    "LIBRARIES", "MOST_QUANTISATIONS", "NATIVE", "NCCL", "Algorithm", "AlgorithmName",
    "AllgatherName", "AllreduceName",
    "AlltoallName", "AnyName", "BcastName", "GatherName", "ReduceName", "ReduceScatterName",
    "ScatterName", "add", "allgather", "allreduce", "alltoall", "bcast", "declared", "find",
    "gather", "in_codes", "library_names", "list_algorithms", "proposed", "reduce", "reduce_scatter",
    "registered", "require", "scatter",
]
