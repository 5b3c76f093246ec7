"""Nodes: which ranks share one, found once per process group; and what all ranks must have in common."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from mpi4py import MPI

from ..buffers import require_awareness
from ..errors import MpicollError
from ..support import settings
from ..support.checks import must_agree
from ..support.node import fabric, library, ranks_of_node
from .channel import ranks_within

SHARED_MEMORY = "shared memory"
_REMEDY = "Set it alike for all ranks (mpirun -x NAME, mpiexec -genv NAME VALUE, srun --export=ALL)"


class Topology(NamedTuple):
    """Where the ranks of a communicator are, and what carries their messages.

    nodes: the node of each rank, numbered in the order of the nodes' lowest ranks. fabric: what MPI uses between nodes.
    library: MPI's name and version. refusal: why ranks of a node do not read each other's memory, so that messages between
    them go through MPI; or "".
    """

    nodes: tuple[int, ...]
    fabric: str
    library: str
    refusal: str = "nobody asked"

    @property
    def node_count(self) -> int:
        """How many nodes."""
        return max(self.nodes) + 1

    @property
    def transport(self) -> str:
        """What the slowest messages go through: the fabric, or shared memory where there is one node."""
        return self.fabric if self.node_count > 1 else SHARED_MEMORY


def discover(
    comm: MPI.Comm,
    given: Mapping[str, object] | None = None,
    prepare: Callable[[], object] = lambda: None,
) -> Topology:
    """The `Topology` of a communicator. Collective. given: what the caller asks for, which must be equal, too.

    prepare: reads what this rank needs for its calls.

    A node is where ranks can share memory. Raises ArgumentError on all ranks where they do not agree on the settings
    that decide how a call is served: ranks that chose differently would wait for each other for ever. LaunchError, on all
    ranks too, where MPICOLL_GPU=direct and MPI does not take device pointers. MpicollError, on all
    ranks, where one of them cannot read a file: it may have no descriptor left.
    """
    with ranks_of_node(comm) as node:
        leader = MPI.Intracomm.bcast(node, comm.Get_rank())
    facts: dict[str, object] = {}
    failure = None
    try:
        facts |= settings.fingerprint()
        facts |= {"the MPI library": library(), "the network's transport": fabric()}
        prepare()
    except (OSError, ImportError) as error:
        # in a call this rank alone would raise it, and the others would wait
        failure = MpicollError(f"rank {comm.Get_rank()} cannot make a communicator: {error}")
    everyone = MPI.Comm.allgather(comm, (failure, leader, facts, given or {}))
    for failure, *_ in everyone:
        if failure is not None:
            raise failure
    must_agree([facts for _, _, facts, _ in everyone], _REMEDY)
    must_agree([wishes for *_, wishes in everyone])
    require_awareness(comm)
    return Topology(_numbered(leader for _, leader, *_ in everyone), fabric(), library())


def inherited(comm: MPI.Comm, parent: MPI.Comm, topology: Topology) -> Topology:
    """The `Topology` of `comm`, whose ranks are some of `parent`'s. Local."""
    return topology._replace(nodes=_numbered(topology.nodes[rank] for rank in ranks_within(comm, parent)))


def _numbered(labels: Iterable[int]) -> tuple[int, ...]:
    numbers: dict[int, int] = {}
    return tuple([numbers.setdefault(label, len(numbers)) for label in labels])
