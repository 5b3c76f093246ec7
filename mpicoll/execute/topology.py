"""Nodes: which ranks share one, found once per process group; and what all ranks must have in common."""

from typing import NamedTuple

from mpi4py import MPI

from ..support import settings
from ..support.checks import must_agree
from ..support.node import library, network

SHARED_MEMORY = "shared memory"
_REMEDY = "Set it alike for all ranks (mpirun -x NAME, mpiexec -genv NAME VALUE, srun --export=ALL)"


class Topology(NamedTuple):
    """Where the ranks of a communicator are, and what carries their messages.

    nodes: the node of each rank, numbered in the order of the nodes' lowest ranks. library: MPI's name and version.
    """

    nodes: tuple
    network: str
    library: str

    @property
    def count(self):
        """How many nodes."""
        return max(self.nodes) + 1

    @property
    def transport(self):
        """What the slowest messages go through: the network, or shared memory where there is one node."""
        return self.network if self.count > 1 else SHARED_MEMORY


def discover(comm):
    """The `Topology` of a communicator. Collective.

    A node is where ranks can share memory. Raises ArgumentError on all ranks where they do not agree on the settings
    that decide how a call is served: ranks that chose differently would wait for each other for ever.
    """
    rank = comm.Get_rank()
    node = MPI.Intracomm.Split_type(comm, MPI.COMM_TYPE_SHARED, rank)
    try:
        leader = MPI.Intracomm.bcast(node, rank)
    finally:
        node.Free()
    facts = {**settings.fingerprint(), "the MPI library": library(), "the network's transport": network()}
    everyone = MPI.Intracomm.allgather(comm, (leader, facts))
    must_agree([facts for _, facts in everyone], _REMEDY)
    return Topology(_numbered(leader for leader, _ in everyone), network(), library())


def inherited(comm, parent, topology):
    """The `Topology` of `comm`, whose ranks are some of `parent`'s. Local."""
    ours, theirs = comm.Get_group(), parent.Get_group()
    try:
        ranks = ours.Translate_ranks(None, theirs)
    finally:
        ours.Free()
        theirs.Free()
    return topology._replace(nodes=_numbered(topology.nodes[rank] for rank in ranks))


def _numbered(labels):
    numbers = {}
    return tuple([numbers.setdefault(label, len(numbers)) for label in labels])
