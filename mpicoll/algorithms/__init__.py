"""Every algorithm, one file per collective, and the registry that knows them by their names.

Generators live at ``mpicoll.algorithms.<collective>.<algorithm>``. No MPI, no NumPy.
"""

from . import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    bcast,
    exscan,
    gather,
    neighborhood,
    reduce,
    reduce_scatter,
    scan,
    scatter,
)
from .names import (
    AlgorithmName,
    AllgatherName,
    AllreduceName,
    AlltoallName,
    AnyName,
    BarrierName,
    BcastName,
    ExscanName,
    GatherName,
    NeighborName,
    ReduceName,
    ReduceScatterName,
    ScanName,
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
    proposed,
    registered,
    require,
    source_of,
)

__all__ = [
    "LIBRARIES", "MOST_QUANTISATIONS", "NATIVE", "NCCL", "Algorithm", "AlgorithmName",
    "AllgatherName", "AllreduceName",
    "AlltoallName", "AnyCollective", "AnyName", "BarrierName", "BcastName", "ExscanName",
    "GatherName", "NeighborName", "ReduceName", "ReduceScatterName", "ScanName", "ScatterName",
    "add", "allgather", "allreduce", "alltoall", "barrier", "bcast", "declared", "exscan", "find",
    "gather", "in_codes", "library_names", "list_algorithms", "meaning_of", "neighborhood",
    "proposed", "reduce", "reduce_scatter", "registered", "require", "scan", "scatter",
    "source_of",
]
