"""The names that `algorithm=` takes, for type checkers and editors: `"rign"` is found before anything runs.

A name that is not written here, because a user registered it or because it comes from a file, is an `AlgorithmName`:
what `mpicoll.register` and `mpicoll.list_algorithms` return, or ``AlgorithmName(text)`` where the program knows better.
At run time all names are plain strings, and the registry says which there are.
"""

from typing import Literal, NewType, TypeAlias, Union

AlgorithmName = NewType("AlgorithmName", str)

AllreduceName: TypeAlias = Union[
    Literal[
        "parameter_server", "reduce_bcast", "tree", "pipeline", "recursive_doubling", "halving_doubling", "ring",
        "circulant", "pairwise", "allgather_reduce", "direct", "hierarchical", "native", "nccl",
    ],
    AlgorithmName,
]
ReduceScatterName: TypeAlias = Union[
    Literal["ring", "halving", "circulant", "pairwise", "direct", "hierarchical", "native", "nccl"], AlgorithmName
]
AllgatherName: TypeAlias = Union[
    Literal["ring", "doubling", "circulant", "bruck", "direct", "hierarchical", "native", "nccl"], AlgorithmName
]
AlltoallName: TypeAlias = Union[Literal["pairwise", "bruck", "native"], AlgorithmName]
BcastName: TypeAlias = Union[
    Literal["linear", "binomial", "scatter_allgather", "pipeline", "circulant", "direct", "hierarchical", "native", "nccl"],
    AlgorithmName,
]
ReduceName: TypeAlias = Union[
    Literal["linear", "binomial", "reduce_scatter_gather", "pipeline", "circulant", "hierarchical", "native", "nccl"],
    AlgorithmName,
]
ScatterName: TypeAlias = Union[Literal["linear", "binomial", "native"], AlgorithmName]
GatherName: TypeAlias = ScatterName

#: of any collective
AnyName: TypeAlias = Union[
    AllreduceName, ReduceScatterName, AllgatherName, AlltoallName, BcastName, ReduceName, ScatterName
]
