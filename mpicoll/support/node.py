"""The fabric, the ranks of a node, and how they share its cores."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from math import inf
from typing import Any, TypeVar

from mpi4py import MPI

from .optional import require
from .quirks import is_open_mpi, library

Result = TypeVar("Result")

UNKNOWN = "unknown"
LARGE_COUNT = 2**31 - 1
#: words of OMPI_MCA_btl and UCX_TLS that say nothing of the network
_BTL_OF_NODE = ("", "self", "sm", "vader")
_TLS_OF_NODE = ("", "self", "sm", "shm")
#: variables by which a user chooses the number of BLAS threads, the most special first
BLAS_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "OMP_NUM_THREADS",
)


def processors() -> tuple[int, ...]:
    """The processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


@cache  # quirk: int-counts
def largest_count() -> float:
    """The largest count of elements that MPI's calls accept; infinite with large counts."""
    try:
        MPI.BYTE.Pack_size(LARGE_COUNT + 1, MPI.COMM_SELF)
    except (MPI.Exception, OverflowError):
        return LARGE_COUNT
    return inf


def fabric() -> str:
    """MPI's transport between nodes as its settings name it, such as "tcp".

    "unknown" where MPI chooses it.
    """
    words = _fabrics(os.environ)
    return words[0].split(";")[0] if len(words) == 1 and words[0] else UNKNOWN


def _fabrics(environ: Mapping[str, str]) -> list[str]:
    if is_open_mpi(library()):
        if environ.get("OMPI_MCA_pml", "ob1") != "ob1":
            return []
        words = environ.get("OMPI_MCA_btl", "").split(",")
        return [word for word in words if word not in _BTL_OF_NODE and not word.startswith("^")]
    provider = environ.get("I_MPI_OFI_PROVIDER", "") or environ.get("FI_PROVIDER", "")
    if provider and environ.get("MPIR_CVAR_CH4_NETMOD") != "ucx":
        return [provider]
    words = environ.get("UCX_TLS", "").split(",")
    return [f"ucx:{word}" for word in words if word not in _TLS_OF_NODE]


def ranks_within(comm: MPI.Comm, parent: MPI.Comm) -> list[int]:
    """The ranks in `parent` of the ranks of `comm`. Local; slow for many ranks."""
    # quirk: translation-of-ranks-is-quadratic
    group = comm.Get_group()
    parent_group = parent.Get_group()
    try:
        # the ranks of the communicator come first. quirk: group-of-a-grid
        return list(group.Translate_ranks(None, parent_group))[: comm.Get_size()]
    finally:
        group.Free()
        parent_group.Free()


def failed_ranks(comm: MPI.Comm) -> list[int]:
    """The ranks that MPI knows to be dead. Local; raises where MPI cannot tell."""
    failed = comm.Get_failed()
    whole = comm.Get_group()
    ranks = MPI.Group.Translate_ranks(failed, list(range(failed.Get_size())), whole)
    failed.Free()
    whole.Free()
    return sorted(ranks)


@contextmanager
def ranks_of_node(comm: MPI.Comm) -> Iterator[MPI.Intracomm]:
    """A communicator of the ranks that share memory with this one, for a block. Collective."""
    node: Any = MPI.Intracomm.Split_type(comm, MPI.COMM_TYPE_SHARED)  # plain: not of comm's class
    try:
        yield node
    finally:
        node.Free()


def share_cores(
    comm: MPI.Comm, environ: Mapping[str, str] = os.environ, most: int | None = None
) -> int | None:
    """Limit the threads of BLAS to this rank's share of the cores; returns the limit. Collective.

    Without a limit each rank starts a thread per core, and the ranks compete for the cores. A share
    counts the cores that any rank of the node may use, as the launcher binds them. Where any of
    OMP_NUM_THREADS, OPENBLAS_NUM_THREADS, … is set, nothing changes, and the result is None. Raises
    LaunchError where threadpoolctl is missing.

    most: the largest number of threads. It can make the number, which may change bits, independent
    of the number of ranks.
    """
    own = processors()
    with ranks_of_node(comm) as node:
        cores_of_ranks = node.allgather(own)
    if any(environ.get(name) for name in BLAS_VARIABLES):
        return None
    share = len(set().union(*cores_of_ranks)) // len(cores_of_ranks)
    threads = max(1, min(len(own), share, most or len(own)))
    require("threadpoolctl").threadpool_limits(limits=threads, user_api="blas")
    return threads


def on_each_host(comm: MPI.Comm, act: Callable[[], Result]) -> list[tuple[str, Result]]:
    """For each rank its host's name, and the result of `act()` on that host's lowest rank.

    Collective; the other ranks wait. Hosts are told apart by name, since MPI may be told not to use
    shared memory. `act` may not raise.
    """
    hosts = MPI.Comm.allgather(comm, MPI.Get_processor_name())
    # quirk: nolocal-nodes
    lowest = {host: rank for rank, host in reversed(list(enumerate(hosts)))}
    own = act() if comm.Get_rank() in lowest.values() else None
    results = MPI.Comm.allgather(comm, own)
    return [(host, results[lowest[host]]) for host in hosts]
