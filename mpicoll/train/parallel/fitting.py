"""Sizes of buckets and an algorithm for the options that leave them open."""

from dataclasses import replace
from typing import Any

from mpi4py import MPI

from ...support.checks import check
from ...support.node import ranks_of_node
from ..options import LARGEST, PAIRWISE, RING, WITHIN_NODE, Options

#: the same on a deterministic communicator
CANONICAL = "pairwise"
#: of compressed reductions where ranks share nodes: codes are made once a node
BY_NODES = "hierarchical"
#: an eighth of the model, so that the first bucket leaves early in backward and the last is short,
#: but no more than a link needs to be busy, and blocks that are worth a message
PARTS = 8
LEAST_BLOCK = 16 << 10


def fitted(options: Options, nbytes: int, comm: MPI.Comm, on_host: bool) -> Options:
    """The options, with a size of buckets and an algorithm where none is given.

    Collective, and alike on all ranks. Without an algorithm nothing is compressed where all ranks
    share a node.

    nbytes: of all parameters as they are sent; on_host: whether they are in the memory of the node.
    """
    # alike: where one rank shares its node with all others, so do they
    with ranks_of_node(comm) as node:
        neighbours = node.Get_size()
    is_one_node = neighbours == comm.Get_size()
    within = is_one_node and comm.Get_size() > 1 and on_host and not options.served
    if comm.Get_size() == 1 or (is_one_node and options.algorithm is None):
        options = replace(
            options, compression=None, parameter_compression=None, error_feedback=False
        )
    chosen: Any = WITHIN_NODE if within else RING
    if options.compression is not None:
        shares_nodes = comm.allreduce(neighbours, MPI.MAX) > 1
        chosen = BY_NODES if shares_nodes and not options.error_feedback else PAIRWISE
    if getattr(comm, "deterministic", False) and not options.reproducible:
        chosen = CANONICAL
    micro = options.micro_batches
    expected = f"at least {comm.Get_size()} micro-batches, one for each rank"
    check("reproducible", options.reproducible, micro is None or micro >= comm.Get_size(), expected)
    size = min(LARGEST, max(nbytes // PARTS, LEAST_BLOCK * comm.Get_size()))
    return replace(
        options, bucket_bytes=options.bucket_bytes or size, algorithm=options.algorithm or chosen
    )
