"""The MPI library and the fabric here, which ranks share a node, and what they share there: its cores and its GPUs."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy
from mpi4py import MPI

from ..errors import LaunchError
from .checks import check_word
from .optional import require

UNKNOWN = "unknown"


def library() -> str:
    """Name and version of the MPI library, in one line."""
    words = MPI.Get_library_version().strip("\x00 \n").splitlines()[0].split(",")[0].split()
    return " ".join(words).replace("Version: ", "").replace("Version:", "")


def fabric() -> str:
    """What MPI was told to use between nodes: "tcp", another word of its settings, or "unknown" where it chose by itself."""
    if "open mpi" in library().lower():
        chosen = os.environ.get("OMPI_MCA_btl", "") if os.environ.get("OMPI_MCA_pml", "ob1") == "ob1" else ""
        words = [word for word in chosen.split(",") if word not in ("", "self", "sm", "vader") and not word.startswith("^")]
    else:
        words = [os.environ.get("FI_PROVIDER", "")]
        if os.environ.get("MPIR_CVAR_CH4_NETMOD") == "ucx" or not words[0]:
            words = [word for word in os.environ.get("UCX_TLS", "").split(",") if word not in ("", "self", "sm", "shm")]
            words = [f"ucx:{word}" for word in words]
    return words[0].split(";")[0] if len(words) == 1 and words[0] else UNKNOWN


#: who sets one of these has chosen the number of BLAS threads
_CHOSEN = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")

DEVICES = ("cpu", "cuda")


@contextmanager
def ranks_of_node(comm: MPI.Comm) -> Iterator[MPI.Intracomm]:
    """A communicator of the ranks that can share memory with this one, freed at the end. Collective."""
    node: Any = MPI.Intracomm.Split_type(comm, MPI.COMM_TYPE_SHARED)  # plain: not of comm's class
    try:
        yield node
    finally:
        node.Free()


def share_cores(comm: MPI.Comm, environ: Mapping[str, str] = os.environ) -> int | None:
    """Let BLAS use as many threads as there are cores for each rank of the node; returns the number, or None.

    Without it each of N ranks starts a thread per core, and they take the cores from each other. Cores are those that
    any rank of the node may run on, so binding by the launcher is respected. Left alone, and None returned, where one
    of OMP_NUM_THREADS, OPENBLAS_NUM_THREADS, … is set. Collective. Raises LaunchError where threadpoolctl is missing.
    """
    own = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    with ranks_of_node(comm) as node:
        everyone = node.allgather(own)
    if any(environ.get(name) for name in _CHOSEN):
        return None
    threads = max(1, min(len(own), len(set().union(*everyone)) // len(everyone)))
    require("threadpoolctl").threadpool_limits(limits=threads, user_api="blas")
    return threads


def device_module(device: str, comm: MPI.Comm) -> Any:
    """The array module for `cpu` (numpy) or `cuda` (cupy, with GPU = local rank modulo number of GPUs). Collective.

    Raises ArgumentError for another word, and LaunchError where CuPy or a GPU is missing.
    """
    check_word("device", device, DEVICES)
    if device == "cpu":
        return numpy
    with ranks_of_node(comm) as node:
        rank = node.Get_rank()
    cupy = require("cupy", "device cuda")
    try:
        cupy.cuda.Device(rank % cupy.cuda.runtime.getDeviceCount()).use()
        cupy.zeros(1)
    except RuntimeError as error:  # CuPy's runtime errors are RuntimeErrors
        raise LaunchError(f"device cuda: no usable GPU on {MPI.Get_processor_name()} ({error})") from error
    return cupy
