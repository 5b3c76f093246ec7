"""The names that `algorithm=` takes, for type checkers and editors, which thus report `"rign"`.

Any other name, registered by a user or read from a file, is an `AlgorithmName`: the result of
`mpicoll.register` or `mpicoll.list_algorithms`, or ``AlgorithmName(text)``. At run time all names
are plain strings, and the registry decides which of them exist.
"""

from typing import Literal, NewType, TypeAlias, Union

AlgorithmName = NewType("AlgorithmName", str)

AllreduceName: TypeAlias = Union[
    Literal[
        "parameter_server", "reduce_bcast", "tree", "pipeline", "recursive_doubling",
        "halving_doubling", "ring", "circulant", "pairwise", "allgather_reduce", "direct",
        "hierarchical", "tripling", "quadrupling", "swing", "bine", "trivance", "generalised",
        "native", "nccl",
    ],
    AlgorithmName,
]
ReduceScatterName: TypeAlias = Union[
    Literal[
        "ring", "halving", "circulant", "pairwise", "direct", "hierarchical", "swing", "pat",
        "trivance", "native", "nccl",
    ],
    AlgorithmName,
]
AllgatherName: TypeAlias = Union[
    Literal[
        "ring", "doubling", "circulant", "bruck", "direct", "hierarchical", "tripling",
        "quadrupling", "swing", "pat", "trivance", "native", "nccl",
    ],
    AlgorithmName,
]
AlltoallName: TypeAlias = Union[
    Literal["pairwise", "direct", "bruck", "hierarchical", "native"], AlgorithmName
]
BcastName: TypeAlias = Union[
    Literal[
        "linear", "binomial", "scatter_allgather", "pipeline", "circulant", "direct",
        "hierarchical", "bine", "native", "nccl",
    ],
    AlgorithmName,
]
ReduceName: TypeAlias = Union[
    Literal[
        "linear", "binomial", "reduce_scatter_gather", "pairwise", "pipeline", "circulant",
        "hierarchical", "bine", "native", "nccl",
    ],
    AlgorithmName,
]
ScatterName: TypeAlias = Union[Literal["linear", "binomial", "bine", "native"], AlgorithmName]
GatherName: TypeAlias = ScatterName
ScanName: TypeAlias = Union[
    Literal["linear", "recursive_doubling", "binomial", "pipeline", "hierarchical", "native"],
    AlgorithmName,
]
ExscanName: TypeAlias = Union[
    Literal[
        "linear", "recursive_doubling", "two_phase", "binomial", "pipeline", "hierarchical",
        "native",
    ],
    AlgorithmName,
]
BarrierName: TypeAlias = Union[Literal["dissemination", "tree", "native"], AlgorithmName]
NeighborName: TypeAlias = Union[Literal["direct", "packed", "combined", "native"], AlgorithmName]

#: of any collective
AnyName: TypeAlias = Union[
    AllreduceName,
    ReduceScatterName,
    AllgatherName,
    AlltoallName,
    BcastName,
    ReduceName,
    ScatterName,
    ExscanName,
    BarrierName,
    NeighborName,
]
