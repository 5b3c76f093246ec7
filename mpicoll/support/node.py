"""The fabric here, which ranks share a node, and how they share its cores."""

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


@cache  # quirk: int-counts
def largest_count() -> float:
    """The largest count of elements that MPI's calls take; infinite where they know large counts. The library is asked."""
    try:
        MPI.BYTE.Pack_size(LARGE_COUNT + 1, MPI.COMM_SELF)
    except (MPI.Exception, OverflowError):
        return LARGE_COUNT
    return inf


def fabric() -> str:
    """What MPI was told to use between nodes: "tcp", another word of its settings, or "unknown" where it chose by itself."""
    if is_open_mpi(library()):
        chosen = os.environ.get("OMPI_MCA_btl", "") if os.environ.get("OMPI_MCA_pml", "ob1") == "ob1" else ""
        words = [word for word in chosen.split(",") if word not in ("", "self", "sm", "vader") and not word.startswith("^")]
    else:
        words = [os.environ.get("I_MPI_OFI_PROVIDER", "") or os.environ.get("FI_PROVIDER", "")]
        if os.environ.get("MPIR_CVAR_CH4_NETMOD") == "ucx" or not words[0]:
            words = [word for word in os.environ.get("UCX_TLS", "").split(",") if word not in ("", "self", "sm", "shm")]
            words = [f"ucx:{word}" for word in words]
    return words[0].split(";")[0] if len(words) == 1 and words[0] else UNKNOWN


def ranks_within(comm: MPI.Comm, parent: MPI.Comm) -> list[int]:
    """The ranks in `parent` of the ranks of `comm`. Local; may take long for many ranks."""
    # quirk: translation-of-ranks-is-quadratic
    ours, theirs = comm.Get_group(), parent.Get_group()
    try:
        # the ranks of the communicator come first. quirk: group-of-a-grid
        return list(ours.Translate_ranks(None, theirs))[: comm.Get_size()]
    finally:
        ours.Free()
        theirs.Free()


def failed_ranks(comm: MPI.Comm) -> list[int]:
    """The ranks of a communicator of which MPI knows that they are dead. Local; raises where MPI does not tell."""
    failed, whole = comm.Get_failed(), comm.Get_group()
    ranks = MPI.Group.Translate_ranks(failed, list(range(failed.Get_size())), whole)
    failed.Free()
    whole.Free()
    return sorted(ranks)


#: who sets one of these has chosen the number of BLAS threads
_CHOSEN = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


@contextmanager
def ranks_of_node(comm: MPI.Comm) -> Iterator[MPI.Intracomm]:
    """A communicator of the ranks that can share memory with this one, freed at the end. Collective."""
    node: Any = MPI.Intracomm.Split_type(comm, MPI.COMM_TYPE_SHARED)  # plain: not of comm's class
    try:
        yield node
    finally:
        node.Free()


def share_cores(comm: MPI.Comm, environ: Mapping[str, str] = os.environ, most: int | None = None) -> int | None:
    """Let BLAS use as many threads as there are cores for each rank of the node; returns the number, or None.

    Without it each of N ranks starts a thread per core, and they take the cores from each other. Cores are those that
    any rank of the node may run on, so binding by the launcher is respected. Left alone, and None returned, where one
    of OMP_NUM_THREADS, OPENBLAS_NUM_THREADS, … is set. Collective. Raises LaunchError where threadpoolctl is missing.
    most: no more threads than these, so that their number, which may change bits, does not depend on that of the ranks.
    """
    own = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    with ranks_of_node(comm) as node:
        everyone = node.allgather(own)
    if any(environ.get(name) for name in _CHOSEN):
        return None
    threads = max(1, min(len(own), len(set().union(*everyone)) // len(everyone), most or len(own)))
    require("threadpoolctl").threadpool_limits(limits=threads, user_api="blas")
    return threads


def on_each_host(comm: MPI.Comm, act: Callable[[], Result]) -> list[tuple[str, Result]]:
    """For each rank the name of its host, and what `act()` gave on that host's lowest rank; the others wait. Collective.

    Hosts go by name: MPI may have been told not to use shared memory. `act` may not raise.
    """
    hosts = MPI.Comm.allgather(comm, MPI.Get_processor_name())
    # quirk: nolocal-nodes
    lowest = {host: rank for rank, host in reversed(list(enumerate(hosts)))}
    results = MPI.Comm.allgather(comm, act() if comm.Get_rank() in lowest.values() else None)
    return [(host, results[lowest[host]]) for host in hosts]
