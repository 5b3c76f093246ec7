"""Every algorithm, one file per collective, and the registry that knows them by their names.

Generators live at ``mpicoll.algorithms.<collective>.<algorithm>``. No MPI, no NumPy.
"""

from . import (
    allgather, allreduce, alltoall, bcast, gather, neighborhood, reduce, reduce_scatter, scatter
)
from .names import (
    AlgorithmName,
    AllgatherName,
    AllreduceName,
    AlltoallName,
    AnyName,
    BcastName,
    GatherName,
    NeighborName,
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
    AnyCollective,
    add,
    declared,
    find,
    in_codes,
    library_names,
    list_algorithms,
    meaning_of,
    registered,
    require,
)

__all__ = [
    "LIBRARIES", "MOST_QUANTISATIONS", "NATIVE", "NCCL", "Algorithm", "AlgorithmName",
    "AllgatherName", "AllreduceName",
    "AlltoallName", "AnyCollective", "AnyName", "BcastName", "GatherName", "NeighborName", "ReduceName", "ReduceScatterName",
    "ScatterName", "add", "allgather", "allreduce", "alltoall", "bcast", "declared", "find",
    "gather", "in_codes", "library_names", "list_algorithms", "meaning_of",
    "neighborhood", "reduce", "reduce_scatter", "registered",
    "require", "scatter",
]
